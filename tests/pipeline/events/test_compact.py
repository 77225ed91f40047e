"""New, repeated, late and damaged segments."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import content, copy, no_progress, open_log, report
from tests.pipeline.object_store import ROOTS
from tests.pipeline.segments import (
    HOUR_BEGINS_MS,
    HOUR_MS,
    accepted,
    delivered,
    write_log,
    write_segment,
)
from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compacted(spark: "SparkSession", events: Path | str, output: Path | str) -> tuple[int, list[int]]:
    """The number of events that a run has written, and all sequence numbers after it."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact
    from zonemta_py.pipeline.events.rows import read_events

    request = CompactRequest(str(events), str(output))
    written = compact(spark, request, no_progress).records
    found = spark.read.parquet(request.lake)
    assert found.count() == read_events(spark, open_log(spark, request.lake)).count()
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
    from zonemta_py.pipeline.events.compact import CompactRequest, compact

    with pytest.raises(LocalError, match="no event log here"):
        compact(spark, CompactRequest(str(tmp_path / "missing"), str(tmp_path / "out")), no_progress)


def test_its_own_output(spark: "SparkSession", tmp_path: Path) -> None:
    """Is not read in parts: without segments nothing says what is new."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact
    from zonemta_py.pipeline.report.job import ReportRequest, update_report

    write_log(tmp_path / "events", 1)
    request = CompactRequest(str(tmp_path / "events"), str(tmp_path / "lake"))
    compact(spark, request, no_progress)
    with pytest.raises(LocalError, match="the output of compact"):
        compact(spark, CompactRequest(request.lake, str(tmp_path / "again")), no_progress)
    with pytest.raises(LocalError, match="the output of compact"):
        update_report(spark, ReportRequest(request.lake, (), str(tmp_path / "out")), None, no_progress)


def test_a_damaged_segment(spark: "SparkSession", tmp_path: Path) -> None:
    """Its whole frames are written once; when it is complete, the next run writes the rest."""
    events, output = tmp_path / "events", tmp_path / "lake"
    path = write_segment(events, "a", [delivered(n) for n in range(2000)])
    complete = path.read_bytes()
    path.write_bytes(complete[:-100])  # into the second frame
    assert compacted(spark, events, output) == (1000, list(range(1000)))
    assert compacted(spark, events, output) == (0, list(range(1000)))
    path.write_bytes(complete)
    assert compacted(spark, events, output) == (1000, list(range(2000)))


def test_a_gap_is_there_until_the_segment_is(spark: "SparkSession", tmp_path: Path) -> None:
    """Also a run that finds nothing new names what is missing, until it arrives."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact
    from zonemta_py.pipeline.events.log import damage_counts

    request = CompactRequest(str(tmp_path / "events"), str(tmp_path / "lake"))
    paths = write_log(tmp_path / "events", 3)
    missing = paths[1].rename(tmp_path / "aside")

    def gaps() -> int:
        found = damage_counts(compact(spark, request, no_progress).log)
        assert found["damaged_segments"] == 0
        assert found == damage_counts(open_log(spark, request.lake))
        return found["gaps"] or 0

    assert [gaps(), gaps()] == [1, 1]
    missing.rename(paths[1])
    assert [gaps(), gaps()] == [0, 0]


