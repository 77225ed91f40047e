"""Anomalous hours."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import open_log
from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS, delivered, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def attempts(deferred_of_100: list[int]) -> list[dict[str, Any]]:
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
    from zonemta_py.pipeline.spark.attempts import attempt_sums, part_of
    from zonemta_py.pipeline.transforms.anomalies import AnomalyThresholds, anomalies

    usual = [5, 6, 4, 5, 7, 5] * 5
    write_segment(tmp_path, "a", attempts([*usual, 6, 40, 5]))
    sums = attempt_sums(spark, open_log(spark, tmp_path)).cache()
    hours, replies = part_of(sums, "provider_hours"), part_of(sums, "replies")
    [found] = hours.transform(anomalies(AnomalyThresholds(), replies)).collect()
    assert (found["provider"], found["measure"], found["attempts"]) == ("x.example", "deferral", 100)
    assert (found["rate"], found["usual"]) == (pytest.approx(0.4), pytest.approx(0.05))
    assert found["hour"].isoformat() == "2027-01-16T09:00:00"
    assert [(r["count"], r["reason"], r["template"]) for r in found["replies"]] == [
        (40, "rate limited", "Too many connections from <ip>")
    ]
    assert hours.transform(anomalies(AnomalyThresholds(score=100), replies)).count() == 0
    assert hours.transform(anomalies(AnomalyThresholds(history=32), replies)).count() == 0, (
        "no history yet"
    )
    assert hours.transform(anomalies(AnomalyThresholds(attempts=101), replies)).count() == 0, (
        "too few attempts"
    )
