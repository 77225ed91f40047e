"""Simulations from events and plans."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.campaigns import no_progress, open_log, plan, write_list
from tests.pipeline.segments import accepted, delivered, write_segment
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.simulate.job import scenarios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_accepted_mail_is_simulated(spark: "SparkSession", tmp_path: Path) -> None:
    """100 messages accepted at once, one second each; half of the first attempts are deferred."""
    from zonemta_py.pipeline.simulate.job import SimulateRequest, simulate_scenarios

    records = [accepted(n, [f"u{n}@x.example"]) for n in range(100)]
    records += [delivered(1000 + n, duration_ms=1000) for n in range(50)]
    records += [
        delivered(2000 + n, duration_ms=1000, event="deferred", code=451, attempt=1) for n in range(50)
    ]
    records += [delivered(3000 + n, duration_ms=1000, attempt=2) for n in range(50)]
    write_segment(tmp_path, "a", records)
    combinations = scenarios(
        "zones: {default: {retry: {delays: [1m]}}}",
        Path("z.yaml"),
        ["zones.default.connections_per_domain=1,100"],
    )
    rows = simulate_scenarios(
        spark,
        SimulateRequest(open_log(spark, str(tmp_path)), combinations, output=str(tmp_path / "out")),
        no_progress,
    )
    assert [row["settings"] for row in rows] == [f"zones.default.connections_per_domain={n}" for n in (1, 100)]  # fmt: skip
    assert [row["delivered"] for row in rows] == [100, 100]
    slow, fast = rows
    assert 30 < slow["deferrals"] < 70
    assert slow["completed_s"] > 100
    assert 61 < fast["completed_s"] < 70
    assert spark.read.parquet(str(tmp_path / "out")).count() == 2


def test_a_plan_is_simulated(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.plan.pack import TURNS
    from zonemta_py.pipeline.simulate.job import SimulateRequest, simulate_scenarios

    listed = write_list(tmp_path / "list.csv", [[f"u{n}@d{n % 3}.example"] for n in range(300)], head=("email",))  # fmt: skip
    plan(
        spark, listed, tmp_path / "plan", message=b"Subject: x\r\n\r\nhi\r\n", recipients_per_message=10
    )
    write_segment(tmp_path / "events", "a", [delivered(n, duration_ms=10) for n in range(10)])
    [combinations] = [scenarios("{}", Path("z.yaml"), [])]
    request = SimulateRequest(
        open_log(spark, tmp_path / "events"), combinations, plan=str(tmp_path / "plan"), per_s=3.0
    )
    [row] = simulate_scenarios(spark, request, no_progress)
    assert row["delivered"] == 300
    rows = spark.read.parquet(str(tmp_path / "plan" / "envelopes")).select("turn").collect()
    turns = [each["turn"] for each in rows]
    submitted_s = (max(turns) - min(turns)) / TURNS * 100
    assert 20 < submitted_s - 0.01 < row["completed_s"] < submitted_s + 1
    request = SimulateRequest(
        open_log(spark, str(tmp_path / "events")), combinations, plan=str(tmp_path / "plan")
    )
    [row] = simulate_scenarios(spark, request, no_progress)
    assert row["completed_s"] < 1
    assert row["backlog_peak"] == 300


def test_no_load_and_no_peers(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.simulate.job import SimulateRequest, simulate_scenarios

    combinations = scenarios("{}", Path("z.yaml"), [])
    write_segment(tmp_path / "a", "a", [delivered(1)])
    with pytest.raises(LocalError, match="there is no mail to simulate"):
        simulate_scenarios(
            spark, SimulateRequest(open_log(spark, str(tmp_path / "a")), combinations), no_progress
        )
    write_segment(tmp_path / "b", "a", [accepted(1, ["u@x.example"])])
    with pytest.raises(LocalError, match="no model of the peers"):
        simulate_scenarios(
            spark, SimulateRequest(open_log(spark, str(tmp_path / "b")), combinations), no_progress
        )


PROVIDERS = """
providers:
  big: {mx: ["*.big.example"], limits: {rate: [2/s], sessions_per_address: 2}}
"""
WARMUP = "- {address: 192.0.2.1, begins: 2027-01-15, daily: [30, 60, 120]}\n"
RELAY = """
providers: {file: providers.yaml, shipped: false}
shaping: {shipped: false}
warmup: {file: warmup.yaml}
pools: {default: [{address: 192.0.2.1}, {address: 192.0.2.2}]}
"""


def big_log(directory: Path) -> Path:
    """200 messages at once for a provider that blocks a tenth of what it gets."""
    records = [accepted(n, [f"u{n}@d{n % 4}.example"]) for n in range(200)]
    for n in range(200):
        about = {"domain": f"d{n % 4}.example", "mx": "mx1.big.example", "source_ip": "192.0.2.9"}
        reply = {"event": "deferred", "code": 421, "status": "4.7.0", "class": "blocked", "reply": "blocked"}  # fmt: skip
        records.append(delivered(1000 + n, duration_ms=100, **about, **(reply if n % 10 == 0 else {})))
    write_segment(directory, "a", records)
    return directory


def test_files_of_a_configuration_are_tried(spark: "SparkSession", tmp_path: Path) -> None:
    """Limits, a warm-up and the controller of two configurations; each path says what bound it."""
    from zonemta_py.pipeline.simulate.job import SimulateRequest, simulate_scenarios

    for name, text in (("providers", PROVIDERS), ("warmup", WARMUP)):
        (tmp_path / f"{name}.yaml").write_text(text)
    combinations = scenarios(RELAY, tmp_path / "relay.yaml", ["shaping.controller.enabled=false,true"])
    begins_ms = 1_800_000_000_000 // 86_400_000 * 86_400_000  # 2027-01-15
    request = SimulateRequest(
        open_log(spark, big_log(tmp_path / "events")), combinations, begins_ms=begins_ms
    )
    without, controlled = simulate_scenarios(spark, request, no_progress)
    assert without["delivered"] == controlled["delivered"] == 200
    paths = {path["address"]: path.asDict() for path in without["paths"]}
    assert set(paths) == {"192.0.2.1", "192.0.2.2"}
    assert {path["provider"] for path in paths.values()} == {"big"}
    assert paths["192.0.2.1"]["by_day"]["2027-01-15"] == 30
    assert paths["192.0.2.2"]["minute_max"] <= 120
    assert paths["192.0.2.2"]["limited_s"]["provider_rate"] > 50
    assert paths["192.0.2.1"]["limited_s"]["warmup"] > 50
    assert not paths["192.0.2.2"]["changes"]
    changes = [change for path in controlled["paths"] for change in path["changes"]]
    assert {"pace", "warmup"} <= {change["what"] for change in changes}
