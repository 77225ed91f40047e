"""The operations on warm-ups of addresses, and on what replies have changed."""

from collections.abc import AsyncIterator

from zonemta_py.admin.reasons import EgressView
from zonemta_py.admin.requests import (
    Row,
    ShapingEndRequest,
    ShapingRequest,
    WarmupContinueRequest,
    WarmupPauseRequest,
    WarmupRequest,
)
from zonemta_py.admin.suspensions import address_of, known_name
from zonemta_py.core.errors import LocalError

# ---- Paths from an address to a provider, as ``egress_view`` makes their rows: which of them needs attention. Pure.


def attention(row: Row) -> tuple[int, int, str, str]:
    """The place of a path in a list: first what sends nothing, then what sends less, then the others by attempts.

    Attempts count by their number of digits, so that a list that is watched does not jump.
    """
    refused, attempts = len(str(row["refused"])), len(str(row["attempts"]))
    return (
        level(row),
        -10 * refused - attempts if row["refused"] else -attempts,
        row["provider"],
        row["address"],
    )


def level(row: Row) -> int:
    """How little a path needs attention: 0 where an operator has stopped it, 6 where all is well."""
    if row["suspended"]:
        return 0
    if row["paused_until_ms"]:
        return 1
    if is_lowered(row):
        return 2
    if any(each["late_days"] or each["paused"] for each in row["warmup"]):
        return 3
    if row["refused"]:
        return 4
    return 5 if row["waiting"] else 6


def is_lowered(row: Row) -> bool:
    """Whether the controller, or a rule, allows less than the limits."""
    return row["pace_per_min"] is not None


# ---- egress operations

PATHS_MAX = 5000  # that a command, or the list of the page, has; each takes the relay 15 to 50 µs


class EgressOperations:
    """A part of ``Operations``. ``egress`` is None for a queue without a configuration."""

    def __init__(self, egress: EgressView | None = None) -> None:
        self._egress = egress

    def _limits(self) -> EgressView:
        if self._egress is None:
            raise LocalError("no relay is running")
        return self._egress

    async def warmup(self, request: WarmupRequest) -> AsyncIterator[Row]:
        """A row for each schedule. Raises LocalError for an address that has none."""
        address = address_of(request.address) if request.address else ""
        found = [row for row in self._limits().warmups() if address in ("", row["address"])]
        if address and not found:
            raise LocalError(f"{address} has no warm-up; see warmup.file")
        for row in found:
            yield row

    async def pause(self, request: WarmupPauseRequest) -> AsyncIterator[Row]:
        """A row for each schedule. Raises LocalError when there is none."""
        address = address_of(request.address)
        for row in await self._limits().pause_warmup(address, request.provider, paused=True):
            yield row

    async def go_on(self, request: WarmupContinueRequest) -> AsyncIterator[Row]:
        """A row for each schedule. Raises LocalError when there is none."""
        address = address_of(request.address)
        for row in await self._limits().pause_warmup(address, request.provider, paused=False):
            yield row

    async def shaping(self, request: ShapingRequest) -> AsyncIterator[Row]:
        """A row for each address and provider where something is limited, under way, or was refused lately.

        Those come first that need attention. Raises LocalError when no relay is running, UnknownName.
        """
        egress = self._limits()
        address = request.address
        if address:
            address = known_name(egress, "address", address_of(address))
        rows = egress.rows(request.provider, address, PATHS_MAX)
        if request.provider and not rows:
            known_name(egress, "provider", request.provider)
        for row in sorted(rows, key=attention):
            yield row

    async def end_pace(self, request: ShapingEndRequest) -> AsyncIterator[Row]:
        """One row with ``provider``, ``address`` or ``pool``, and ``ended``, what was. Raises LocalError if there is nothing to end."""
        if bool(request.address) == bool(request.pool):
            raise LocalError("an address or a pool is expected")
        if request.pool:
            yield await self._limits().end_reroute(request.provider, request.pool)
        else:
            yield await self._limits().end_pace(request.provider, address_of(request.address))
