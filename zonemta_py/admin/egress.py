"""The operations on warm-ups of addresses, and on what replies have changed."""

from collections.abc import AsyncIterator

from zonemta_py.admin.operation import Answer, Operations, operation
from zonemta_py.admin.relay_port import EgressView
from zonemta_py.admin.requests import (
    Row,
    ShapingEndRequest,
    ShapingRequest,
    WarmupContinueRequest,
    WarmupPauseRequest,
    WarmupRequest,
)
from zonemta_py.admin.suspensions import address_of, known_name
from zonemta_py.core.codec import UNSET, Unset
from zonemta_py.core.errors import LocalError

# ---- Paths from an address to a provider, as ``delivery.egress_operator`` makes their rows: which of them needs attention. Pure.


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
    """True if the controller, or a rule, allows less than the limits."""
    return row["pace_per_min"] is not None


# ---- egress operations

PATHS_MAX = 5000  # that a command, or the list of the page, has; each takes the relay 15 to 50 µs


class RateRow(Answer, frozen=True):
    """A rate such as ``100/1h``, and how much of it is used."""

    rate: str
    used: int
    of: int


class WarmupRow(Answer, frozen=True):
    """A schedule of an address that is new; ``provider`` is empty for all mail.

    ``step`` of ``steps``; ``allowed``, ``sent`` and ``left`` recipients today (null: no limit any more). ``late_days``: with those of a
    pause.
    """

    address: str
    provider: str
    begins: str
    step: int
    steps: int
    allowed: int | None
    sent: int
    left: int | None
    late_days: int
    paused: bool


class RerouteRow(Answer, frozen=True):
    """The mail of ``pool`` leaves from the pool ``to``, until then (unix ms)."""

    pool: str
    to: str
    until_ms: int


class PathRow(Answer, frozen=True):
    """From an address to a provider, or to ``all``: what is under way, and what limits it. Null: no limit, or nothing is lowered.

    ``sessions`` of at most ``sessions_max``, ``idle`` ones among them; of all addresses ``provider_sessions``. ``rates`` of messages
    and ``connect_rates`` of connections. The controller, or a rule, allows ``pace_sessions`` and ``pace_rates``: ``pace_per_min``
    messages instead of ``full_per_min``, and instead of ``full_sessions``; ``paused_until_ms`` (0: not), and why, ``cause``.
    ``attempts`` and ``refused`` lately, ``last_classes`` of refusals. ``suspended``: why an operator did, or empty.
    ``waiting``: destinations that wait for the limit.
    """

    provider: str
    address: str
    sessions: int
    idle: int
    sessions_max: int | None
    rates: list[RateRow]
    connect_rates: list[RateRow]
    pace_sessions: int | None
    pace_rates: list[RateRow]
    paused_until_ms: int
    cause: str
    pace_per_min: float | None
    full_per_min: float | None
    full_sessions: int | None
    provider_sessions: int
    provider_sessions_max: int | None
    attempts: int
    refused: int
    last_classes: list[str]
    suspended: str
    waiting: int
    warmup: list[WarmupRow]
    reroutes: list[RerouteRow]


class EndedRow(Answer, frozen=True, kw_only=True):
    """The path, or the pool, that is free again, and what it ``ended``: the pace, or the pool from which its mail left."""

    provider: str
    address: str | Unset = UNSET
    pool: str | Unset = UNSET
    ended: str


def _limits(on: Operations) -> EgressView:
    if on.relay.egress is None:
        raise LocalError("no relay is running")
    return on.relay.egress


@operation("warmup", rows=(WarmupRow,))
async def warmup(on: Operations, request: WarmupRequest) -> AsyncIterator[Row]:
    """Yield a row for each schedule. Raises LocalError for an address that has none."""
    address = address_of(request.address) if request.address else ""
    found = [row for row in _limits(on).warmups() if address in ("", row["address"])]
    if address and not found:
        raise LocalError(f"{address} has no warm-up; see warmup.file")
    for row in found:
        yield row


@operation("warmup/pause", rows=(WarmupRow,))
async def pause_warmup(on: Operations, request: WarmupPauseRequest) -> AsyncIterator[Row]:
    """Yield a row for each schedule. Raises LocalError when there is none."""
    address = address_of(request.address)
    for row in await _limits(on).pause_warmup(address, request.provider, paused=True):
        yield row


@operation("warmup/continue", rows=(WarmupRow,))
async def continue_warmup(on: Operations, request: WarmupContinueRequest) -> AsyncIterator[Row]:
    """Yield a row for each schedule. Raises LocalError when there is none."""
    address = address_of(request.address)
    for row in await _limits(on).pause_warmup(address, request.provider, paused=False):
        yield row


@operation("shaping", rows=(PathRow,))
async def shaping(on: Operations, request: ShapingRequest) -> AsyncIterator[Row]:
    """Yield a row for each address and provider where something is limited, under way, or was refused lately.

    Those come first that need attention. Raises LocalError when no relay is running, UnknownName.
    """
    egress = _limits(on)
    address = request.address
    if address:
        address = known_name(egress, "address", address_of(address))
    rows = egress.rows(request.provider, address, PATHS_MAX)
    if request.provider and not rows:
        known_name(egress, "provider", request.provider)
    for row in sorted(rows, key=attention):
        yield row


@operation("shaping/clear", rows=(EndedRow,))
async def clear_shaping(on: Operations, request: ShapingEndRequest) -> AsyncIterator[Row]:
    """Yield one row. Raises LocalError if there is nothing to end."""
    if bool(request.address) == bool(request.pool):
        raise LocalError("an address or a pool is expected")
    if request.pool:
        yield await _limits(on).end_reroute(request.provider, request.pool)
    else:
        yield await _limits(on).end_pace(request.provider, address_of(request.address))
