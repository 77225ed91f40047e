"""Unreachable addresses, with time as an argument."""

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.values import Seconds
from zonemta_py.config.zones import ExponentialRetry, Retry
from zonemta_py.schedule.unreachable import (
    ADDRESSES_MAX,
    APART_S,
    DESTINATIONS_MAX,
    SKIP_MAX_S,
    SPREAD,
    AddressPair,
    UnreachableHosts,
    skip_times_s,
)

TIMES_S = (300.0, 420.0, 480.0)
A, B = AddressPair("", "a"), AddressPair("", "b")


def timeouts(hosts: UnreachableHosts, pair: AddressPair, count: int, destination: str = "d") -> float:
    """As many timeouts, each counted; returns the time of the last."""
    for number in range(count):
        hosts.timed_out(pair, destination, number * APART_S, TIMES_S, 0)
    return (count - 1) * APART_S


def test_two_timeouts_some_time_apart() -> None:
    """One timeout is not enough, nor are two at once; an answer or an operator ends it."""
    hosts = UnreachableHosts()
    hosts.timed_out(A, "d", 0, TIMES_S, 0.5)
    hosts.timed_out(A, "d", APART_S - 1, TIMES_S, 0.5)
    assert hosts.skipped_s(A, APART_S) == 0
    hosts.timed_out(A, "d", APART_S, TIMES_S, 0.5)
    skip_s = 420 * (1 + SPREAD / 2)
    assert hosts.skipped_s(A, APART_S) == skip_s
    assert hosts.skipped_s(A, APART_S + skip_s) == 0
    assert hosts.rows(APART_S + 10) == [
        {"ip": "a", "port": 25, "source": "", "timeouts": 2, "last_s": 10, "rests_s": round(skip_s) - 10}
    ]
    hosts.answered(A)
    assert hosts.skipped_s(A, APART_S) == 0
    now_s = max(timeouts(hosts, pair, 2) for pair in (A, B))
    assert hosts.clear("a") == 1
    assert hosts.clear("a") == 0
    assert (hosts.skipped_s(A, now_s), hosts.skipped_s(B, now_s) > 0) == (0, True)
    assert hosts.clear() == 1


def test_the_time_follows_the_ladder() -> None:
    hosts = UnreachableHosts()
    found = [hosts.timed_out(A, "d", n * APART_S, TIMES_S, 0) for n in range(5)]
    assert found == [300, 420, 480, 480, 480]
    assert skip_times_s(Retry())[:6] == (300, 420, 480, 1500, SKIP_MAX_S, SKIP_MAX_S)
    exponential = Retry(policy="exponential", exponential=ExponentialRetry(Seconds(10), 3, Seconds(60)))
    assert skip_times_s(exponential)[:4] == (10, 30, 60, 60)
    assert skip_times_s(Retry(policy="function", function="a.b")) == skip_times_s(Retry())


def test_each_source_has_its_own() -> None:
    """A network that drops the packets of one address may take those of another."""
    hosts = UnreachableHosts()
    one, two = AddressPair("192.0.2.1", "a"), AddressPair("192.0.2.2", "a")
    now_s = timeouts(hosts, one, 2)
    assert hosts.skipped_s(one, now_s) > 0
    assert hosts.skipped_s(two, now_s) == 0
    timeouts(hosts, two, 2)
    assert hosts.clear("a") == 1, "one address"
    assert hosts.rows(now_s) == []


def test_a_destination_forgets_its_own() -> None:
    """Mail for one domain is flushed; an address of very many domains belongs to all."""
    hosts = UnreachableHosts()
    timeouts(hosts, A, 2, "one")
    for number in range(DESTINATIONS_MAX):
        hosts.timed_out(B, f"d{number}", 0, TIMES_S, 0)
    assert hosts.clear(destination="two") == 1
    assert [row["ip"] for row in hosts.rows(0)] == ["a"]
    assert hosts.clear(destination="one") == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5000)), max_size=40))
def test_never_longer_than_promised(steps: list[tuple[int, float]]) -> None:
    hosts, now_s = UnreachableHosts(), 0.0
    for ip, step_s in steps:
        now_s += step_s
        pair = AddressPair("", str(ip))
        hosts.timed_out(pair, "d", now_s, skip_times_s(Retry()), 1.0)
        assert 0 <= hosts.skipped_s(pair, now_s) <= SKIP_MAX_S * (1 + SPREAD) + 1e-6


def test_bounded() -> None:
    hosts = UnreachableHosts()
    for n in range(ADDRESSES_MAX + 50):
        hosts.timed_out(AddressPair("", str(n)), "d", 0, TIMES_S, 0)
    assert len(hosts.rows(0)) == ADDRESSES_MAX


def test_on_clear_is_called() -> None:
    cleared: list[tuple[str | None, str | None]] = []
    hosts = UnreachableHosts(lambda ip, destination: cleared.append((ip, destination)))
    hosts.clear("a")
    hosts.clear(destination="d")
    hosts.clear()
    assert cleared == [("a", None), (None, "d"), (None, None)]


def test_another_port_is_another_server() -> None:
    """A firewall may drop what goes to port 587, and nothing else."""
    hosts, submission = UnreachableHosts(), AddressPair("", "a", 587)
    timeouts(hosts, submission, 2)
    assert hosts.skipped_s(submission, APART_S) > 0
    assert hosts.skipped_s(A, APART_S) == 0
    hosts.answered(A)
    assert hosts.skipped_s(submission, APART_S) > 0
    assert [row["port"] for row in hosts.rows(APART_S)] == [587]
