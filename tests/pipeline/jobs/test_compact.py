"""New, repeated and late segments, through Structured Streaming."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.campaigns import no_progress
from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS, delivered, write_segment
from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compacted(spark: "SparkSession", events: Path, output: Path) -> tuple[int, list[int]]:
    """The number of events that a run has written, and all sequence numbers after it."""
    from zonemta_py.pipeline.jobs.compact import CompactRequest, compact
    from zonemta_py.pipeline.spark.events import read_events

    request = CompactRequest(str(events), str(output))
    written = compact(spark, request, no_progress)
    found = spark.read.parquet(request.lake)
    assert found.count() == read_events(spark, request.lake).count()
    return written, sorted(row["seq"] for row in found.select("seq").collect())


def test_each_event_is_written_once(spark: "SparkSession", tmp_path: Path) -> None:
    """Repeats are recognised across runs; an old event is not dropped as late; the hour is the event's."""
    events, output = tmp_path / "events", tmp_path / "lake"
    write_segment(events, "a", [delivered(n, time_ms=HOUR_BEGINS_MS) for n in range(10)])
    assert compacted(spark, events, output) == (10, list(range(10)))
    write_segment(events, "b", [delivered(n, time_ms=HOUR_BEGINS_MS + HOUR_MS) for n in range(5, 12)])
    write_segment(events, "late", [delivered(20, time_ms=HOUR_BEGINS_MS - 1000 * HOUR_MS)])
    (events / "date=2026-11-21" / "hour=09" / ".n-3.open").write_bytes(b"half")
    assert compacted(spark, events, output) == (3, [*range(12), 20])
    assert compacted(spark, events, output) == (0, [*range(12), 20])
    rows = (
        spark.read.parquet(f"{output}/events")
        .groupBy("date", "hour")
        .count()
        .orderBy("date", "hour")
        .collect()
    )
    assert [(row["hour"], row["count"]) for row in rows] == [(10, 1), (2, 10), (3, 2)]


def test_no_segments(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.jobs.compact import CompactRequest, compact

    with pytest.raises(LocalError, match="no event log here"):
        compact(spark, CompactRequest(str(tmp_path / "missing"), str(tmp_path / "out")), no_progress)


def test_a_truncated_segment(spark: "SparkSession", tmp_path: Path) -> None:
    """Nothing of the batch is written; when the file is complete, the next run writes all."""
    events, output = tmp_path / "events", tmp_path / "lake"
    path = write_segment(events, "a", [delivered(n) for n in range(2000)])
    complete = path.read_bytes()
    path.write_bytes(complete[:400])  # in the first frame
    with pytest.raises(LocalError, match=r"a.jsonl.zst cannot be read"):
        compacted(spark, events, output)
    path.write_bytes(complete)
    written, found = compacted(spark, events, output)
    assert (written, len(found)) == (2000, 2000)


def test_sigint_stops_it_after_the_batch(spark: "SparkSession", tmp_path: Path) -> None:
    """The current batch is written, and the previous signal handler is restored."""
    from zonemta_py.pipeline.jobs.compact import CompactRequest, compact

    events = tmp_path / "events"
    write_segment(events, "a", [delivered(n) for n in range(10)])
    before = signal.getsignal(signal.SIGINT)
    request = CompactRequest(str(events), str(tmp_path / "lake"), 0.2)
    written = compact(spark, request, no_progress, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert written == 10
    assert signal.getsignal(signal.SIGINT) is before
    assert spark.read.parquet(request.lake).count() == 10
