"""The event log as a DataFrame."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipeline.campaigns import open_log
from tests.pipeline.segments import delivered, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_event_in_two_segments_is_read_once(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.events.rows import read_events

    events = [delivered(seq) for seq in range(10)]
    write_segment(tmp_path, "a", events[:7])
    write_segment(tmp_path, "b", events[5:])
    assert read_events(spark, open_log(spark, str(tmp_path))).count() == 10


def test_a_newer_relay(spark: "SparkSession", tmp_path: Path) -> None:
    """Unknown fields are dropped; unknown events are rows."""
    from zonemta_py.pipeline.events.rows import read_events

    newer = [
        {**delivered(1), "quantum": {"a": [1]}},
        {"node": "n", "seq": 2, "position": 0, "event": "teleported"},
    ]
    write_segment(tmp_path, "a", newer)
    assert {r["event"] for r in read_events(spark, open_log(spark, str(tmp_path))).collect()} == {
        "delivered",
        "teleported",
    }


def test_the_logs_of_several_relays(spark: "SparkSession", tmp_path: Path) -> None:
    """Below one directory; the date and the hour are those of each segment."""
    from zonemta_py.pipeline.events.rows import read_events

    write_segment(tmp_path / "one", "a", [delivered(seq) for seq in range(1, 5)])
    write_segment(tmp_path / "two", "b", [delivered(seq, node="fedcba") for seq in range(5, 10)])
    log = open_log(spark, str(tmp_path))
    assert (len(log.segments), log.records, log.damage) == (2, 9, [])
    rows = read_events(spark, log)
    assert rows.count() == 9
    assert [tuple(map(str, row)) for row in rows.select("date", "hour").distinct().collect()] == [("2026-11-21", "9")]  # fmt: skip
