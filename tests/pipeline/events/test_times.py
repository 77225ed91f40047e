"""Times in every form."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

times = pytest.importorskip("zonemta_py.pipeline.events.rows")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEN = int(datetime(2026, 11, 1, 10, 0, 0, tzinfo=UTC).timestamp() * 1000)  # 10:00 on 1 November
MIDNIGHT = TEN - 36_000_000

TEXTS: list[tuple[str | None, int | None]] = [
    ("2026-11-01T10:00:00Z", TEN),
    ("2026-11-01T10:00:00.250Z", TEN + 250),
    ("2026-11-01T12:00:00+02:00", TEN),
    ("2026-11-01T12:00:00+0200", TEN),
    ("2026-11-01 10:00:00 UTC", TEN),
    ("2026-11-01 10:00:00", TEN),
    ("2026-11-01T10:00", TEN),
    ("2026-11-01T10:00Z", TEN),
    ("2026-11-01 10:00 UTC", TEN),
    ("2026-11-01T12:00+02:00", TEN),
    ("2026-11-01T08:30-0130", TEN),
    (" 2026-11-01\u00a0", MIDNIGHT),
    ("20261101", MIDNIGHT),
    (str(TEN), TEN),
    (str(TEN // 1000), TEN),
    (f"{TEN // 1000}.5", TEN + 500),
    *((bad, None) for bad in ("", None, "yesterday", "2026-02-30", "2026-13-01T00:00:00Z", "10:00", "2026", "0", "-1",
    "20261301", "1e12", "99999999999999999", "Sun, 01 Nov 2026 10:00:00 +0000", "1970-01-01T00:00:00Z", "2026-11-01 25:00:00")),
]  # fmt: skip


def read(spark: "SparkSession", values: list[Any], kind: str) -> list[int | None]:
    rows = spark.createDataFrame([(n, value) for n, value in enumerate(values)], f"n int, `t.x` {kind}")
    column = times.time_ms("t.x", rows.schema["t.x"].dataType)
    return [row[0] for row in rows.orderBy("n").select(column).collect()]


def test_times_as_text(spark: "SparkSession") -> None:
    found = read(spark, [text for text, _ in TEXTS], "string")
    assert list(zip([text for text, _ in TEXTS], found, strict=True)) == TEXTS


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("timestamp", [datetime(2026, 11, 1, 10, tzinfo=UTC), None], [TEN, None]),
        ("timestamp_ntz", [datetime(2026, 11, 1, 10)], [TEN]),
        ("date", [date(2026, 11, 1)], [MIDNIGHT]),
        ("long", [TEN, TEN // 1000, 0, -5, 20261101], [TEN, TEN, None, None, MIDNIGHT]),
        ("int", [TEN // 1000], [TEN]),
        ("double", [TEN / 1000 + 0.5, float("nan"), 1e300], [TEN + 500, None, None]),
        ("decimal(18,3)", [Decimal(TEN // 1000)], [TEN]),
        ("boolean", [True], [None]),
    ],
)
def test_times_of_every_type(
    spark: "SparkSession", kind: str, values: list[Any], expected: list[int | None]
) -> None:
    assert read(spark, values, kind) == expected
