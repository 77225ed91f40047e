"""Ticks of the axes."""

from datetime import UTC, datetime, timedelta

import pytest

from zonemta_py.pipeline.report.charts import (
    DAY,
    HOUR,
    TIME_TICKS_MAX,
    TimeRange,
    axis_end,
    bar_unit,
    round_up,
    time_ticks,
    value_ticks,
)


def begins_at(year: int, month: int, day: int, hour: int = 0) -> datetime:
    return datetime(year, month, day, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    ("most", "labels"),
    [
        (0, ["0", "1"]), (1, ["0", "1"]), (3, ["0", "1", "2", "3"]), (7, ["0", "2", "4", "6", "8"]),
        (101, ["0", "50", "100", "150"]), (2600, ["0", "1k", "2k", "3k"]),
        (7300, ["0", "2k", "4k", "6k", "8k"]), (1_450_000, ["0", "500k", "1M", "1.5M"]),
        (12_000_000_000, ["0", "5G", "10G", "15G"]),
    ],
)  # fmt: skip
def test_values(most: int, labels: list[str]) -> None:
    """From zero, at round numbers, up to at least the largest value."""
    ticks = value_ticks(most)
    assert [tick.label for tick in ticks] == labels
    assert (ticks[0].at, ticks[-1].at) == (0, 1)
    assert axis_end(most) >= most


def test_values_at_every_size() -> None:
    for most in range(1, 30_000, 7):
        assert 2 <= len(value_ticks(most)) <= 6
        assert most <= axis_end(most) <= 2 * most + 1
    assert [round_up(value) for value in (1, 2, 3, 5, 6, 10, 11, 21, 51)] == [
        1, 2, 5, 5, 10, 10, 20, 50, 100,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("begins", "hours", "labels"),
    [
        (begins_at(2026, 11, 1, 9), 1, ["09:00"]),
        (begins_at(2026, 11, 1, 21), 6, ["21:00", "22:00", "23:00", "2 Nov", "01:00", "02:00"]),
        (begins_at(2026, 11, 1), 48, ["1 Nov", "06:00", "12:00", "18:00", "2 Nov", "06:00", "12:00", "18:00"]),
        (begins_at(2026, 11, 28, 5), 24 * 4, ["12:00", "29 Nov", "12:00", "30 Nov", "12:00", "1 Dec", "12:00", "2 Dec"]),
        (begins_at(2026, 11, 1), 24 * 7, ["1 Nov", "2 Nov", "3 Nov", "4 Nov", "5 Nov", "6 Nov", "7 Nov"]),
        (begins_at(2026, 11, 1), 24 * 45, ["2 Nov", "9 Nov", "16 Nov", "23 Nov", "30 Nov", "7 Dec", "14 Dec"]),
        (begins_at(2026, 11, 1), 24 * 200, ["Nov 2026", "Dec", "Jan 2027", "Feb", "Mar", "Apr", "May"]),
        (begins_at(2026, 12, 7), 24 * 7 * 150, ["Jan 2027", "Jul", "Jan 2028", "Jul", "Jan 2029", "Jul"]),
        (begins_at(1970, 1, 1), 24 * 365 * 57, ["Jan 1970", "Jan 1980", "Jan 1990", "Jan 2000", "Jan 2010", "Jan 2020"]),
    ],
)  # fmt: skip
def test_times(begins: datetime, hours: int, labels: list[str]) -> None:
    """Of hours, midnights, Mondays, months or years, according to the length of the period."""
    period = TimeRange(begins, begins + hours * HOUR)
    ticks = time_ticks(period, bar_unit(period))
    assert [tick.label for tick in ticks] == labels
    assert all(0 <= tick.at < 1 for tick in ticks)


def test_times_of_every_length() -> None:
    """A few ticks, in order, none twice."""
    begins = begins_at(2026, 11, 3, 17)
    for hours in [*range(1, 300), *range(300, 30_000, 531)]:
        period = TimeRange(begins, begins + timedelta(hours=hours))
        unit = bar_unit(period)
        places = [tick.at for tick in time_ticks(period.widened(unit), unit)]
        assert 1 <= len(places) <= TIME_TICKS_MAX + 1, hours
        assert places == sorted(set(places))


def test_the_label_of_a_day_is_below_its_bar() -> None:
    period = TimeRange(begins_at(2026, 11, 2), begins_at(2026, 11, 16))
    assert time_ticks(period, DAY)[0].at == pytest.approx(0.5 / 14)
