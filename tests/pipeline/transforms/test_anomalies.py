"""Anomalous hours."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS, delivered, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def hours(deferred_of_100: list[int]) -> list[dict[str, Any]]:
    """100 attempts in each hour, of which the given number is deferred."""
    events = []
    for hour, deferred in enumerate(deferred_of_100):
        for n in range(100):
            is_deferred = n < deferred
            events.append(
                delivered(
                    100 * hour + n,
                    event="deferred" if is_deferred else "delivered",
                    time_ms=HOUR_BEGINS_MS + hour * HOUR_MS + n,
                    code=421 if is_deferred else 250,
                    status="4.7.0" if is_deferred else "2.0.0",
                    reply=f"Too many connections from 10.0.0.{n}" if is_deferred else "Ok",
                )
            )
    return events


def test_an_anomalous_hour(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.spark.events import read_events
    from zonemta_py.pipeline.transforms.anomalies import AnomalyThresholds, anomalies
    from zonemta_py.pipeline.transforms.rates import attempt_rows

    usual = [5, 6, 4, 5, 7, 5] * 5
    write_segment(tmp_path, "a", hours([*usual, 6, 40, 5]))
    rows = read_events(spark, str(tmp_path)).transform(attempt_rows(None)).cache()
    [found] = rows.transform(anomalies(AnomalyThresholds())).collect()
    assert (found["provider"], found["measure"], found["attempts"]) == ("x.example", "deferral", 100)
    assert (found["rate"], found["usual"]) == (pytest.approx(0.4), pytest.approx(0.05))
    assert found["hour"].isoformat() == "2027-01-16T09:00:00"
    assert [(r["count"], r["reason"], r["template"]) for r in found["replies"]] == [
        (40, "rate limited", "Too many connections from <ip>")
    ]
    assert rows.transform(anomalies(AnomalyThresholds(score=100))).count() == 0
    assert rows.transform(anomalies(AnomalyThresholds(history=32))).count() == 0, "no history yet"
    assert rows.transform(anomalies(AnomalyThresholds(attempts=101))).count() == 0, "too few attempts"
