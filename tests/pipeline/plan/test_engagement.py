"""Times of opens and clicks in every form, and the segments that follow from them."""

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import pytest

from zonemta_py.pipeline.plan.segment import EngagementPolicy

engagement = pytest.importorskip("zonemta_py.pipeline.plan.segment")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEN = int(datetime(2026, 11, 1, 10, 0, 0, tzinfo=UTC).timestamp() * 1000)  # 10:00 on 1 November
MIDNIGHT = TEN - 36_000_000
POLICY = EngagementPolicy(date(2026, 11, 24))
DAY_MS = 86_400_000


def segment_of(spark: "SparkSession", days: int | None, joined_days: int | None = None) -> str:
    """The segment of an address that was active ``days`` and joined ``joined_days`` before the end of the day."""
    end = POLICY.ends_ms
    listed = spark.createDataFrame(
        [(0, "a@x.example", None if joined_days is None else str(end - joined_days * DAY_MS))],
        "`#position` long, email string, joined string",
    )
    opens = spark.createDataFrame(
        [] if days is None else [("A@X.example", str(end - days * DAY_MS))], "email string, time string"
    )
    rows = listed.transform(engagement.classify_list("email", "joined")).transform(
        engagement.with_segment(
            opens.transform(engagement.engagement_by_address("email", "time", POLICY)), POLICY
        )
    )
    return str(rows.collect()[0]["segment"])


@pytest.mark.parametrize(
    ("days", "joined", "segment"),
    [
        (1, None, "active_30"), (31, None, "active_30"), (32, None, "active_90"), (91, None, "active_90"),
        (92, 1, "active_180"), (181, None, "active_180"), (182, None, "lapsed"), (366, 1, "lapsed"), (367, 1, "sunset"),
        (None, 31, "new"), (None, 32, "sunset"), (None, None, "sunset"), (0, 3, "new"), (-5, None, "sunset"),
    ],
)  # fmt: skip
def test_segments(spark: "SparkSession", days: int | None, joined: int | None, segment: str) -> None:
    """The first moment of each segment, and the last before it. What is later than the day does not count."""
    assert segment_of(spark, days, joined) == segment


def test_engagement_is_counted(spark: "SparkSession") -> None:
    """Addresses are compared by the relay's rule, without regard to case; each row is counted once."""
    rows = spark.createDataFrame(
        [
            ("a@x.example", str(TEN)), (" A@X.EXAMPLE", str(TEN + 5)), ("a@x.example", "bad"), ("a@x.example", "2099-01-01"),
            ("x@bücher.example", "2026-11-01"), ("x@xn--bcher-kva.example", None), ("wrong", str(TEN)), (None, "bad"),
        ],
        "email string, time string",
    ).transform(engagement.engagement_by_address("email", "time", POLICY))  # fmt: skip
    found = {row["key"]: tuple(row)[1:] for row in rows.collect()}
    assert found["a@x.example"] == (TEN + 5, 4, 2, 1, 1)
    assert found["x@xn--bcher-kva.example"] == (MIDNIGHT, 2, 1, 1, 0)
    assert found[None][1] == 2
    assert len(found) == 3
