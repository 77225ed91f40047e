"""The charts of a report: attempts by hour, day or week as bars, and small charts of the busiest providers. Geometry only; templates draw it.

The parts of a chart are paths in a box of ``width`` units by HEIGHT pixels that the browser stretches to the width of the screen; axes
are in shares of that box, so that text keeps its size.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

# ---- Attempts by hour, day or week of UTC: which of them a chart shows, and the sums of each.

HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(weeks=1)
HOURS_MAX = 10 * DAY  # the longest period with a bar for each hour
DAYS_MAX = 400 * DAY  # the longest with a bar for each day
TREND_DAYS_MAX = 120 * DAY  # the longest with a point for each day in a small chart


@dataclass(frozen=True, slots=True)
class AttemptCounts:
    """Attempts by result; ``failed``: bounced or expired."""

    delivered: int = 0
    deferred: int = 0
    failed: int = 0

    def __add__(self, other: "AttemptCounts") -> "AttemptCounts":
        return AttemptCounts(
            self.delivered + other.delivered,
            self.deferred + other.deferred,
            self.failed + other.failed,
        )

    @property
    def attempts(self) -> int:
        """The number of attempts with any outcome."""
        return self.delivered + self.deferred + self.failed

    @property
    def finals(self) -> int:
        """Those that were the last attempt of a recipient."""
        return self.delivered + self.failed


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From ``begins`` until before ``ends``, both in UTC."""

    begins: datetime
    ends: datetime

    @property
    def length(self) -> timedelta:
        """The time from begin to end, more than zero."""
        return self.ends - self.begins

    def widened(self, unit: timedelta) -> "TimeRange":
        """The whole hours, days or weeks that it touches."""
        last = begin_of(self.ends - timedelta(microseconds=1), unit)
        return TimeRange(begin_of(self.begins, unit), last + unit)

    def share(self, time: datetime) -> float:
        """The place of ``time``: 0 at the begin, 1 at the end."""
        return (time - self.begins) / self.length


Counted = Iterable[tuple[datetime, AttemptCounts]]


def bar_unit(period: TimeRange) -> timedelta:
    """HOUR, DAY or WEEK for the large chart."""
    if period.length <= HOURS_MAX:
        return HOUR
    return DAY if period.length <= DAYS_MAX else WEEK


def trend_unit(period: TimeRange) -> timedelta:
    """DAY or WEEK for the small charts."""
    return DAY if period.length <= TREND_DAYS_MAX else WEEK


def begin_of(time: datetime, unit: timedelta) -> datetime:
    """The begin of the hour, day or week (Monday) that contains ``time``."""
    if unit == HOUR:
        return time.replace(minute=0, second=0, microsecond=0)
    day = datetime(time.year, time.month, time.day, tzinfo=UTC)
    return day - timedelta(days=day.weekday()) if unit == WEEK else day


def summed(counted: Counted, period: TimeRange, unit: timedelta) -> list[AttemptCounts]:
    """The sums of each hour, day or week of ``period``, which is a range of whole ones; zeros where nothing was counted."""
    sums = [AttemptCounts()] * round(period.length / unit)
    for time, counts in counted:
        index = (time - period.begins) // unit
        sums[index] += counts
    return sums


# ---- Numbers, shares and times as the page writes them. A missing value is a hyphen.

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MISSING = "-"


def number(value: int | None) -> str:
    """The number with commas, as in 1,234,567; MISSING for None."""
    return MISSING if value is None else f"{value:,}"


def rounded(value: int) -> str:
    """Of at most nine characters; exact below ten million."""
    for letter, unit in (("G", 1_000_000_000), ("M", 1_000_000)):
        if value >= 10 * unit:
            return f"{value / unit:,.1f}{letter}"
    return number(value)


def short_number(value: int) -> str:
    """For an axis: 950, 20k, 1.5M. Exact for the values of ``value_ticks``."""
    for letter, unit in (("G", 1_000_000_000), ("M", 1_000_000), ("k", 1000)):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return str(value)


def percent(share: float | None) -> str:
    """Of a share between 0 and 1. Only an exact 0 is written "0.0 %", only an exact 1 "100.0 %"."""
    if share is None:
        return MISSING
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %"


