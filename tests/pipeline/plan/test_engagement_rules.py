"""The days that separate engagement segments."""

from datetime import UTC, date, datetime

import pytest

from zonemta_py.core.errors import ConfigError
from zonemta_py.pipeline.plan.segment import EngagementPolicy

DAY = date(2026, 11, 24)


def begins(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp() * 1000)


def test_days_are_those_of_utc() -> None:
    policy = EngagementPolicy(DAY, active_days=(90, 30), sunset_days=365, new_days=7)
    assert policy.ends_ms == begins(2026, 11, 25)
    assert list(policy.active_since_ms.items()) == [
        ("active_30", begins(2026, 10, 25)), ("active_90", begins(2026, 8, 26)),
    ]  # fmt: skip
    assert policy.lapsed_since_ms == begins(2025, 11, 24)
    assert policy.new_since_ms == begins(2026, 11, 17)
    assert policy.names == ("active_30", "active_90", "new", "lapsed", "sunset")


def test_days_that_are_given_twice() -> None:
    assert EngagementPolicy(DAY, (30, 30)).names[:2] == ("active_30", "new")


@pytest.mark.parametrize(
    ("active", "problem"), [((30, 400), "sunset after 365 days, but 400 days are active"), ((), "at least one")]
)  # fmt: skip
def test_days_that_contradict(active: tuple[int, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        EngagementPolicy(DAY, active)
