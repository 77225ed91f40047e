"""Reports from segments: complete ones, and those that are kept up to date."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.pipeline.campaigns import content, copy, no_progress, open_log, report, sorted_rows
from tests.pipeline.segments import delivered, write_log, write_segment
from zonemta_py.cli.pipeline.group import pipeline
from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_torn_segment(spark: "SparkSession", tmp_path: Path) -> None:
    """What is behind the tear is missing from the sums, and that is said; nothing readable is left to a report of nothing."""
    from zonemta_py.pipeline.report.job import NoAttempts, ReportRequest

    path = write_segment(tmp_path / "events", "a", [delivered(seq) for seq in range(2000)])
    path.write_bytes(path.read_bytes()[:400])  # in the first frame
    assert "a.jsonl.zst: damaged at byte 0" in str(open_log(spark, tmp_path / "events").damage[0])
    with pytest.raises(NoAttempts):
        report(spark, ReportRequest(str(tmp_path / "events"), [], str(tmp_path / "out")))


def test_an_update_of_nothing_readable(tmp_path: Path) -> None:
    """Says what is damaged, and lists it."""
    path = write_segment(tmp_path / "events", "a", [delivered(seq) for seq in range(2000)])
    path.write_bytes(path.read_bytes()[:400])
    command = ["report", str(tmp_path / "events"), "--output", str(tmp_path / "out"), "--update"]
    for _ in range(2):
        found = CliRunner().invoke(pipeline, command)
        assert found.exit_code == 1, found.output
        assert "no delivery was attempted" in found.stderr
        assert "a.jsonl.zst: damaged at byte 0" in found.stderr
    assert "a.jsonl.zst" in (tmp_path / "out/quarantine/segments.jsonl").read_text()


def test_no_events(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.report.job import ReportRequest

    for path, problem in (
        (tmp_path / "missing", "no event log here"),
        (tmp_path, "no delivery was attempted"),
    ):
        with pytest.raises(LocalError, match=problem):
            report(spark, ReportRequest(str(path), [], str(tmp_path / f"out-{problem[:3]}")))


def test_an_update_equals_a_complete_report(spark: "SparkSession", tmp_path: Path, root: str) -> None:
    """An update reads only new segments; its tables are those of a complete report."""
    from zonemta_py.pipeline.report.job import ReportRequest, update_report
    from zonemta_py.pipeline.spark.files import names_in

    written, events, output = tmp_path / "written", f"{root}/events", f"{root}/report"
    request = ReportRequest(events, (), output)

    def update() -> tuple[dict[str, Any], int]:
        copy(spark, written, events)
        sums, log = update_report(spark, request, None, no_progress)
        return sums, len(log.segments)

    write_segment(written, "a", [delivered(n, duration_ms=n) for n in range(10)])
    sums, segments = update()
    assert (sums["delivered"], segments) == (10, 1)
    write_segment(written, "b", [delivered(n) for n in range(8, 25)])
    write_segment(written, "c", [delivered(n, event="bounced", code=550, status="5.1.1", reply=f"no user {n}") for n in range(25, 30)])  # fmt: skip
    sums, segments = update()
    assert (sums["delivered"], sums["bounced"], segments) == (25, 5, 2)
    assert update() == (sums, 0)
    assert "25" in content(spark, f"{output}/report.html")
    assert names_in(spark, output) == {
        "anomalies", "days", "hours", "rates", "read", "replies", "report.html", "sums",
    }  # fmt: skip
    complete = ReportRequest(events, (), f"{root}/complete")
    assert report(spark, complete) == sums
    for name in ("rates", "hours", "days", "replies"):
        one, other = (spark.read.parquet(f"{path}/{name}") for path in (output, complete.output))
        assert sorted_rows(one) == sorted_rows(other), name


def test_a_segment_that_is_restored(spark: "SparkSession", tmp_path: Path, root: str) -> None:
    """An update counts what can be read of a damaged segment once, and the rest when it is restored."""
    from zonemta_py.pipeline.report.job import ReportRequest, update_report
    from zonemta_py.pipeline.spark.files import names_in

    written, events, output = tmp_path / "written", f"{root}/events", f"{root}/report"
    request = ReportRequest(events, (), output)
    write_segment(written, "a", [delivered(n) for n in range(10)])
    path = write_segment(written, "b", [delivered(n) for n in range(10, 30)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-150])  # into the second of two frames
    copy(spark, written, events)
    for _ in range(2):
        sums, log = update_report(spark, request, None, no_progress)
        assert (sums["delivered"], len(log.damaged)) == (20, 1)
        assert f"{root}/events/{path.relative_to(written)}: " in str(log.damage[0])
        assert "damage" in content(spark, f"{output}/report.html")
        assert "quarantine" in (names_in(spark, output) or ())
    path.write_bytes(whole)
    copy(spark, written, events)
    sums, log = update_report(spark, request, None, no_progress)
    assert (sums["delivered"], log.damage) == (30, [])
    assert "quarantine" not in (names_in(spark, output) or ())


def test_a_gap_is_there_until_the_segment_is(spark: "SparkSession", tmp_path: Path) -> None:
    """Also an update that finds nothing new names what is missing, until it arrives."""
    from zonemta_py.pipeline.events.log import damage_counts
    from zonemta_py.pipeline.report.job import ReportRequest, update_report

    events, output = tmp_path / "events", tmp_path / "report"
    request = ReportRequest(str(events), (), str(output))
    paths = write_log(events, 3)
    missing = paths[1].rename(tmp_path / "aside")
    for _ in range(2):
        _, log = update_report(spark, request, None, no_progress)
        assert damage_counts(log) == {"damaged_segments": 0, "gaps": 1}
        assert str(log.damage[0]).endswith(
            f"{paths[2].name}: events between 0000000000000014 and 0000000000000029 of node abcdef are missing"
        )
        assert "no damage found" not in (output / "report.html").read_text()
        assert (output / "quarantine" / "segments.jsonl").exists()
    missing.rename(paths[1])
    for _ in range(2):
        _, log = update_report(spark, request, None, no_progress)
        assert log.damage == []
        assert not (output / "quarantine").exists()


def test_it_updates_until_it_is_interrupted(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is sealed during the run is in the report; KeyboardInterrupt ends the run."""
    from zonemta_py.pipeline.report import job

    events, output = tmp_path / "events", tmp_path / "report"
    write_segment(events, "a", [delivered(n) for n in range(10)])
    seen: list[int] = []
    original = job._write

    def write(*args: Any) -> dict[str, Any]:
        sums = original(*args)
        seen.append(sums["delivered"])
        if len(seen) == 1:
            write_segment(events, "b", [delivered(n) for n in range(10, 15)])
        else:
            raise KeyboardInterrupt
        return sums

    monkeypatch.setattr(job, "_write", write)
    request = job.ReportRequest(str(events), (), str(output))
    sums, _ = job.update_report(spark, request, 0.2, no_progress)
    assert seen == [10, 15]
    assert sums["delivered"] == 10
    monkeypatch.setattr(job, "_write", original)
    sums, _ = job.update_report(spark, request, None, no_progress)
    assert sums["delivered"] == 15
    assert not (output / "_next").exists()


