"""Hours, days and weeks of the charts."""

from datetime import UTC, datetime, timedelta

import pytest

from zonemta_py.pipeline.report.charts import (
    DAY,
    HOUR,
    WEEK,
    AttemptCounts,
    TimeRange,
    bar_unit,
    begin_of,
    summed,
    trend_unit,
)

BEGINS = datetime(2026, 11, 4, 9, tzinfo=UTC)  # a Wednesday


@pytest.mark.parametrize(
    ("length", "bars", "points"),
    [
        (HOUR, HOUR, DAY), (10 * DAY, HOUR, DAY), (10 * DAY + HOUR, DAY, DAY), (120 * DAY, DAY, DAY),
        (121 * DAY, DAY, WEEK), (365 * DAY, DAY, WEEK), (400 * DAY, DAY, WEEK), (401 * DAY, WEEK, WEEK),
    ],
)  # fmt: skip
def test_the_unit(length: timedelta, bars: timedelta, points: timedelta) -> None:
    """Hours up to ten days, days up to 400."""
    period = TimeRange(BEGINS, BEGINS + length)
    assert (bar_unit(period), trend_unit(period)) == (bars, points)


def test_whole_units() -> None:
    period = TimeRange(BEGINS, BEGINS + 30 * HOUR)
    assert period.widened(HOUR) == period
    assert period.widened(DAY) == TimeRange(
        datetime(2026, 11, 4, tzinfo=UTC), datetime(2026, 11, 6, tzinfo=UTC)
    )
    assert period.widened(WEEK) == TimeRange(
        datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 9, tzinfo=UTC)
    )
    assert begin_of(datetime(2026, 11, 8, 23, 59, tzinfo=UTC), WEEK) == datetime(2026, 11, 2, tzinfo=UTC)


def test_sums() -> None:
    """What is between two units with attempts is zero, not left out."""
    period = TimeRange(BEGINS, BEGINS + 49 * HOUR).widened(DAY)
    counted = [(BEGINS + n * HOUR, AttemptCounts(10, n, 1)) for n in (0, 1, 48)]
    assert summed(counted, period, DAY) == [
        AttemptCounts(20, 1, 2), AttemptCounts(), AttemptCounts(10, 48, 1),
    ]  # fmt: skip
    assert AttemptCounts(10, 48, 1).attempts == 59
    assert AttemptCounts(10, 48, 1).finals == 11
