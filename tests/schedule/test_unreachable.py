"""Unreachable addresses, with time as an argument."""

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
    """One timeout is not enough, nor are two at once; an answer or an operator ends the hour."""
    hosts = UnreachableHosts()
    hosts.timed_out("a", 0, 0.5)
    hosts.timed_out("a", APART_S - 1, 0.5)
    assert hosts.skipped_s("a", APART_S) == 0
    hosts.timed_out("a", APART_S, 0.5)
    assert hosts.skipped_s("a", APART_S) == SKIP_S + SKIP_SPREAD_S / 2
    assert hosts.skipped_s("a", APART_S + SKIP_S + SKIP_SPREAD_S / 2) == 0
    assert hosts.rows(APART_S + 10) == [
        {"ip": "a", "timeouts": 2, "last_s": 10, "rests_s": round(SKIP_S + SKIP_SPREAD_S / 2) - 10}
    ]
    hosts.answered("a")
    assert hosts.skipped_s("a", APART_S) == 0
    for ip in ("b", "c"):
        hosts.timed_out(ip, 0, 0)
        hosts.timed_out(ip, APART_S, 0)
    assert hosts.clear("b") == 1
    assert hosts.clear("b") == 0
    assert (hosts.skipped_s("b", APART_S), hosts.skipped_s("c", APART_S) > 0) == (0, True)
    assert hosts.clear() == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5000)), max_size=40))
def test_never_longer_than_promised(steps: list[tuple[int, float]]) -> None:
    hosts, now_s = UnreachableHosts(), 0.0
    for ip, step_s in steps:
        now_s += step_s
        hosts.timed_out(str(ip), now_s, 1.0)
        assert 0 <= hosts.skipped_s(str(ip), now_s) <= SKIP_S + SKIP_SPREAD_S + 1e-6


def test_bounded() -> None:
    hosts = UnreachableHosts()
    for n in range(ADDRESSES_MAX + 50):
        hosts.timed_out(str(n), 0, 0)
    assert len(hosts.rows(0)) == ADDRESSES_MAX


def test_on_clear_is_called() -> None:
    cleared: list[str | None] = []
    hosts = UnreachableHosts(cleared.append)
    hosts.clear("a")
    hosts.clear()
    assert cleared == ["a", None]
