"""The warm-up of addresses: late days, pauses, and both together."""

from datetime import date

import pytest

from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.egress.warmup import DAY_MS, EPOCH, Warming, WarmupState

BEGINS = date(2026, 12, 1)
FIRST = BEGINS.toordinal() - EPOCH
DAILY = (5, 10, 20, 40)


def warming() -> Warming:
    return Warming(WarmupSchedule("192.0.2.1", BEGINS, DAILY), WarmupState())


def numbers(each: Warming, days: int = 6) -> list[int | None]:
    return [each.allowed(FIRST + number) for number in range(days)]


def at(day: int) -> int:
    """A time on a day, counted from the first."""
    return (FIRST + day) * DAY_MS + DAY_MS // 2


@pytest.mark.parametrize("day", [0, 1, 3])
def test_a_slowed_day_is_repeated(day: int) -> None:
    """Its own number stays, tomorrow has the same, and the others are a day later."""
    each = warming()
    assert each.slow(at(day))
    assert not each.slow(at(day)), "once a day"
    expected = [*DAILY[: day + 1], *DAILY[day:]]
    assert [each.allowed(FIRST + number) for number in range(day, 5)] == expected[day:]


def test_two_slowed_days() -> None:
    each = warming()
    assert each.slow(at(1))
    assert each.slow(at(2))
    assert [each.allowed(FIRST + number) for number in range(2, 6)] == [10, 10, 20, 40]


@pytest.mark.parametrize("slowed", [False, True])
def test_a_pause_stays_at_the_number_of_its_day(slowed: bool) -> None:
    """Also when that day was slowed before, or another of the pause is."""
    each = warming()
    if slowed:
        assert each.slow(at(1))
    each.pause(at(1))
    assert numbers(each)[1:] == [10, 10, 10, 10, 10]
    assert not each.slow(at(2)), "it does not grow anyway"
    assert numbers(each)[1:] == [10, 10, 10, 10, 10]
    each.resume(at(3))
    assert [each.allowed(FIRST + day) for day in (3, 4, 5)] == [10, 20, 40]


def test_a_pause_of_no_day_changes_nothing() -> None:
    each = warming()
    each.pause(at(1))
    each.resume(at(1))
    assert numbers(each) == [5, 10, 20, 40, None, None]
