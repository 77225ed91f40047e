"""Rates and warm-up compliance."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.campaigns import open_log
from tests.pipeline.segments import delivered, write_segment
from zonemta_py.config.warmup import WarmupSchedule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_warmup_compliance() -> None:
    pa = pytest.importorskip("pyarrow")
    from zonemta_py.pipeline.report.tables import warmup_table

    first, second = date(2026, 11, 1), date(2026, 11, 2)
    rows = [(first, "a", "google", 1, 1), (first, "a", "yahoo", 1, 0), (second, "b", "google", 0, 1)]
    names = ("day", "address", "provider", "delivered", "deferred")
    counts = {"bounced": pa.array([0] * 3), "expired": pa.array([0] * 3)}
    days = pa.table({**dict(zip(names, map(pa.array, zip(*rows, strict=True)), strict=True)), **counts})
    warmups = [
        WarmupSchedule("a", first, (1, 5), "google"), WarmupSchedule("a", first, (3,)), WarmupSchedule("c", first, (3,)),
    ]  # fmt: skip
    found = warmup_table(days, warmups).to_pylist()
    assert {
        (r["day"], r["address"], r["provider"]): (r["sent"], r["over"], r["kept"]) for r in found
    } == {
        (first, "a", "google"): (2, 1, False),
        (first, "a", ""): (3, 0, True),
        (second, "a", "google"): (0, 0, True),
        (first, "c", ""): (0, 0, True),
    }
    assert warmup_table(days, []).num_rows == 0


def test_rates_by_dimension(spark: "SparkSession", tmp_path: Path) -> None:
    """One row for all attempts and one for each value; rates are of final outcomes or of attempts."""
    from zonemta_py.pipeline.report.attempts import part_of
    from zonemta_py.pipeline.report.sums import attempt_sums
    from zonemta_py.pipeline.report.tables import rates_table

    labels = {"tenant": "acme", "campaign": "spring", "tags": ["sale", "shoes"]}
    events = [delivered(n, domain="gmail.com", **labels) for n in range(3)]
    events += [delivered(3, domain="gmail.com", event="deferred", code=451, reply="later 42")]
    events += [delivered(4, domain="y.example", event="bounced", code=550, reply="no")]
    write_segment(tmp_path, "a", events)
    campaigns = spark.createDataFrame([(f"{0:024x}", "june")], "message string, campaign string")
    sums = attempt_sums(spark, open_log(spark, tmp_path), campaigns)
    rates = rates_table(part_of(sums, "rates"))
    found = {(r["dimension"], r["value"]): r for r in rates.to_pylist()}
    total = found["all", ""]
    assert (total["attempts"], total["delivered"], total["deferred"], total["bounced"]) == (5, 3, 1, 1)
    assert total["delivery_rate"] == pytest.approx(0.75)
    assert total["deferral_rate"] == pytest.approx(0.2)
    assert found["provider", "google"]["attempts"] == 4
    assert found["campaign", "june"]["attempts"] == 1
    assert found["campaign", "spring"]["attempts"] == 2
    assert found["tenant", "acme"]["attempts"] == found["tag", "sale"]["attempts"] == 3
    assert found["tag", "shoes"]["delivered"] == 3
    assert found["tenant", ""]["attempts"] == 2
    assert found["domain", "y.example"]["p50_ms"] is None
