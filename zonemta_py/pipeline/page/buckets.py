"""Attempts by hour, day or week of UTC: which of them a chart shows, and the sums of each."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

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
        """All of them."""
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
        """More than zero."""
        return self.ends - self.begins

    def widened(self, unit: timedelta) -> "TimeRange":
        """The whole hours, days or weeks that it touches."""
        last = begin_of(self.ends - timedelta(microseconds=1), unit)
        return TimeRange(begin_of(self.begins, unit), last + unit)

    def share(self, time: datetime) -> float:
        """Where ``time`` is: 0 at the begin, 1 at the end."""
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
