"""How many recipients are in each state of an operator's view: the census, and what only a running relay knows.

Of those that wait on disk, workers hold some (*in flight*), others wait for a destination that does not answer (*suspended*),
or for the end of what an operator has suspended (*stopped*).
"""

from collections.abc import Callable, Collection, Iterable

from zonemta_py.core.model import AGES_MIN
from zonemta_py.queue.census import AGE_SLOT_MS, TOTAL, Census, Row
from zonemta_py.queue.format.records import RecipientState
from zonemta_py.queue.ready.windows import ReadyWindows

Stopped = Callable[[str], Collection[str] | None]


def none_stopped(zone: str) -> Collection[str]:
    """Of a zone in which no operator has suspended anything."""
    return ()


def depth_of(row: Row, in_flight: int, suspended: int, stopped: int) -> dict[str, int]:
    """A number for each of STATES. ``suspended`` of those that wait and are not in flight, ``stopped`` of the rest."""
    waiting = max(0, row[RecipientState.WAITING] - in_flight)
    suspended = min(waiting, suspended)
    stopped = min(waiting - suspended, stopped)
    return {
        "waiting": waiting - suspended - stopped,
        "in_flight": in_flight,
        "suspended": suspended,
        "stopped": stopped,
        "deferred": row[RecipientState.DEFERRED],
        "not_before": row[RecipientState.NOT_BEFORE],
        "held": row[RecipientState.HELD],
    }


class Depths:
    """The depths of one moment. ``stopped``: the destinations of a zone that an operator has stopped; None: all."""

    def __init__(self, census: Census, windows: ReadyWindows, stopped: Stopped = none_stopped) -> None:
        self._census = census
        self._windows = windows
        self._stopped = stopped

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

        names, stopped = set(window.suspended()), self._stopped(zone)
        of_operator = whole[TOTAL] if stopped is None else waiting(set(stopped) - names)
        return depth_of(whole, leased.total(), waiting(names), of_operator)

    def destinations(self, zone: str, most: int, named: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """A number for each of STATES, for the destinations with most recipients, and ``named`` ones that have any."""
        window = self._windows.zone(zone)
        leased = window.leased()
        rows = dict(self._census.largest(zone, most))
        rows.update({name: self._census.destination(zone, name) for name in named})
        stopped = self._stopped(zone)
        return {
            name: depth_of(
                row,
                leased[name],
                row[TOTAL] if window.is_suspended(name) else 0,
                row[TOTAL] if stopped is None or name in stopped else 0,
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
