"""Anomalous hours."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.campaigns import open_log
from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS, delivered, write_segment

if TYPE_CHECKING:
    import pyarrow as pa
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


def found_in(sums: "pa.Table", **thresholds: Any) -> list[dict[str, Any]]:
    from zonemta_py.pipeline.report.anomalies import AnomalyThresholds, explained, unusual_hours
    from zonemta_py.pipeline.report.attempts import part_of

    unusual = unusual_hours(part_of(sums, "provider_hours"), AnomalyThresholds(**thresholds))
    rows: list[dict[str, Any]] = explained(unusual, part_of(sums, "replies")).to_pylist()
    return rows


def test_an_anomalous_hour(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.report.sums import attempt_sums

    usual = [5, 6, 4, 5, 7, 5] * 5
    write_segment(tmp_path, "a", attempts([*usual, 6, 40, 5]))
    sums = attempt_sums(spark, open_log(spark, tmp_path))
    [found] = found_in(sums)
    assert (found["provider"], found["measure"], found["attempts"]) == ("x.example", "deferral", 100)
    assert (found["rate"], found["usual"]) == (pytest.approx(0.4), pytest.approx(0.05))
    assert found["hour"].isoformat() == "2027-01-16T09:00:00+00:00"
    assert [(r["nth"], r["count"], r["reason"], r["template"]) for r in found["replies"]] == [
        (1, 40, "connection_limited", "Too many connections from <ip>")
    ]
    assert found_in(sums, score=100) == []
    assert found_in(sums, history=32) == [], "no history yet"
    assert found_in(sums, attempts=101) == [], "too few attempts"


@given(st.data())
def test_scores_are_those_of_the_definition(data: st.DataObject) -> None:
    """Medians of a moving window, beside a plain implementation."""
    anomalies = pytest.importorskip("zonemta_py.pipeline.report.anomalies")
    thresholds = anomalies.AnomalyThresholds(1.5, 1, data.draw(st.integers(1, 4)), data.draw(st.integers(4, 8)))  # fmt: skip
    failed = data.draw(st.lists(st.integers(0, 20), max_size=30))
    rates, attempts = np.array(failed, dtype=float) / 20, np.full(len(failed), 20)
    expected = []
    for n in range(thresholds.history, len(rates)):
        before = sorted(rates[max(0, n - thresholds.history_max) : n])
        usual = before[(len(before) - 1) // 2]
        mad = sorted(abs(rate - usual) for rate in before)[(len(before) - 1) // 2]
        deviation = max(1.4826 * mad, (usual * (1 - usual) / 20) ** 0.5, 0.01)
        score = (rates[n] - usual) / deviation
        if abs(score) >= thresholds.score:
            expected.append((n, usual, score))
    assert list(anomalies.unusual_rates(rates, attempts, thresholds)) == [
        (n, usual, pytest.approx(score)) for n, usual, score in expected
    ]
