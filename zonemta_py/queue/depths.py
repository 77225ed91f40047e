"""How many recipients are in each state of an operator's view: the census, and what only a running relay knows.

Of those that wait on disk, workers hold some (*in flight*), and others wait for a suspended destination.
"""

from collections.abc import Iterable

from zonemta_py.core.model import AGES_MIN
from zonemta_py.queue.census import AGE_SLOT_MS, TOTAL, Census, Row
from zonemta_py.queue.format.records import RecipientState
from zonemta_py.queue.windows import ReadyWindows


def depth_of(row: Row, in_flight: int, suspended: int) -> dict[str, int]:
    """A number for each of STATES. ``suspended`` of those that wait and are not in flight."""
    waiting = max(0, row[RecipientState.WAITING] - in_flight)
    suspended = min(waiting, suspended)
    return {
        "waiting": waiting - suspended,
        "in_flight": in_flight,
        "suspended": suspended,
        "deferred": row[RecipientState.DEFERRED],
        "not_before": row[RecipientState.NOT_BEFORE],
        "held": row[RecipientState.HELD],
    }


class Depths:
    """The depths of one moment."""

    def __init__(self, census: Census, windows: ReadyWindows) -> None:
        self._census = census
        self._windows = windows

    def zone(self, zone: str) -> dict[str, int]:
        """A number of recipients for each of STATES."""
        window = self._windows.zone(zone)
        leased = window.leased()
        suspended = sum(
            max(0, self._census.destination(zone, name)[RecipientState.WAITING] - leased[name])
            for name in window.suspended()
        )
        return depth_of(self._census.zones().get(zone, [0] * (TOTAL + 1)), leased.total(), suspended)

    def destinations(self, zone: str, most: int, named: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """A number for each of STATES, for the destinations with most recipients, and ``named`` ones that have any."""
        window = self._windows.zone(zone)
        leased = window.leased()
        rows = dict(self._census.largest(zone, most))
        rows.update({name: self._census.destination(zone, name) for name in named})
        return {
            name: depth_of(row, leased[name], row[TOTAL] if window.is_suspended(name) else 0)
            for name, row in rows.items()
            if row[TOTAL]
        }

    def oldest_ms(self, zone: str) -> int | None:
        """When the oldest message of ``zone`` was accepted (unix ms), AGE_SLOT_MS too early at most."""
        slots = [slot for name, slot in self._census.ages() if name == zone]
        return min(slots) * AGE_SLOT_MS if slots else None

    def ages(self, now_ms: int) -> dict[str, list[int]]:
        """Recipients by zone and age: up to each of AGES_MIN, and older."""
        found: dict[str, list[int]] = {}
        for (zone, slot), count in self._census.ages().items():
            age_min = (now_ms - slot * AGE_SLOT_MS) // 60_000
            number = next((n for n, upto in enumerate(AGES_MIN) if age_min <= upto), len(AGES_MIN))
            found.setdefault(zone, [0] * (len(AGES_MIN) + 1))[number] += count
        return found