def test_tables_of_a_catalog(spark: "SparkSession", tmp_path: Path) -> None:
    """Each run replaces them, and drops those that it does not have."""
    from zonemta_py.pipeline.report.job import ReportRequest

    write_segment(tmp_path / "events", "a", [delivered(n) for n in range(10)])
    spark.sql(f"CREATE SCHEMA mail LOCATION '{tmp_path}/warehouse'")
    spark.sql("CREATE TABLE mail.warmup AS SELECT 1 AS sent")
    for run in range(2):
        request = ReportRequest(str(tmp_path / "events"), (), f"{tmp_path}/out-{run}", tables="mail")
        report(spark, request)
        tables = spark.sql("SHOW TABLES IN mail").where("NOT isTemporary").collect()
        assert {row["tableName"] for row in tables} == {
            "rates", "hours", "days", "replies", "anomalies",
        }  # fmt: skip
        assert spark.table("mail.hours").agg({"delivered": "sum"}).collect()[0][0] == 10
    spark.sql("DROP SCHEMA mail CASCADE")


class Killed(BaseException):
    """The process is killed here."""


def test_a_first_run_that_is_killed_before_its_state(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums and names without a state are those of no run: the next run begins again."""
    from zonemta_py.pipeline.report import job as module

    def write_state(*_: object) -> None:
        raise Killed

    request = module.ReportRequest(str(tmp_path / "events"), (), str(tmp_path / "report"))
    write_segment(tmp_path / "events", "a", [delivered(n) for n in range(10)])
    with monkeypatch.context() as killed:
        killed.setattr(module, "write_state", write_state)
        with pytest.raises(Killed):
            module.update_report(spark, request, None, no_progress)
    assert (tmp_path / "report" / "read").exists()
    sums, _ = module.update_report(spark, request, None, no_progress)
    assert sums["delivered"] == 10


def test_a_complete_report_replaces_one_that_was_kept_up_to_date(
    spark: "SparkSession", tmp_path: Path
) -> None:
    from zonemta_py.pipeline.report.job import ReportRequest, update_report

    request = ReportRequest(str(tmp_path / "events"), (), str(tmp_path / "report"), overwrite=True)
    write_segment(tmp_path / "events", "a", [delivered(n) for n in range(10)])
    update_report(spark, request, None, no_progress)
    assert report(spark, request)["delivered"] == 10
    assert not (tmp_path / "report" / "read").exists()


@pytest.mark.parametrize("copied", [False, True])
def test_a_run_that_is_killed_while_it_replaces_tables(
    spark: "SparkSession", tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """The next run puts the rest in place: tables and page are of one run.

    An object store moves a file by a copy: ``copied`` is a kill before the original is removed.
    """
    from zonemta_py.pipeline.report import job as module
    from zonemta_py.pipeline.spark.files import move as original
    from zonemta_py.pipeline.spark.files import names_in, read_bytes, write_bytes

    written, events, output = tmp_path / "written", f"{root}/events", f"{root}/report"
    request = module.ReportRequest(events, (), output)
    moved: list[str] = []

    def move(session: "SparkSession", source: str, target: str) -> None:
        if len(moved) == 2:
            for name in (names_in(session, source) or ()) if copied else ():
                write_bytes(session, f"{target}/{name}", read_bytes(session, f"{source}/{name}"))
            raise Killed
        moved.append(source)
        original(session, source, target)

    def write(name: str, begin: int, end: int) -> None:
        write_segment(written, name, [delivered(n) for n in range(begin, end)])
        copy(spark, written, events)

    write("a", 0, 10)
    module.update_report(spark, request, None, no_progress)
    write("b", 10, 15)
    with monkeypatch.context() as killed:
        killed.setattr(module, "move", move)
        with pytest.raises(Killed):
            module.update_report(spark, request, None, no_progress)
    sums, log = module.update_report(spark, request, None, no_progress)
    assert (sums["delivered"], log.segments) == (15, [])
    hours = spark.read.parquet(f"{output}/hours").agg({"delivered": "sum"}).collect()[0][0]
    assert hours == 15
    assert "_next" not in (names_in(spark, output) or ())


def test_a_message_of_several_plans_counts_once(spark: "SparkSession", tmp_path: Path) -> None:
    """Plans that are made once per campaign have the same messages in their ledgers."""
    from zonemta_py.pipeline.report.job import campaigns_of

    rows = [("m1", "june"), ("m2", "june")], [("m1", "june"), ("m1", "june"), ("m3", "july")]
    for number, ledger in enumerate(rows):
        written = spark.createDataFrame(
            [([message], campaign) for message, campaign in ledger],
            "messages array<string>, campaign string",
        )
        written.write.parquet(str(tmp_path / f"{number}" / "ledger" / "run=1"))
    found = campaigns_of(spark, [str(tmp_path / "0"), str(tmp_path / "1"), str(tmp_path / "1")])
    assert found is not None
    assert sorted(map(tuple, found.collect())) == [("m1", "june"), ("m2", "june"), ("m3", "july")]
