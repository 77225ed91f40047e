"""Simulated deliveries: exact where they can be computed by hand; no recipient is lost elsewhere."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zonemta_py.config.load import parse_config
from zonemta_py.config.zones import Zone
from zonemta_py.pipeline.simulate.prediction import PeerModel, Prediction, SimulatedMessage
from zonemta_py.pipeline.simulate.world import PeerModels
from zonemta_py.pipeline.simulate.zone import SimulatedLoad, SimulatedRelay, simulate

SECOND = PeerModel([1.0])


def zone(text: str = "") -> Zone:
    return parse_config(f"zones: {{default: {{{text}}}}}", Path("z.yaml")).zones["default"]


def at_once(count: int, domains: int = 1) -> list[SimulatedMessage]:
    return [SimulatedMessage(0.0, f"d{n % domains}.example", 1) for n in range(count)]


def simulated(
    text: str, messages: list[SimulatedMessage], peer: PeerModel = SECOND, **changes: Any
) -> Prediction:
    return predicted(text, messages, PeerModels(peer, {}, {}), **changes)


def predicted(
    text: str, messages: list[SimulatedMessage], peers: PeerModels, **changes: Any
) -> Prediction:
    relay = SimulatedRelay({"default": zone(text)}, **changes)
    return simulate(relay, SimulatedLoad(messages, peers)).zones.get("default", Prediction())


@pytest.mark.parametrize(
    ("text", "domains", "completed_s", "limited_by"),
    [
        ("connections_per_domain: 10", 1, 10.0, "connections_per_domain"),
        ("connections: 20, connections_per_domain: 20", 4, 5.0, "connections"),
        ("connections: 100, connections_per_domain: 5", 4, 5.0, "connections_per_domain"),
        ("rate: 2/s, connections: 100, connections_per_domain: 100", 1, 50.5, "rate"),
        ("smarthost: 'r.example:25', connections: 50", 4, 2.0, "connections"),
    ],
)
def test_limits(text: str, domains: int, completed_s: float, limited_by: str) -> None:
    """100 messages of one second each: the limit determines how long it takes."""
    found = simulated(text, at_once(100, domains))
    assert found.completed_s == pytest.approx(completed_s)
    assert (found.delivered, found.transactions, found.backlog_peak) == (100, 100, 100)
    assert max(found.limited_s, key=lambda name: found.limited_s[name]) == limited_by
    assert found.limited_s[limited_by] == pytest.approx(completed_s, rel=0.2)


def test_recipients_share_a_transaction() -> None:
    found = simulated(
        "recipients_per_transaction: 10, connections: 1", [SimulatedMessage(0.0, "d.example", 95)]
    )
    assert (found.transactions, found.delivered, found.completed_s) == (10, 95, 10.0)


def test_arrivals_over_time() -> None:
    """Mail is delivered at once below the limits; times are from the first arrival; the backlog is by minute."""
    messages = [SimulatedMessage(1000.0 + 10 * n, "d.example", 1) for n in range(13)]
    found = simulated("", messages)
    assert found.completed_s == pytest.approx(121.0)
    assert found.quantiles_s == (1.0, 1.0, 1.0)
    assert found.backlog_peak == 1
    assert found.backlog == [1, 1, 1]


def test_deferrals_follow_the_retry_policy() -> None:
    """All are deferred once, and delivered after the first delay."""
    greylisting = PeerModel([1.0], deferred=[1.0, 0.0])
    found = simulated("retry: {delays: [5m], jitter: 0}, connections_per_domain: 100", at_once(100), greylisting)  # fmt: skip
    assert (found.deferrals, found.delivered) == (100, 100)
    assert found.completed_s == pytest.approx(302.0)
    never = PeerModel([1.0], deferred=[1.0])
    found = simulated("retry: {delays: [10m], give_up_after: 1h}", at_once(10), never)
    assert (found.delivered, found.expired) == (0, 10)
    assert found.completed_s == pytest.approx(3600, abs=5)
    assert found.quantiles_s == ()


def test_the_limit_of_the_relay() -> None:
    found = simulated(
        "connections: 1000, connections_per_domain: 1000", at_once(100), relay_limit_per_s=10.0
    )
    assert found.completed_s == pytest.approx(10.9, abs=0.3)
    assert found.limited_s["rate"] == 0


def test_peers_differ() -> None:
    """A slow destination does not delay a fast one."""
    messages = [SimulatedMessage(0.0, name, 1) for name in ("slow", "fast") for _ in range(10)]
    peers = {"slow": PeerModel([100.0])}
    found = predicted("connections_per_domain: 1", messages, PeerModels(SECOND, peers, {}))
    assert found.completed_s == 1000.0
    assert found.quantiles_s[0] == 10.0


loads = st.lists(
    st.builds(SimulatedMessage, st.floats(0, 500), st.sampled_from("abc"), st.integers(1, 30)),
    max_size=40,
).map(lambda found: sorted(found, key=lambda each: each.arrival_s))


peers_ = st.builds(
    PeerModel,
    st.lists(st.floats(0.0, 20), min_size=1, max_size=4),
    st.lists(st.floats(0, 0.7), min_size=1, max_size=3),
    st.lists(st.floats(0, 0.3), min_size=1, max_size=3),
)


@settings(deadline=None)
@given(
    loads,
    peers_,
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 20),
    st.sampled_from(["", "rate: 3/s", "rate: 50/m"]),
    st.integers(0, 3),
)
def test_no_recipient_is_lost(
    messages: list[SimulatedMessage],
    peer: PeerModel,
    most: int,
    each: int,
    batch: int,
    rate: str,
    seed: int,
) -> None:
    """Whatever the limits, every recipient ends, and the same seed plays the same."""
    text = f"connections: {most}, connections_per_domain: {each}, recipients_per_transaction: {batch}, retry: {{delays: [1m], give_up_after: 10m}}"
    text += f", {rate}" if rate else ""
    found = simulated(text, messages, peer, seed=seed)
    assert found.delivered + found.bounced + found.expired == sum(p.recipients for p in messages)
    assert simulated(text, messages, peer, seed=seed) == found
