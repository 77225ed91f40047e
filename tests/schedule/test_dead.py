"""Dead addresses, with made-up time."""

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.schedule.unreachable import (
    ADDRESSES_MAX,
    APART_S,
    SKIP_S,
    SKIP_SPREAD_S,
    UnreachableHosts,
)


def test_two_timeouts_some_time_apart() -> None:
    """One is not enough, nor are two at once; then about an hour; an answer or an operator ends it."""
    dead = UnreachableHosts()
    dead.timed_out("a", 0, 0.5)
    dead.timed_out("a", APART_S - 1, 0.5)
    assert dead.skipped_s("a", APART_S) == 0
    dead.timed_out("a", APART_S, 0.5)
    assert dead.skipped_s("a", APART_S) == SKIP_S + SKIP_SPREAD_S / 2
    assert dead.skipped_s("a", APART_S + SKIP_S + SKIP_SPREAD_S / 2) == 0
    assert dead.rows(APART_S + 10) == [
        {"ip": "a", "timeouts": 2, "last_s": 10, "rests_s": round(SKIP_S + SKIP_SPREAD_S / 2) - 10}
    ]
    dead.answered("a")
    assert dead.skipped_s("a", APART_S) == 0
    for ip in ("b", "c"):
        dead.timed_out(ip, 0, 0)
        dead.timed_out(ip, APART_S, 0)
    assert dead.clear("b") == 1
    assert dead.clear("b") == 0
    assert (dead.skipped_s("b", APART_S), dead.skipped_s("c", APART_S) > 0) == (0, True)
    assert dead.clear() == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5000)), max_size=40))
def test_never_longer_than_promised(steps: list[tuple[int, float]]) -> None:
    dead, now_s = UnreachableHosts(), 0.0
    for ip, step_s in steps:
        now_s += step_s
        dead.timed_out(str(ip), now_s, 1.0)
        assert 0 <= dead.skipped_s(str(ip), now_s) <= SKIP_S + SKIP_SPREAD_S + 1e-6


def test_bounded() -> None:
    dead = UnreachableHosts()
    for n in range(ADDRESSES_MAX + 50):
        dead.timed_out(str(n), 0, 0)
    assert len(dead.rows(0)) == ADDRESSES_MAX
