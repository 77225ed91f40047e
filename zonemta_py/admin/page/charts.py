"""What the charts of the page show: samples of all zones, every ten seconds for six hours. In memory only."""

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterator

from zonemta_py.core import clock
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.census import TOTAL
from zonemta_py.queue.queue import Queue

EVERY_S = 10.0
KEPT = 6 * 360  # samples
ZONES_MAX = 100  # with charts of their own
POINTS_MAX = 360  # of an answer
ALL = ""  # the name of what is summed over all zones
COUNTED = ("accepted", "delivered", "deferred", "bounced")  # per second
_KINDS = {
    OutcomeKind.DELIVERED: "delivered",
    OutcomeKind.DEFERRED: "deferred",
    OutcomeKind.BOUNCED: "bounced",
    OutcomeKind.EXPIRED: "bounced",
}

Totals = dict[str, Counter[str]]  # recipients since the start by COUNTED, by zone


class _Series:
    """A column for each of COUNTED, and ``queued``."""

    def __init__(self, length: int) -> None:
        self.columns = {name: array("f", bytes(4 * length)) for name in (*COUNTED, "queued")}


class Charts:
    """Samples the counters of ``queue``."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._times_ms = array("q")
        self._series: dict[str, _Series] = {}
        self._before = self._totals()
        self._sampled_s = clock.monotonic_s()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take the first sample in EVERY_S."""
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._turn)

    def stop(self) -> None:
        """Take no more samples."""
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        self.start()
        self.sample()

    def sample(self) -> None:
        """Add a sample: what was counted since the last one."""
        now_s, totals = clock.monotonic_s(), self._totals()
        span_s = max(0.001, now_s - self._sampled_s)
        queued = {zone: row[TOTAL] for zone, row in self._queue.census.zones().items()}
        queued[ALL] = sum(queued.values())
        for zone in (*totals, *queued):
            if zone not in self._series and len(self._series) <= ZONES_MAX:
                self._series[zone] = _Series(len(self._times_ms))
        for zone, series in self._series.items():
            new, old = totals.get(zone, Counter()), self._before.get(zone, Counter())
            for name in COUNTED:
                series.columns[name].append((new[name] - old[name]) / span_s)
            series.columns["queued"].append(queued.get(zone, 0))
        self._times_ms.append(clock.now_ms())
        self._before, self._sampled_s = totals, now_s
        for column in self._columns():
            del column[:-KEPT]

    def _columns(self) -> Iterator["array[float] | array[int]"]:
        yield self._times_ms
        for series in self._series.values():
            yield from series.columns.values()

    def _totals(self) -> Totals:
        traffic, found = self._queue.traffic, {ALL: Counter[str]()}
        for zone, count in traffic.accepted.items():
            for name in (zone, ALL):
                found.setdefault(name, Counter())["accepted"] += count
        for (zone, kind, _), count in traffic.outcomes.items():
            if kind in _KINDS:
                for name in (zone, ALL):
                    found.setdefault(name, Counter())[_KINDS[kind]] += count
        return found

    def series(self, zone: str, minutes: int) -> dict[str, list[float]]:
        """``time_s`` (unix), and a column for each of COUNTED and ``queued``, means of at most POINTS_MAX steps."""
        length = min(len(self._times_ms), max(1, round(minutes * 60 / EVERY_S)))
        found = self._series.get(zone)
        if found is None or not length:
            return {"time_s": []}
        step = -(-length // POINTS_MAX)
        starts = range(len(self._times_ms) - length, len(self._times_ms), step)
        rows: dict[str, list[float]] = {"time_s": [self._times_ms[at] / 1000 for at in starts]}
        for name, column in found.columns.items():
            means = ((part := column[at : at + step], sum(part) / len(part))[1] for at in starts)
            rows[name] = [round(mean, 2) for mean in means]
        return rows
