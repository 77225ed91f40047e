"""The event log as a DataFrame."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipeline.campaigns import open_log
from tests.pipeline.segments import delivered, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_event_in_two_segments_is_read_once(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.spark.events import read_events

    events = [delivered(seq) for seq in range(10)]
    write_segment(tmp_path, "a", events[:7])
    write_segment(tmp_path, "b", events[5:])
    assert read_events(spark, open_log(spark, str(tmp_path))).count() == 10


def test_a_newer_relay(spark: "SparkSession", tmp_path: Path) -> None:
    """Unknown fields are dropped; unknown events are rows."""
    from zonemta_py.pipeline.spark.events import read_events

    newer = [
        {**delivered(1), "quantum": {"a": [1]}},
        {"node": "n", "seq": 2, "position": 0, "event": "teleported"},
    ]
    write_segment(tmp_path, "a", newer)
    assert {r["event"] for r in read_events(spark, open_log(spark, str(tmp_path))).collect()} == {
        "delivered",
        "teleported",
    }
