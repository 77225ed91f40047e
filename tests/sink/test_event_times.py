"""The sliding window is exact: compared with counting, at every step."""

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.values import Rate
from zonemta_py.sink.provider import EventTimes

TICK_S = 1 / 1024  # times of whole ticks have exact differences
GAPS = st.lists(st.integers(0, 300), min_size=1, max_size=120)


def within(times_s: list[float], now_s: float, period_s: float) -> int:
    """How many are in (now - period, now]."""
    return sum(1 for at_s in times_s if now_s - period_s < at_s <= now_s)


@given(GAPS, st.integers(1, 8), st.integers(20, 1500), st.integers(0, 19))
def test_full_is_what_counting_finds(gaps: list[int], number: int, period: int, slack: int) -> None:
    rate, slack_s = Rate(number, period * TICK_S), slack * TICK_S
    window, now_s = EventTimes(), 1000.0
    accepted: list[float] = []
    for gap in gaps:
        now_s += gap * TICK_S
        full = within(accepted, now_s, rate.per_s - slack_s) >= number
        assert window.full(rate, now_s, slack_s) == full
        if not full:
            window.add(now_s)
            accepted.append(now_s)
    assert len(window) == len(accepted)
    assert window.times_s.tolist() == accepted


@given(GAPS, st.integers(1, 1500))
def test_most_within_is_what_counting_finds(gaps: list[int], period: int) -> None:
    """The greatest window ends at an event."""
    window, now_s = EventTimes(), 0.0
    for gap in gaps:
        now_s += gap * TICK_S
        window.add(now_s)
    times_s = window.times_s.tolist()
    period_s = period * TICK_S
    assert window.most_within(period_s) == max(within(times_s, at_s, period_s) for at_s in times_s)


@given(
    st.lists(st.floats(0, 0.7, allow_subnormal=False), max_size=200),
    st.integers(1, 5),
    st.floats(0.01, 2),
)
def test_no_window_has_more_than_was_allowed(gaps: list[float], number: int, period_s: float) -> None:
    """With times as a clock gives them, too."""
    window, now_s = EventTimes(), 98765.4321
    for gap in gaps:
        now_s += gap
        if not window.full(Rate(number, period_s), now_s):
            window.add(now_s)
    assert window.most_within(period_s) <= number


def test_edges_of_the_window() -> None:
    """The window is (t - period, t]: what is exactly as old as the period does not count."""
    window = EventTimes()
    assert window.most_within(1.0) == 0
    window.add(10.0)
    rate = Rate(1, 1.0)
    assert window.full(rate, 10.0)
    assert window.full(rate, 10.75)
    assert not window.full(rate, 10.75, 0.25)
    assert not window.full(rate, 11.0)
    window.add(11.0)
    assert window.most_within(1.0) == 1
    assert window.most_within(1.25) == 2
