"""New segments, repeated ones and late ones, through Structured Streaming; reports that grow with them."""

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.segments import delivered, write_segment
from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
HOUR_BEGINS_MS = 1_799_978_400_000  # 02:00 UTC


def quiet(text: str) -> None:
    """No progress."""


def compacted(spark: "SparkSession", events: Path, output: Path) -> tuple[int, list[int]]:
    """What a run wrote, and the sequence numbers that are there after it."""
    from zonemta_py.pipeline.jobs.compact import Request, compact
    from zonemta_py.pipeline.spark.events import read_events

    request = Request(str(events), str(output))
    written = compact(spark, request, quiet)
    found = spark.read.parquet(request.lake)
    assert found.count() == read_events(spark, request.lake).count()
    return written, sorted(row["seq"] for row in found.select("seq").collect())


def test_each_record_once(spark: "SparkSession", tmp_path: Path) -> None:
    """Repeats in another run are known; a record of long ago is not too late; the hour is the event's."""
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
    from zonemta_py.pipeline.jobs.compact import Request, compact

    with pytest.raises(LocalError, match="no event log here"):
        compact(spark, Request(str(tmp_path / "missing"), str(tmp_path / "out")), quiet)


def test_a_torn_segment_stops_it(spark: "SparkSession", tmp_path: Path) -> None:
    """Nothing of that batch is written; with the file made whole, the next run has everything."""
    events, output = tmp_path / "events", tmp_path / "lake"
    path = write_segment(events, "a", [delivered(n) for n in range(2000)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(LocalError, match=r"a.jsonl.zst cannot be read"):
        compacted(spark, events, output)
    path.write_bytes(whole)
    written, found = compacted(spark, events, output)
    assert (written, len(found)) == (2000, 2000)


def test_a_report_that_grows(spark: "SparkSession", tmp_path: Path) -> None:
    """Each update reads what is new and shows everything; and it is what a whole report shows."""
    from zonemta_py.pipeline.jobs.report import Request, make_report, update_report

    events, output = tmp_path / "events", tmp_path / "report"
    request = Request(str(events), (), str(output))
    write_segment(events, "a", [delivered(n) for n in range(10)])
    assert update_report(spark, request, None, quiet)["delivered"] == 10
    write_segment(events, "b", [delivered(n) for n in range(8, 25)])
    sums = update_report(spark, request, None, quiet)
    assert sums["delivered"] == 25
    assert update_report(spark, request, None, quiet) == sums
    assert ">25</b>recipients delivered" in (output / "report.html").read_text()
    assert sorted(each.name for each in output.iterdir()) == [
        "anomalies", "attempts", "days", "hours", "lake", "rates", "replies", "report.html",
    ]  # fmt: skip
    whole = make_report(spark, Request(str(events), (), str(tmp_path / "whole")), quiet)
    assert whole == sums


def test_it_goes_on_until_it_is_interrupted(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches: a segment sealed while it runs is in the report, then Ctrl-C ends it."""
    from zonemta_py.pipeline.jobs import report

    events, output = tmp_path / "events", tmp_path / "report"
    write_segment(events, "a", [delivered(n) for n in range(10)])
    seen: list[int] = []
    original = report._write

    def write(*args: Any) -> dict[str, Any]:
        sums = original(*args)
        seen.append(sums["delivered"])
        if len(seen) == 1:
            write_segment(events, "b", [delivered(n) for n in range(10, 15)])
        else:
            raise KeyboardInterrupt
        return sums

    monkeypatch.setattr(report, "_write", write)
    request = report.Request(str(events), (), str(output))
    sums = report.update_report(spark, request, 0.2, quiet)
    assert seen == [10, 15]
    assert sums["delivered"] == 10
    shutil.rmtree(output / "_next")


def test_ctrl_c_ends_it_in_order(spark: "SparkSession", tmp_path: Path) -> None:
    """The batch under way is written, and the handler of before is back."""
    from zonemta_py.pipeline.jobs.compact import Request, compact

    events = tmp_path / "events"
    write_segment(events, "a", [delivered(n) for n in range(10)])
    before = signal.getsignal(signal.SIGINT)
    request = Request(str(events), str(tmp_path / "lake"), 0.2)
    written = compact(spark, request, quiet, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert written == 10
    assert signal.getsignal(signal.SIGINT) is before
    assert spark.read.parquet(request.lake).count() == 10


# ---- hours unlike those before them


def hours(deferred_of_100: list[int]) -> list[dict[str, Any]]:
    """100 attempts in each hour, so many of them deferred."""
    found = []
    for hour, deferred in enumerate(deferred_of_100):
        for n in range(100):
            late = n < deferred
            found.append(
                delivered(
                    100 * hour + n,
                    event="deferred" if late else "delivered",
                    time_ms=HOUR_BEGINS_MS + hour * HOUR_MS + n,
                    code=421 if late else 250,
                    status="4.7.0" if late else "2.0.0",
                    reply=f"Too many connections from 10.0.0.{n}" if late else "Ok",
                )
            )
    return found


def test_an_hour_unlike_the_others(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.spark.events import read_events
    from zonemta_py.pipeline.transforms.anomalies import Sensitivity, anomalies
    from zonemta_py.pipeline.transforms.rates import attempts

    usual = [5, 6, 4, 5, 7, 5] * 5
    write_segment(tmp_path, "a", hours([*usual, 6, 40, 5]))
    rows = read_events(spark, str(tmp_path)).transform(attempts(None)).cache()
    [found] = rows.transform(anomalies(Sensitivity())).collect()
    assert (found["provider"], found["measure"], found["attempts"]) == ("x.example", "deferral", 100)
    assert (found["rate"], found["usual"]) == (pytest.approx(0.4), pytest.approx(0.05))
    assert found["hour"].isoformat() == "2027-01-16T09:00:00"
    assert [(r["count"], r["reason"], r["template"]) for r in found["replies"]] == [
        (40, "rate limited", "Too many connections from <ip>")
    ]
    assert rows.transform(anomalies(Sensitivity(score=100))).count() == 0
    assert rows.transform(anomalies(Sensitivity(history=32))).count() == 0, "no history yet"
    assert rows.transform(anomalies(Sensitivity(attempts=101))).count() == 0, "too few attempts"
