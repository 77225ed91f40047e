"""Loads played through the relay's own rules: exact where arithmetic is, and nothing lost where it is not."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.segments import accepted, delivered, write_segment
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Zone
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.pipeline.rules.scenarios import scenarios
from zonemta_py.pipeline.rules.simulation import Parcel, Peer, Prediction, simulate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = Peer([1.0])


def zone(text: str = "") -> Zone:
    return parse_config(f"zones: {{default: {{{text}}}}}", Path("z.yaml")).zones["default"]


def at_once(count: int, domains: int = 1) -> list[Parcel]:
    return [Parcel(0.0, f"d{n % domains}.example", 1) for n in range(count)]


def played(text: str, parcels: list[Parcel], peer: Peer = SECOND, **changes: Any) -> Prediction:
    return simulate(zone(text), parcels, {}, peer, **changes)


@pytest.mark.parametrize(
    ("text", "domains", "completed_s", "held_by"),
    [
        ("connections_per_domain: 10", 1, 10.0, "connections_per_domain"),
        ("connections: 20, connections_per_domain: 20", 4, 5.0, "connections"),
        ("connections: 100, connections_per_domain: 5", 4, 5.0, "connections_per_domain"),
        ("rate: 2/s, connections: 100, connections_per_domain: 100", 1, 50.5, "rate"),
        ("smarthost: 'r.example:25', connections: 50", 4, 2.0, "connections"),
    ],
)
def test_limits(text: str, domains: int, completed_s: float, held_by: str) -> None:
    """100 messages of one second each: what holds them back decides how long it takes."""
    found = played(text, at_once(100, domains))
    assert found.completed_s == pytest.approx(completed_s)
    assert (found.delivered, found.transactions, found.backlog_peak) == (100, 100, 100)
    assert max(found.limited_s, key=lambda name: found.limited_s[name]) == held_by
    assert found.limited_s[held_by] == pytest.approx(completed_s, rel=0.2)


def test_recipients_share_a_transaction() -> None:
    found = played("recipients_per_transaction: 10, connections: 1", [Parcel(0.0, "d.example", 95)])
    assert (found.transactions, found.delivered, found.completed_s) == (10, 95, 10.0)


def test_mail_that_comes_over_time() -> None:
    """Nothing waits when there is room; times count from the first arrival; the backlog is by minute."""
    parcels = [Parcel(1000.0 + 10 * n, "d.example", 1) for n in range(13)]
    found = played("", parcels)
    assert found.completed_s == pytest.approx(121.0)
    assert found.quantiles_s == (1.0, 1.0, 1.0)
    assert found.backlog_peak == 1
    assert found.backlog == [1, 1, 1]


def test_deferrals_follow_the_retry_policy() -> None:
    """All are deferred once: they come back after the first delay, and then get through."""
    greylisting = Peer([1.0], deferred=[1.0, 0.0])
    found = played("retry: {delays: [5m], jitter: 0}, connections_per_domain: 100", at_once(100), greylisting)  # fmt: skip
    assert (found.deferrals, found.delivered) == (100, 100)
    assert found.completed_s == pytest.approx(302.0)
    never = Peer([1.0], deferred=[1.0])
    found = played("retry: {delays: [10m], give_up_after: 1h}", at_once(10), never)
    assert (found.delivered, found.expired) == (0, 10)
    assert found.completed_s == pytest.approx(3600, abs=5)
    assert found.quantiles_s == ()


def test_what_the_relay_itself_manages() -> None:
    found = played("connections: 1000, connections_per_domain: 1000", at_once(100), most_per_s=10.0)
    assert found.completed_s == pytest.approx(10.9, abs=0.3)
    assert found.limited_s["rate"] == 0


def test_peers_differ() -> None:
    """A slow destination does not hold up a fast one."""
    parcels = [Parcel(0.0, name, 1) for name in ("slow", "fast") for _ in range(10)]
    peers = {"slow": Peer([100.0])}
    found = simulate(zone("connections_per_domain: 1"), parcels, peers, SECOND)
    assert found.completed_s == 1000.0
    assert found.quantiles_s[0] == 10.0


parcels_ = st.lists(
    st.builds(Parcel, st.floats(0, 500), st.sampled_from("abc"), st.integers(1, 30)), max_size=40
).map(lambda found: sorted(found, key=lambda each: each.arrival_s))
peers_ = st.builds(
    Peer,
    st.lists(st.floats(0.0, 20), min_size=1, max_size=4),
    st.lists(st.floats(0, 0.7), min_size=1, max_size=3),
    st.lists(st.floats(0, 0.3), min_size=1, max_size=3),
)


@settings(deadline=None)
@given(
    parcels_,
    peers_,
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 20),
    st.sampled_from(["", "rate: 3/s", "rate: 50/m"]),
    st.integers(0, 3),
)
def test_nobody_is_lost(
    parcels: list[Parcel], peer: Peer, most: int, each: int, batch: int, rate: str, seed: int
) -> None:
    """Whatever the limits, every recipient ends, and the same seed plays the same."""
    text = f"connections: {most}, connections_per_domain: {each}, recipients_per_transaction: {batch}, retry: {{delays: [1m], give_up_after: 10m}}"
    text += f", {rate}" if rate else ""
    found = played(text, parcels, peer, seed=seed)
    assert found.delivered + found.bounced + found.expired == sum(p.recipients for p in parcels)
    assert played(text, parcels, peer, seed=seed) == found


# ---- scenarios


def test_scenarios() -> None:
    found = scenarios(
        "zones: {default: {rate: 5/s}}",
        Path("z.yaml"),
        ["zones.default.connections=10, 20", "zones.default.retry.delays=[1m, 2m]"],
    )
    assert [dict(each.settings)["zones.default.connections"] for each in found] == ["10", "20"]
    assert [each.config.zones["default"].connections for each in found] == [10, 20]
    assert {each.config.zones["default"].retry.delays for each in found} == {(60.0, 120.0)}
    assert all(each.config.zones["default"].rate for each in found)
    [one] = scenarios("{}", Path("z.yaml"), [])
    assert one.settings == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("zones.default.connections", "expected KEY=VALUE"),
        ("zones.default.connections=many", "with zones.default.connections=many"),
        ("zones.default.conections=3", "did you mean"),
        ("zones.default.connections.x=3", "with|no such key"),
        ("hostname.x=3", "no such key|with"),
        ("zones.default.rate=[", "--set zones.default.rate"),
        (f"zones.default.connections={','.join('1' * 1001)}", "1001 combinations"),
    ],
)
def test_bad_scenarios(change: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        scenarios("hostname: h\nzones: {default: {connections: 3}}", Path("z.yaml"), [change])


# ---- with Spark


def quiet(text: str) -> None:
    """No progress."""


def test_what_the_events_say_is_played(spark: "SparkSession", tmp_path: Path) -> None:
    """Load and peers from events: 100 accepted at once, one second each; the first attempt of half is deferred."""
    from zonemta_py.pipeline.jobs.simulate import Request, run

    records = [accepted(n, [f"u{n}@x.example"]) for n in range(100)]
    records += [delivered(1000 + n, duration_ms=1000) for n in range(50)]
    records += [
        delivered(2000 + n, duration_ms=1000, event="deferred", code=451, attempt=1) for n in range(50)
    ]
    records += [delivered(3000 + n, duration_ms=1000, attempt=2) for n in range(50)]
    write_segment(tmp_path, "a", records)
    played = scenarios(
        "zones: {default: {retry: {delays: [1m]}}}",
        Path("z.yaml"),
        ["zones.default.connections_per_domain=1,100"],
    )
    rows = run(spark, Request(str(tmp_path), played, output=str(tmp_path / "out")), quiet)
    assert [row["settings"] for row in rows] == [f"zones.default.connections_per_domain={n}" for n in (1, 100)]  # fmt: skip
    assert [row["delivered"] for row in rows] == [100, 100]
    slow, fast = rows
    assert 30 < slow["deferrals"] < 70
    assert slow["completed_s"] > 100
    assert 61 < fast["completed_s"] < 70
    assert spark.read.parquet(str(tmp_path / "out")).count() == 2


def test_a_plan_is_played(spark: "SparkSession", tmp_path: Path) -> None:
    from tests.pipeline.test_plan import plan, write_list
    from zonemta_py.pipeline.jobs.simulate import Request, run

    listed = write_list(tmp_path / "list.csv", [[f"u{n}@d{n % 3}.example"] for n in range(300)], head=("email",))  # fmt: skip
    plan(spark, listed, tmp_path / "plan", message=b"Subject: x\r\n\r\nhi\r\n", per_envelope=10)
    write_segment(tmp_path / "events", "a", [delivered(n, duration_ms=10) for n in range(10)])
    [played] = [scenarios("{}", Path("z.yaml"), [])]
    request = Request(str(tmp_path / "events"), played, plan=str(tmp_path / "plan"), per_s=3.0)
    [row] = run(spark, request, quiet)
    assert row["delivered"] == 300
    assert 80 < row["completed_s"] < 101
    at_once_ = Request(str(tmp_path / "events"), played, plan=str(tmp_path / "plan"))
    [row] = run(spark, at_once_, quiet)
    assert row["completed_s"] < 1
    assert row["backlog_peak"] == 300


def test_nothing_to_play(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.jobs.simulate import Request, run

    played = scenarios("{}", Path("z.yaml"), [])
    write_segment(tmp_path / "a", "a", [delivered(1)])
    with pytest.raises(LocalError, match="there is no mail to play"):
        run(spark, Request(str(tmp_path / "a"), played), quiet)
    write_segment(tmp_path / "b", "a", [accepted(1, ["u@x.example"])])
    with pytest.raises(LocalError, match="nobody knows how peers answer"):
        run(spark, Request(str(tmp_path / "b"), played), quiet)
