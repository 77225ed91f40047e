"""Warm-up schedules: the file, and what was sent beside it."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zonemta_py.core.errors import ConfigError
from zonemta_py.pipeline.rules.warmup import Warmup, read_warmups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_schedule(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "- {address: 203.0.113.7, begins: 2026-11-01, daily: [200, 500], provider: google}\n"
        '- {address: "2001:DB8::1", begins: 2026-11-30, daily: [1]}\n'
    )
    google, six = read_warmups(path)
    assert list(google.days()) == [(date(2026, 11, 1), 200), (date(2026, 11, 2), 500)]
    assert six == Warmup("2001:db8::1", date(2026, 11, 30), (1,), "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "expected a list"),
        ("- 3", "entry 1: expected the keys"),
        ("- {address: 1.2.3.4, begins: 2026-11-01}", "expected the keys address, begins and daily"),
        ("- {address: 1.2.3, begins: 2026-11-01, daily: [1]}", "entry 1: address"),
        ("- {address: 1.2.3.4, begins: soon, daily: [1]}", "found 'soon', expected a day"),
        ("- {address: 1.2.3.4, begins: 2026-11-01, daily: [x]}", "expected a list of numbers"),
        ("- [", "w.yaml"),
    ],
)
def test_a_bad_schedule(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_warmups(path)


def test_what_was_sent_beside_it(spark: "SparkSession") -> None:
    from zonemta_py.pipeline.transforms.warmup_compliance import ALLOWANCE, warmed

    first, second = date(2026, 11, 1), date(2026, 11, 2)
    attempts = spark.createDataFrame(
        [("2026-11-01 10:00:00", "a", p) for p in ("google", "google", "yahoo")]
        + [("2026-11-02 00:00:00", "b", "google")],
        "time string, address string, provider string",
    ).selectExpr("to_timestamp(time) AS time", "address", "provider")
    allowances = spark.createDataFrame(
        [(first, "a", "google", 1), (first, "a", "", 3), (second, "a", "google", 5)], ALLOWANCE
    )
    rows = attempts.transform(warmed(allowances)).collect()
    assert {(r["day"], r["provider"]): (r["sent"], r["over"], r["kept"]) for r in rows} == {
        (first, "google"): (2, 1, False),
        (first, ""): (3, 0, True),
        (second, "google"): (0, 0, True),
    }
