"""The load of a simulation, and the models of its peers."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.campaigns import open_log
from tests.pipeline.segments import accepted, delivered, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_recorded_load(spark: "SparkSession", tmp_path: Path) -> None:
    """One row for each message, zone and destination, at the time of its acceptance."""
    from zonemta_py.pipeline.events.rows import read_events
    from zonemta_py.pipeline.simulate.job import recorded_load

    write_segment(tmp_path, "a", [accepted(1, ["a@x.example", "b@x.example", "c@y.example"], time_ms=5)])
    rows = read_events(spark, open_log(spark, str(tmp_path))).transform(recorded_load).collect()
    assert {(r["zone"], r["arrival_ms"], r["destination"], r["recipients"]) for r in rows} == {
        ("default", 5, "x.example", 2),
        ("default", 5, "y.example", 1),
    }


def test_planned_load(spark: "SparkSession") -> None:
    """``turn`` determines the time within the whole time of the submission."""
    from zonemta_py.pipeline.plan.pack import TURNS
    from zonemta_py.pipeline.simulate.job import planned_load
    from zonemta_py.pipeline.spark import tables

    envelopes = spark.createDataFrame(
        [
            ("k1", 0, 0, "default", "", [("a@x.example", {})], None),
            ("k2", 0, TURNS // 2, "default", "", [("b@x.example", {}), ("c@y.example", {})], None),
        ],
        tables.ENVELOPE,
    )
    rows = envelopes.transform(planned_load(30, 10.0)).orderBy("arrival_ms", "destination").collect()
    assert [(r["arrival_ms"], r["destination"], r["recipients"]) for r in rows] == [
        (0, "x.example", 1), (1500, "x.example", 1), (1500, "y.example", 1),
    ]  # fmt: skip
    rows = envelopes.transform(planned_load(30, None)).collect()
    assert {r["arrival_ms"] for r in rows} == {0}


def test_peer_models(spark: "SparkSession", tmp_path: Path) -> None:
    """Shares by attempt; an attempt without data has the shares of the one before it."""
    from zonemta_py.pipeline.events.rows import read_events
    from zonemta_py.pipeline.simulate.job import peer_answers, peer_model
    from zonemta_py.pipeline.simulate.prediction import ATTEMPTS_MAX

    events = [delivered(n, duration_ms=1000) for n in range(3)]
    events += [delivered(10, event="deferred", code=451, duration_ms=2000)]
    events += [delivered(11, event="bounced", code=550, attempt=2, domain="y.example")]
    write_segment(tmp_path, "a", events)
    rows = [
        row.asDict()
        for row in read_events(spark, open_log(spark, str(tmp_path))).transform(peer_answers).collect()
    ]
    assert [row["domain"] for row in rows] == [None, "x.example", "y.example"]
    model = peer_model(rows[1])
    assert model.deferred == [0.25] * ATTEMPTS_MAX
    assert model.bounced == [0.0] * ATTEMPTS_MAX
    assert (min(model.times_s), max(model.times_s)) == (1.0, 2.0)
    assert peer_model(rows[2]).bounced == [0.0, *[1.0] * (ATTEMPTS_MAX - 1)]
    assert peer_model(rows[0]).deferred[0] == pytest.approx(0.25)
