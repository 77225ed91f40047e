"""The axes of charts: round numbers, and times that are the begin of an hour, day, week, month or year."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from zonemta_py.pipeline.page.buckets import DAY, HOUR, TimeRange
from zonemta_py.pipeline.page.formats import MONTHS, day_and_month, short_number

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
