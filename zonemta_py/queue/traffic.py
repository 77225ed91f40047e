"""Attempts of the last minutes, and since the start: by zone, destination, source address and tenant.

State of ``RecentCounts``: three levels of steps (10 s, 1 min, 5 min), each with a present step and those that have ended::

    a row of the present ten seconds ─ they are over ─▶ added to the present minute ─▶ added to the present five minutes

Invariants:

- Each event is added to one row of the finest level for each name, so a window costs no memory for each event. Windows of 1, 5 and
  60 minutes have the steps that have ended and the present one: they cover up to a step more, which ``covered_s`` says.
- A step has about NAMES_MAX names at most; further ones are counted together as OTHER, so that sums stay exact.
- Times are monotonic seconds; steps without any event are made up for when the next one comes.
- Everything is in memory: counters begin at 0 with each start.

Callers: ``Queue`` adds what is accepted, settled and rejected, ``Worker`` the sessions that were opened; ``admin.views`` reads rates,
``admin.metrics`` the counts since the start.

Example: ``traffic.rates(traffic.zones, 5)["default"].counts["delivered"]`` is the number of recipients of about five minutes.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.counters import Histogram
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.queue.outcome import Outcome

COUNTED = ("attempts", "delivered", "deferred", "bounced", "expired", "lapsed", "sessions")
TIMES_MS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000)
ROW_LENGTH = len(COUNTED) + len(TIMES_MS) + 1
ATTEMPTS, DELIVERED, DEFERRED, BOUNCED = 0, 1, 2, 3
SESSIONS, TIMES = COUNTED.index("sessions"), len(COUNTED)
SIZES = tuple(1024 * 4**power for power in range(9))
ATTEMPTS_S = tuple(each / 1000 for each in TIMES_MS)
AGES_S = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 86_400, 2 * 86_400)
WINDOWS_MIN = (1, 5, 60)
NAMES_MAX = 1000  # of destinations, source addresses and tenants, each; the others are counted as OTHER
OTHER = "(other)"
SYSTEM = "(the system's choice)"  # a source address that no pool sets

_KINDS = {
    OutcomeKind.DELIVERED: 1, OutcomeKind.DEFERRED: 2, OutcomeKind.BOUNCED: 3, OutcomeKind.EXPIRED: 4,
    OutcomeKind.LAPSED: 5, OutcomeKind.REQUEUED: 2,
}  # fmt: skip

Row = list[int]  # COUNTED, then attempts by time: up to each of TIMES_MS, and longer
Rows = dict[str, Row]


class TrafficRate(NamedTuple):
    """The counts of a window of ``covered_s`` seconds; p50 and p95 of the times of attempts (ms, 0: none)."""

    counts: dict[str, int]
    covered_s: float
    p50_ms: int
    p95_ms: int


class _Level:
    """Steps of ``step_s``: those that have ended, at most ``most``, and the present one."""

    def __init__(self, step_s: float, most: int, now_s: float) -> None:
        self.step_s = step_s
        self.ended: deque[Rows] = deque(maxlen=most)
        self.rows: Rows = {}
        self.began_s = now_s


class RecentCounts:
    """Rows of names for the windows of WINDOWS_MIN."""

    def __init__(self, now_s: float) -> None:
        self._levels = [_Level(10.0, 6, now_s), _Level(60.0, 5, now_s), _Level(300.0, 12, now_s)]
        self._turns_s = now_s + 10.0
        self._began_s = now_s

    def row(self, name: str, now_s: float) -> Row:
        """The row to add to."""
        if now_s >= self._turns_s:
            self._turn(now_s)
        rows = self._levels[0].rows
        found = rows.get(name)
        if found is None:
            found = _new_row(rows, name)
        return found

    def _turn(self, now_s: float) -> None:
        """End the steps that are over."""
        finest = self._levels[0]
        missed = int((now_s - finest.began_s) // finest.step_s) - 1
        self._end(0, finest.began_s + finest.step_s)
        for _ in range(min(missed, 400)):  # idle steps; after more than an hour of them all is empty
            self._end(0, finest.began_s + finest.step_s)
        if missed > 400:
            finest.began_s += (missed - 400) * finest.step_s
            for longer in self._levels[1:]:
                longer.began_s = finest.began_s
        self._turns_s = finest.began_s + finest.step_s

    def _end(self, number: int, ended_s: float) -> None:
        level = self._levels[number]
        level.ended.append(level.rows)
        if number + 1 < len(self._levels):
            longer = self._levels[number + 1]
            _add_all(longer.rows, level.rows)
            if ended_s - longer.began_s >= longer.step_s:
                self._end(number + 1, ended_s)
        level.rows = {}
        level.began_s = ended_s

    def window(self, minutes: int, now_s: float) -> tuple[Rows, float]:
        """The rows of the last ``minutes``, one of WINDOWS_MIN, and the seconds that they cover."""
        if now_s >= self._turns_s:
            self._turn(now_s)
        number = WINDOWS_MIN.index(minutes)
        level = self._levels[number]
        found: Rows = {}
        for rows in (*level.ended, *(each.rows for each in self._levels[: number + 1])):
            _add_all(found, rows)
        began_s = level.began_s - len(level.ended) * level.step_s
        return found, now_s - max(self._began_s, began_s)


def _new_row(rows: Rows, name: str) -> Row:
    if len(rows) >= NAMES_MAX:
        return rows.setdefault(OTHER, [0] * ROW_LENGTH)
    return rows.setdefault(name, [0] * ROW_LENGTH)


def _add_all(to: Rows, rows: Rows) -> None:
    for name, row in rows.items():
        found = to.get(name) or _new_row(to, name)
        for place, count in enumerate(row):
            found[place] += count


class Traffic:
    """The attempts of a queue.

    Since the start: ``outcomes``, recipients by zone, outcome and class of the reply (2, 4, 5; 0 without one);
    ``attempt_s``, how long attempts took, and ``delivery_s``, from acceptance to delivery, by zone; ``messages`` accepted
    and their ``sizes``; ``accepted``, recipients by zone; ``rejected``, by command and code of the reply; ``classes``,
    recipients that were not delivered, by zone, outcome and class; ``failures``, the
    last reply that was no success, by destination.
    """

    def __init__(self, now_s: Callable[[], float] = monotonic_s) -> None:
        self._now_s = now_s
        began_s = now_s()
        self.zones = RecentCounts(began_s)
        self.destinations = RecentCounts(began_s)
        self.sources = RecentCounts(began_s)
        self.tenants = RecentCounts(began_s)
        self.outcomes: dict[tuple[str, OutcomeKind, int], int] = {}
        self.sessions: Counter[str] = Counter()
        self.attempt_s: dict[str, Histogram] = {}
        self.delivery_s: dict[str, Histogram] = {}
        self.messages = 0
        self.sizes = Histogram(SIZES)
        self.accepted: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.rejected: Counter[tuple[str, int]] = Counter()
        self.classes: Counter[tuple[str, OutcomeKind, str]] = Counter()

    def accept(self, size_bytes: int, zones: Iterable[str]) -> None:
        """A message was accepted; ``zones``: that of each of its recipients."""
        self.messages += 1
        self.sizes.add(size_bytes)
        self.accepted.update(zones)

    def settled(
        self, zone: str, destination: str, tenant: str, outcomes: Sequence[Outcome], age_s: float
    ) -> None:
        """A lease has ended with ``outcomes``. ``age_s``: of the message."""
        now_s, totals, attempted = self._now_s(), self.outcomes, 0
        kinds: dict[int, int] = {}
        for found, count in _grouped(outcomes):
            kind = _KINDS[found.kind]
            kinds[kind] = kinds.get(kind, 0) + count
            key = zone, found.kind, found.attempt.code // 100
            totals[key] = totals.get(key, 0) + count
            attempted += count * found.attempted
            if found.attempt.reply_class:
                self.classes[zone, found.kind, found.attempt.reply_class] += count
        attempt = outcomes[0].attempt
        rows = [self.zones.row(zone, now_s), self.destinations.row(destination, now_s)]
        if _has_address(attempt):
            rows.append(self.sources.row(attempt.source_ip or SYSTEM, now_s))
        if tenant:
            rows.append(self.tenants.row(tenant, now_s))
        for kind, count in kinds.items():
            for row in rows:
                row[kind] += count
        if attempted:
            time = TIMES + bisect_left(TIMES_MS, attempt.duration_ms)
            for row in rows:
                row[ATTEMPTS] += attempted
                row[time] += 1
            self._histogram(self.attempt_s, zone, ATTEMPTS_S).add(attempt.duration_ms / 1000)
        if DEFERRED in kinds or BOUNCED in kinds:
            self._fail(destination, outcomes)
        if DELIVERED in kinds:
            self._histogram(self.delivery_s, zone, AGES_S).add(age_s, kinds[DELIVERED])

    def _fail(self, destination: str, outcomes: Sequence[Outcome]) -> None:
        """Keep the reply; those of the destinations that failed longest ago are forgotten."""
        failed = next(each for each in outcomes if each.kind is not OutcomeKind.DELIVERED)
        self.failures.pop(destination, None)
        if len(self.failures) >= NAMES_MAX:
            del self.failures[next(iter(self.failures))]
        attempt = failed.attempt
        code = (str(attempt.code), attempt.status) if attempt.code else ()
        self.failures[destination] = " ".join((*code, attempt.text))

    @staticmethod
    def _histogram(histograms: dict[str, Histogram], zone: str, bounds: tuple[float, ...]) -> Histogram:
        found = histograms.get(zone)
        if found is None:
            found = histograms[zone] = Histogram(bounds)
        return found

    def opened(self, zone: str, destination: str, attempt: Attempt | None, sessions: int) -> None:
        """``sessions`` were opened for ``attempt``."""
        now_s = self._now_s()
        self.sessions[zone] += sessions
        self.zones.row(zone, now_s)[SESSIONS] += sessions
        self.destinations.row(destination, now_s)[SESSIONS] += sessions
        if attempt is not None and _has_address(attempt):
            self.sources.row(attempt.source_ip or SYSTEM, now_s)[SESSIONS] += sessions

    def rates(self, what: RecentCounts, minutes: int) -> dict[str, TrafficRate]:
        """The rates of the last ``minutes``, one of WINDOWS_MIN, by name."""
        rows, covered_s = what.window(minutes, self._now_s())
        return {name: rate_of(row, covered_s) for name, row in rows.items()}


def _has_address(attempt: Attempt) -> bool:
    """True if it was made over SMTP: from a source address that it names, or the one that the system chose."""
    return bool(attempt.source_ip or attempt.mx_ip)


def _grouped(outcomes: Sequence[Outcome]) -> Sequence[tuple[Outcome, int]]:
    """Outcomes in a row that share their attempt, as one and their number."""
    first, count = outcomes[0], 0
    if len(outcomes) == 1:
        return ((first, 1),)
    found = []
    for outcome in outcomes:
        if outcome.attempt is not first.attempt or outcome.kind is not first.kind:
            found.append((first, count))
            first, count = outcome, 0
        count += 1
    found.append((first, count))
    return found


def rate_of(row: Row, covered_s: float) -> TrafficRate:
    """The row as a TrafficRate."""
    return TrafficRate(
        dict(zip(COUNTED, row, strict=False)), covered_s, percentile(row, 0.5), percentile(row, 0.95)
    )


def percentile(row: Row, part: float) -> int:
    """The upper end of the step of TIMES_MS in which that part of the attempts had ended; 0 without attempts."""
    times = row[TIMES:]
    wanted, seen = sum(times) * part, 0
    for upto, count in zip((*TIMES_MS, TIMES_MS[-1]), times, strict=True):
        seen += count
        if count and seen >= wanted:
            return upto
    return 0
