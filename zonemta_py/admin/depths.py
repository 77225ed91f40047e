"""How many recipients are in each state of an operator's view: the census, and what only a running relay knows.

Of those that wait on disk, workers hold some (*in flight*), others wait for a destination that does not answer (*unreachable*),
or for the end of what an operator has suspended (*suspended*).
"""

from collections.abc import Callable, Collection, Iterable

from zonemta_py.core.model import AGES_MIN
from zonemta_py.queue.census import AGE_SLOT_MS, TOTAL, Census, Row
from zonemta_py.queue.format.records import RecipientState
from zonemta_py.queue.ready.windows import ReadyWindows

Suspended = Callable[[str], Collection[str] | None]


def none_suspended(zone: str) -> Collection[str]:
    """Of a zone in which no operator has suspended anything."""
    return ()


def depth_of(row: Row, in_flight: int, unreachable: int, suspended: int) -> dict[str, int]:
    """A number for each of STATES. ``unreachable`` of those that wait and are not in flight, ``suspended`` of the rest."""
    waiting = max(0, row[RecipientState.WAITING] - in_flight)
    unreachable = min(waiting, unreachable)
    suspended = min(waiting - unreachable, suspended)
    return {
        "waiting": waiting - unreachable - suspended,
        "in_flight": in_flight,
        "unreachable": unreachable,
        "suspended": suspended,
        "deferred": row[RecipientState.DEFERRED],
        "not_before": row[RecipientState.NOT_BEFORE],
        "held": row[RecipientState.HELD],
    }


class Depths:
    """The depths of one moment. ``suspended``: the destinations of a zone that an operator has suspended; None: all."""

    def __init__(
        self, census: Census, windows: ReadyWindows, suspended: Suspended = none_suspended
    ) -> None:
        self._census = census
        self._windows = windows
        self._suspended = suspended

    def zone(self, zone: str) -> dict[str, int]:
        """A number of recipients for each of STATES."""
        window = self._windows.zone(zone)
        leased, whole = window.leased(), self._census.zones().get(zone, [0] * (TOTAL + 1))

        def waiting(names: Iterable[str]) -> int:
            counts = (
                self._census.destination(zone, name)[RecipientState.WAITING] - leased[name]
                for name in names
            )
            return sum(max(0, count) for count in counts)

        names, suspended = set(window.suspended()), self._suspended(zone)
        of_operator = whole[TOTAL] if suspended is None else waiting(set(suspended) - names)
        return depth_of(whole, leased.total(), waiting(names), of_operator)

    def destinations(self, zone: str, most: int, named: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """A number for each of STATES, for the destinations with most recipients, and ``named`` ones that have any."""
        window = self._windows.zone(zone)
        leased = window.leased()
        rows = dict(self._census.largest(zone, most))
        rows.update({name: self._census.destination(zone, name) for name in named})
        suspended = self._suspended(zone)
        return {
            name: depth_of(
                row,
                leased[name],
                row[TOTAL] if window.is_suspended(name) else 0,
                row[TOTAL] if suspended is None or name in suspended else 0,
            )
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