def per_thousand(count: int, delivered: int | None) -> str:
    """``count`` for each 1,000 ``delivered``."""
    return f"{1000 * count / delivered:.2f}" if delivered else MISSING


def duration(ms: int | None) -> str:
    """In the largest unit that fits: 1.5 h."""
    if ms is None:
        return MISSING
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= unit_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{ms} ms"


def moment(time: datetime) -> str:
    """Date and minute: 2026-11-30 09:00."""
    return f"{time:%Y-%m-%d %H:%M}"


def day_and_month(time: datetime) -> str:
    """30 Nov. Not by ``strftime``, which depends on the locale."""
    return f"{time.day} {MONTHS[time.month - 1]}"


def bucket_label(time: datetime, unit: timedelta) -> str:
    """The hour, day or week that begins at ``time``."""
    if unit < timedelta(days=1):
        return f"{day_and_month(time)} {time:%H:%M}"
    return day_and_month(time) if unit == timedelta(days=1) else f"week of {time:%Y-%m-%d}"


# ---- The axes of charts: round numbers, and times that are the begin of an hour, day, week, month or year.

VALUE_TICKS_MAX = 5  # above zero
TIME_TICKS_MAX = 9
MONTH, YEAR = timedelta(days=30.4), timedelta(days=365.2)  # for the choice of a step only
MONDAY = 1  # the remainder of the ordinal of a Monday divided by 7

# The steps of an axis of time: how long one is, and how many hours, days, months or years.
_HOURS = tuple((n * HOUR, n) for n in (1, 2, 3, 6, 12))
_DAYS = tuple((n * DAY, n) for n in (1, 2, 7, 14))
_MONTHS = tuple((n * MONTH, n) for n in (1, 2, 3, 6))
_YEARS = tuple((n * YEAR, n) for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))


@dataclass(frozen=True, slots=True)
class AxisTick:
    """``at``: its place on the axis, 0 at the begin and 1 at the end."""

    at: float
    label: str


def value_ticks(most: int) -> list[AxisTick]:
    """From 0 to a round number that is at least ``most``; the steps are 1, 2 or 5 times a power of ten."""
    step = _value_step(most)
    count = axis_end(most) // step
    return [AxisTick(n / count, short_number(n * step)) for n in range(count + 1)]


