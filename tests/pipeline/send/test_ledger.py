"""Which messages the relay had accepted before a plan was sent."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGUN_MS = 1_800_000_000_000
# Of a repeated message: when it was accepted, before the begin of sending, and whether it is another plan's,
# of one that is sent once per campaign, and of another one, which may meet its own only.
ROWS = [
    (-600_000, False, False),
    (1_900, False, False),  # a reply may have taken so long
    (2_100, True, False),  # the other run has just ended
    (59_000, True, False),  # the clock of this machine may be ahead
    (61_000, True, True),
]


@pytest.mark.parametrize("of_campaign", [True, False])
def test_how_long_before(spark: "SparkSession", of_campaign: bool) -> None:
    from zonemta_py.pipeline.send.ledger import is_earlier

    rows = [
        (before_ms, repeated, BEGUN_MS + 1_000_000, 1_000_000 + before_ms, ["x"])
        for before_ms, *_ in ROWS
        for repeated in (True, False)
    ]
    ledger = spark.createDataFrame(
        rows, "before_ms long, repeated boolean, time_ms long, age_ms long, messages array<string>"
    )
    found = ledger.where(is_earlier(BEGUN_MS, of_campaign=of_campaign)).collect()
    assert all(row["repeated"] for row in found)
    assert sorted(row["before_ms"] for row in found) == [
        before_ms for before_ms, *of in ROWS if of[0 if of_campaign else 1]
    ]


def test_a_relay_that_does_not_say_how_long_ago(spark: "SparkSession") -> None:
    """Ids begin with the time of the relay, whose clock may be a minute behind."""
    from zonemta_py.pipeline.send.ledger import is_earlier

    rows = [
        (before_ms, True, BEGUN_MS, None, [f"{BEGUN_MS - before_ms:012x}0001"])
        for before_ms in (0, 59_000, 61_000)
    ]
    ledger = spark.createDataFrame(
        rows, "before_ms long, repeated boolean, time_ms long, age_ms long, messages array<string>"
    )
    [row] = ledger.where(is_earlier(BEGUN_MS, of_campaign=True)).collect()
    assert row["before_ms"] == 61_000
