"""The rate of a zone, with time as an argument."""

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.values import Rate
from zonemta_py.schedule.scheduler import AHEAD_S, TokenBucket


@given(st.integers(1, 200), st.lists(st.floats(0, 0.2), min_size=1, max_size=300))
def test_a_bucket_never_exceeds_its_rate(events: int, steps: list[float]) -> None:
    """However it is asked, no window sees more than the rate and one burst."""
    bucket, now, taken = TokenBucket(Rate(events, 1), 0.0), 0.0, 0
    for step in steps:
        now += step
        while bucket.take(now):
            taken += 1
    burst = max(0.1, 1 / events) * events
    assert taken <= now * events + burst + 2


def test_a_bucket_reaches_its_rate_with_a_late_caller() -> None:
    """A caller that comes a little late each time loses nothing."""
    bucket, taken = TokenBucket(Rate(100, 1), 0.0), 0
    for tick in range(100):
        now = tick * 0.0101
        while bucket.take(now):
            taken += 1
    assert 98 <= taken <= 113
    assert bucket.wait_s(1.0) <= 0.02


@given(st.integers(1, 200), st.lists(st.tuples(st.floats(0, 0.2), st.integers(0, 5)), max_size=300))
def test_reserved_tokens_are_due_at_the_rate(events: int, steps: list[tuple[float, int]]) -> None:
    """The times at which messages may be sent are never closer than the rate, but for one burst."""
    bucket, now_s, due_s = TokenBucket(Rate(events, 1), 0.0), 0.0, []
    for step_s, messages in steps:
        now_s += step_s
        due_s += [now_s + bucket.reserve(now_s) for _ in range(messages)]
    burst = max(0.1, 1 / events) * events
    for first, begin_s in enumerate(due_s):
        assert bisect_right(due_s, begin_s + 1) - first <= events + burst + 2
    assert due_s == sorted(due_s)


def test_a_reload_gives_no_token() -> None:
    """However often, and with whatever rate: the next message waits for the interval of the new one."""
    bucket = TokenBucket(Rate(1, 60), 0.0)
    assert bucket.take(0.0)
    for _ in range(5):
        bucket.configure(Rate(1, 60), 1.0)
        assert not bucket.take(1.0)
    assert bucket.wait_s(1.0) == 59
    bucket.configure(Rate(1, 10), 1.0)
    assert bucket.wait_s(1.0) == 10


def test_how_many_look_for_a_session() -> None:
    """As many as have their token soon, one at least."""
    assert TokenBucket(Rate(1, 60), 0.0).ahead_max == 1
    assert TokenBucket(Rate(4, 1), 0.0).ahead_max == 1 + 4 * AHEAD_S