def axis_end(most: int) -> int:
    """The value at the end of the axis of ``value_ticks``."""
    step = _value_step(most)
    return -(-max(most, 1) // step) * step


def _value_step(most: int) -> int:
    return round_up(-(-max(most, 1) // VALUE_TICKS_MAX))


def round_up(value: int) -> int:
    """The smallest 1, 2 or 5 times a power of ten that is at least ``value``, which is positive."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= value:
                return digit * power
        power *= 10


def time_ticks(period: TimeRange, unit: timedelta) -> list[AxisTick]:
    """At most TIME_TICKS_MAX times in ``period``, not closer than ``unit`` to each other.

    Where each bar is a day, the label of a day is below the middle of its bar.
    """
    times, is_month = _times(period, unit)
    shift = DAY / 2 if unit == DAY and not is_month else timedelta(0)
    ticks = []
    for index, time in enumerate(times):
        at = period.share(time + shift)
        if at < 1:
            ticks.append(AxisTick(at, _month(time, index) if is_month else _label(time)))
    return ticks


def _times(period: TimeRange, unit: timedelta) -> tuple[list[datetime], bool]:
    """The times, and whether each begins a month."""

    def fits(step: timedelta) -> bool:
        return step >= unit and period.length / step <= TIME_TICKS_MAX

    for length, hours in _HOURS:
        if fits(length):
            count = round(period.length / HOUR)
            every_hour = (period.begins + n * HOUR for n in range(count))
            return [time for time in every_hour if time.hour % hours == 0], False
    for length, days in _DAYS:
        if fits(length):
            offset = MONDAY if days >= 7 else 0
            found = [each for each in _days(period) if each.toordinal() % days == offset]
            return found, False
    months = next((n for length, n in _MONTHS if fits(length)), None)
    if months is None:
        months = 12 * next((n for length, n in _YEARS if fits(length)), 1000)
    firsts = (each for each in _days(period) if each.day == 1)
    return [each for each in firsts if (12 * each.year + each.month - 1) % months == 0], True


def _days(period: TimeRange) -> Iterator[datetime]:
    """Each midnight of the period."""
    begins = period.begins
    day = datetime(begins.year, begins.month, begins.day, tzinfo=UTC)
    if day < begins:
        day += DAY
    while day < period.ends:
        yield day
        day += DAY


def _label(time: datetime) -> str:
    return f"{time:%H:%M}" if time.hour else day_and_month(time)


def _month(time: datetime, index: int) -> str:
    """With the year where it begins, and at the first label."""
    name = MONTHS[time.month - 1]
    return f"{name} {time.year}" if time.month == 1 or index == 0 else name


# ---- The large chart: attempts of each hour, day or week as bars of three parts.

HEIGHT = 200  # of the box, in pixels
SLOT = 20  # units of the width for each bar and the gap behind it
GAPS_MAX = 120  # more bars than that have no gaps: each is a few pixels wide
BAR_SHARE_MAX = 0.08  # of the width, for charts with few bars
UNIT_NAMES = {HOUR: "hour", DAY: "day"}


@dataclass(frozen=True, slots=True)
class BarPart:
    """All parts of one colour. ``name``: delivered, deferred or failed. ``path``: as in the attribute d."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class BarText:
    """The text that the browser shows for a bar, which begins at ``x``."""

    x: int
    text: str


@dataclass(frozen=True, slots=True)
class BarChart:
    """``unit``: hour, day or week. ``slot``: the width of each of ``texts``."""

    unit: str
    width: int
    height: int
    slot: int
    values: Sequence[AxisTick]
    times: Sequence[AxisTick]
    parts: Sequence[BarPart]
    texts: Sequence[BarText]


def unit_name(unit: timedelta) -> str:
    """The name of a unit: hour, day or week."""
    return UNIT_NAMES.get(unit, "week")


def bar_chart(sums: Sequence[AttemptCounts], period: TimeRange, unit: timedelta) -> BarChart | None:
    """A bar for each of ``sums``, which are those of ``period`` by ``unit``. None without an attempt."""
    most = max((each.attempts for each in sums), default=0)
    if not most:
        return None
    width = SLOT * len(sums)
    bar = min(SLOT if len(sums) > GAPS_MAX else SLOT - 4, max(1, int(width * BAR_SHARE_MAX)))
    paths: dict[str, list[str]] = {"delivered": [], "deferred": [], "failed": []}
    texts = []
    for index, counts in enumerate(sums):
        if not counts.attempts:
            continue
        x = SLOT * index + (SLOT - bar) // 2
        for name, top, tall in _parts(counts, axis_end(most)):
            paths[name].append(f"M{x} {top}h{bar}v{tall}h-{bar}z")
        texts.append(
            BarText(SLOT * index, _text(counts, bucket_label(period.begins + index * unit, unit)))
        )
    return BarChart(
        unit=unit_name(unit),
        width=width,
        height=HEIGHT,
        slot=SLOT,
        values=value_ticks(most),
        times=time_ticks(period, unit),
        parts=[BarPart(name, "".join(found)) for name, found in paths.items() if found],
        texts=texts,
    )


def _parts(counts: AttemptCounts, end: int) -> Iterator[tuple[str, int, int]]:
    """Name, top and height of each part, from below. Every part that is not zero is at least a pixel high."""
    values = {name: getattr(counts, name) for name in ("delivered", "deferred", "failed")}
    heights = {name: max(1, round(value / end * HEIGHT)) for name, value in values.items() if value}
    tallest = max(heights, key=lambda name: heights[name])
    heights[tallest] -= max(0, sum(heights.values()) - HEIGHT)  # what small parts gained
    base = HEIGHT
    for name, tall in heights.items():
        base -= tall
        yield name, base, tall


def _text(counts: AttemptCounts, label: str) -> str:
    return (
        f"{label}: {number(counts.delivered)} delivered, {number(counts.deferred)} deferred, "
        f"{number(counts.failed)} failed"
    )


# ---- The small charts: attempts and rates of a provider by day or week.

TREND_HEIGHT = 32  # of a chart, in pixels
POINT = 4  # units of the width for each day or week; a point is in its middle
STEPS = 1000  # rates are compared in thousandths, so that the ends of an axis are round

Rate = Callable[[AttemptCounts], float | None]


@dataclass(frozen=True, slots=True)
class Sparkline:
    """``total``: of the whole period. ``low`` and ``high``: the ends of the axis. ``is_area``: the path is filled."""

    title: str
    name: str
    total: str
    low: str
    high: str
    path: str
    is_area: bool = False


@dataclass(frozen=True, slots=True)
class ProviderTrend:
    """``lines`` are paths in a box of ``width`` units by ``height`` pixels. ``unit``: day or week."""

    provider: str
    unit: str
    width: int
    height: int
    lines: Sequence[Sparkline]


def delivery_rate(counts: AttemptCounts) -> float | None:
    """Of the recipients with a final outcome; None without one."""
    return counts.delivered / counts.finals if counts.finals else None


def bounce_rate(counts: AttemptCounts) -> float | None:
    """Of the recipients with a final outcome; None without one."""
    return counts.failed / counts.finals if counts.finals else None


def deferral_rate(counts: AttemptCounts) -> float | None:
    """Of the attempts; None without one."""
    return counts.deferred / counts.attempts if counts.attempts else None


def trends(counted: Mapping[str, Counted], period: TimeRange, unit: timedelta) -> list[ProviderTrend]:
    """One for each provider of ``counted``, in its order."""
    return [
        _trend(provider, summed(rows, period, unit), unit_name(unit))
        for provider, rows in counted.items()
    ]


def _trend(provider: str, sums: Sequence[AttemptCounts], unit: str) -> ProviderTrend:
    total = sum(sums, AttemptCounts())
    lines = [_attempts(sums, total)]
    for title, name, rate in (
        ("delivery", "delivered", delivery_rate),
        ("deferral", "deferred", deferral_rate),
        ("bounce", "failed", bounce_rate),
    ):
        low, high = _ends([rate(each) for each in sums], from_above=rate is delivery_rate)
        path = _line([rate(each) for each in sums], low, high)
        lines.append(
            Sparkline(
                title=title, name=name, total=percent(rate(total)), low=_share(low), high=_share(high), path=path,
            )
        )  # fmt: skip
    return ProviderTrend(provider, unit, POINT * len(sums), TREND_HEIGHT, lines)


def _attempts(sums: Sequence[AttemptCounts], total: AttemptCounts) -> Sparkline:
    high = round_up(max(1, *(each.attempts for each in sums)))
    path = "".join(
        f"M{POINT * index} {TREND_HEIGHT}v-{max(1, round(each.attempts / high * TREND_HEIGHT))}h{POINT - 1}V{TREND_HEIGHT}z"
        for index, each in enumerate(sums)
        if each.attempts
    )
    return Sparkline(
        title="attempts", name="attempts", total=rounded(total.attempts), low="0", high=short_number(high), path=path,
        is_area=True,
    )  # fmt: skip


def _ends(rates: Iterable[float | None], *, from_above: bool) -> tuple[float, float]:
    """The ends of the axis of rates: 0 and a round share, or with ``from_above`` a round share and 1."""
    known = [1 - rate if from_above else rate for rate in rates if rate is not None]
    steps = math.ceil(STEPS * max(known, default=0.0))
    reach = min(STEPS, round_up(max(STEPS // 100, steps))) / STEPS
    return (1 - reach, 1.0) if from_above else (0.0, reach)


def _line(rates: Sequence[float | None], low: float, high: float) -> str:
    """A line through the days with a rate; where one has none the line is interrupted, a lone day is a short line."""
    path, before = [], False
    for index, rate in enumerate(rates):
        if rate is None:
            before = False
            continue
        y = TREND_HEIGHT - round((rate - low) / (high - low) * TREND_HEIGHT)
        x = POINT * index + POINT // 2
        is_alone = not before and (index + 1 == len(rates) or rates[index + 1] is None)
        path.append(f"M{x - 1} {y}h2" if is_alone else f"{'L' if before else 'M'}{x} {y}")
        before = True
    return "".join(path)


def _share(share: float) -> str:
    return f"{100 * share:g} %"