def test_a_report_of_its_output(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    """Has the counts and the damage that compact found; of files without them it says that they are not verified."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact
    from zonemta_py.pipeline.events.log import damage_counts
    from zonemta_py.pipeline.report.job import ReportRequest
    from zonemta_py.pipeline.spark.files import names_in, remove

    written = tmp_path / "written"
    cut, *_ = write_log(written, 3)
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-100])  # into the second of its frames
    copy(spark, written, f"{root}/events")
    lake = CompactRequest(f"{root}/events", f"{root}/lake")
    compact(spark, lake, no_progress)
    request = ReportRequest(f"{lake.lake}/", (), f"{root}/out", overwrite=True)

    def page() -> str:
        report(spark, request)
        return content(spark, f"{root}/out/report.html")

    assert damage_counts(open_log(spark, request.events)) == {"damaged_segments": 1, "gaps": 1}
    assert cut.name in page()
    assert "segments.jsonl" in (names_in(spark, f"{root}/out/quarantine") or ())
    cut.write_bytes(whole)
    copy(spark, written, f"{root}/events")
    compact(spark, lake, no_progress)
    found = page()
    assert "event log: no damage found" in found
    assert "<dt>Segments</dt><dd>3</dd>" in found, "the damaged one was read twice"
    assert "<dt>Records read</dt><dd>60</dd>" in found
    if root == str(tmp_path):
        with monkeypatch.context() as inside:
            inside.chdir(tmp_path / "lake")
            assert open_log(spark, "events").records == 60
    remove(spark, f"{root}/lake/quarantine/segments.jsonl")  # as an earlier version left it
    found = page()
    assert "no damage found" not in found
    assert "event log: not verified" in found
    assert damage_counts(open_log(spark, request.events)) == {"damaged_segments": None, "gaps": None}


class Killed(BaseException):
    """The process is killed here."""


@pytest.mark.parametrize(
    ("root", "moment"),
    [
        *(("path", moment) for moment in ("moving.json", "state.json", "first file")),
        (ROOTS[-1], "copied"),
    ],
    indirect=["root"],
)
def test_a_run_that_is_killed(
    spark: "SparkSession", tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before, at and after the moment from which the run counts: nothing is lost, nothing is there twice.

    An object store moves a file by a copy: ``copied`` is a kill before the original is removed.
    """
    from zonemta_py.pipeline.events import compact as module
    from zonemta_py.pipeline.spark.files import move, names_in, read_bytes, write_bytes, write_text

    written, events, output = tmp_path / "written", f"{root}/events", f"{root}/lake"

    def write_killed(session: "SparkSession", path: str, text: str) -> None:
        if path.endswith(moment):
            raise Killed
        write_text(session, path, text)

    def move_killed(session: "SparkSession", source: str, target: str) -> None:
        if moment == "copied":
            write_bytes(session, target, read_bytes(session, source))
        if moment in ("first file", "copied") or source.endswith(moment):
            raise Killed
        move(session, source, target)

    def write(name: str, begin: int, end: int) -> None:
        each = [delivered(n, time_ms=HOUR_BEGINS_MS + n // 3 * HOUR_MS) for n in range(begin, end)]
        write_segment(written, name, each)
        copy(spark, written, events)

    write("a", 0, 5)
    assert compacted(spark, events, output)[0] == 5
    write("b", 5, 9)
    with monkeypatch.context() as killed:
        killed.setattr(module, "write_text", write_killed)
        killed.setattr(module, "move", move_killed)
        with pytest.raises(Killed):
            compacted(spark, events, output)
    _, found = compacted(spark, events, output)
    assert found == list(range(9))
    assert compacted(spark, events, output) == (0, list(range(9)))
    assert names_in(spark, output) == {"events", "quarantine", "read"}


def test_sigint_stops_it_after_the_batch(spark: "SparkSession", tmp_path: Path) -> None:
    """The current batch is written, and the previous signal handler is restored."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact

    events = tmp_path / "events"
    write_segment(events, "a", [delivered(n) for n in range(10)])
    before = signal.getsignal(signal.SIGINT)
    request = CompactRequest(str(events), str(tmp_path / "lake"), 0.2)
    written = compact(spark, request, no_progress, lambda: os.kill(os.getpid(), signal.SIGINT)).records
    assert written == 10
    assert signal.getsignal(signal.SIGINT) is before
    assert spark.read.parquet(request.lake).count() == 10


ODD = [
    delivered(1, tags=[], campaign="june"),
    delivered(2, tags=["a", 'b "c"', "é", "\n\\"]),
    delivered(3, tags=["with\0nul", "x"]),
    delivered(4, tags=["a", None], code="250", tls="yes", quantum={"a": [1]}),
    delivered(5, tags={"a": [1, 2.5]}, code=2.5, reply=17, status=True, index=1 << 70),
    delivered(6, tags=None, reply=["x"], mx={}),
    {"node": "n", "seq": 7, "position": 0, "event": "teleported"},
    accepted(8, ["r@x.example", 'q"@x.example'], note='"event":"delivered"'),
    {**delivered(9), "event": "expired", "reason": "too old", "tags": [""]},
    {"node": "n", "seq": 10, "position": 0, "event": "repeated", "time_ms": 5, "recipients": 3},
]


def test_events_are_those_that_spark_reads(spark: "SparkSession", tmp_path: Path) -> None:
    """Tasks decode and write events to a local directory; Spark does to others: the same rows in the same hours."""
    from pyspark.testing import assertDataFrameEqual

    from zonemta_py.pipeline.events.compact import CompactRequest, compact

    events = tmp_path / "events"
    write_segment(events, "a", ODD)
    write_segment(
        events, "b", [delivered(n, time_ms=HOUR_BEGINS_MS + n * HOUR_MS) for n in range(20, 60)]
    )
    found = []
    for output in (str(tmp_path / "lake"), f"file://{tmp_path}/spark"):
        request = CompactRequest(str(events), output)
        assert compact(spark, request, no_progress).records == 50
        found.append(spark.read.parquet(request.lake))
    assert found[0].schema == found[1].schema
    assertDataFrameEqual(found[0], found[1])


def test_files_of_a_task_that_failed(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not those that the task which ran again has named."""
    from zonemta_py.pipeline.events import compact as module

    events, output = tmp_path / "events", tmp_path / "lake"
    write_segment(events, "a", [delivered(n) for n in range(5)])

    def leave_a_file(path: str) -> bool:
        stray = Path(path) / "date=2026-11-21" / "hour=1" / "part-0.parquet"
        stray.parent.mkdir(parents=True)
        stray.write_bytes(b"half")
        return False

    monkeypatch.setattr(module, "is_url", leave_a_file)
    assert compacted(spark, events, output) == (5, list(range(5)))


def test_a_directory_that_the_machines_do_not_share(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is marked as read; the next run, with a directory that they share, has all events."""
    from zonemta_py.pipeline.events import compact as module

    events, output = tmp_path / "events", tmp_path / "lake"
    write_segment(events, "a", [delivered(n) for n in range(5)])

    def on_another_machine(convert: Any, parts: Any, directory: Path, codec: str) -> Any:
        return partial(convert, parts, tmp_path / "other" / directory.name, codec)

    with monkeypatch.context() as patched:
        patched.setattr(module, "partial", on_another_machine)
        with pytest.raises(LocalError, match=r"1 of 1 files are not here.*all machines share"):
            compacted(spark, events, output)
    assert compacted(spark, events, output) == (5, list(range(5)))
