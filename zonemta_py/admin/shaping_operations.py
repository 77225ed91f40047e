"""The operation that shows from which address mail leaves to which provider, what is allowed there, and why."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from zonemta_py.admin.requests import Row, ShapingRequest


class EgressView(Protocol):
    """Sending of a running relay, as an operator sees it. Times are unix ms, 0 for none."""

    def rows(self) -> Sequence[Row]:
        """Each way from an address to a provider, see ``egress_view.path_row``."""

    def warmup_rows(self) -> Sequence[Row]:
        """Each schedule of an address that is new, see ``egress_view.warmup_row``."""


class ShapingOperations:
    """A part of ``Operations``. ``egress``: None when no relay runs."""

    def __init__(self, egress: EgressView | None) -> None:
        self._egress = egress

    async def shaping(self, request: ShapingRequest) -> AsyncIterator[Row]:
        """A row for each way, those first that need attention. No row when no relay runs."""
        for row in self.ways(request)[: request.limit]:
            yield row

    def ways(self, request: ShapingRequest) -> list[Row]:
        """All rows, whatever the limit."""
        rows = self._egress.rows() if self._egress is not None else ()
        wanted = [
            row
            for row in rows
            if request.provider in (None, row["provider"]) and request.address in (None, row["address"])
        ]
        return sorted(wanted, key=attention)


def attention(row: Row) -> tuple[int, int, str, str]:
    """The place of a way in a list: first what sends nothing, then what sends less, then the others by attempts.

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
    """How little a way needs attention: 0 where an operator has stopped it, 6 where all is well."""
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
