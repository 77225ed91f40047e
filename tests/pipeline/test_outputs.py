"""What jobs write, on a path and on a URL: each may run again after a kill, and replaces nothing without being asked."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import no_progress, open_log, plan, write_list
from tests.pipeline.object_store import ROOTS
from tests.pipeline.segments import accepted, delivered, write_segment
from zonemta_py.config.load import parse_config
from zonemta_py.core.clock import now_ms
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.simulate.job import scenarios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Job = Callable[..., Any]

JOBS = ("reconcile", "anomaly", "simulate")
# All remove what a killed run left by ``RowsOutput``: one of them shows that it does so anywhere.
JOBS_AND_ROOTS = [*(("reconcile", root) for root in ROOTS), *((job, ROOTS[0]) for job in JOBS[1:])]


def write(spark: "SparkSession", path: str, content: bytes) -> None:
    from zonemta_py.pipeline.spark.files import write_bytes

    write_bytes(spark, path, content)


def text_of(spark: "SparkSession", path: str) -> str:
    from zonemta_py.pipeline.spark.files import read_bytes

    return read_bytes(spark, path).decode()


def names_of(spark: "SparkSession", path: str) -> set[str]:
    from zonemta_py.pipeline.spark.files import names_in

    return names_in(spark, path) or set()


def remove_output(spark: "SparkSession", path: str) -> None:
    from zonemta_py.pipeline.spark.files import remove

    remove(spark, path)


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, spark: "SparkSession", tmp_path_factory: Any) -> "Job":
    """Runs the job of the parameter with an output, on a small log."""
    directory: Path = tmp_path_factory.mktemp("outputs")
    write_segment(directory / "events", "a", [accepted(1, ["u@x.example"]), delivered(2, duration_ms=9)])
    plan(spark, write_list(directory / "list.csv", [["u@x.example", "U"]]), directory / "plan")
    log = open_log(spark, directory / "events")

    def run(output: str, **options: Any) -> Any:
        from zonemta_py.pipeline.report.anomalies import (
            AnomalyRequest,
            AnomalyThresholds,
            find_anomalies,
        )
        from zonemta_py.pipeline.report.outcomes import ReconcileRequest, reconcile
        from zonemta_py.pipeline.simulate.job import SimulateRequest, simulate_scenarios

        options["output"] = output
        if request.param == "reconcile":
            return reconcile(
                spark, ReconcileRequest(str(directory / "plan"), log, **options), no_progress
            )
        if request.param == "anomaly":
            return find_anomalies(
                spark, AnomalyRequest(log, AnomalyThresholds(), **options), no_progress
            )
        changes = scenarios("{}", Path("z.yaml"), [])
        return simulate_scenarios(spark, SimulateRequest(log, changes, **options), no_progress)

    return run


@pytest.mark.parametrize("job", JOBS, indirect=True)
def test_an_output_that_exists(spark: "SparkSession", root: str, job: "Job") -> None:
    output = f"{root}/out"
    first = job(output)
    assert "_SUCCESS" in names_of(spark, output)
    rows = spark.read.parquet(output).count()
    with pytest.raises(LocalError, match="--overwrite"):
        job(output)
    write(spark, f"{output}/.git/config", b"of others")
    assert job(output, overwrite=True) == first
    assert spark.read.parquet(output).count() == rows
    assert ".git" in names_of(spark, output), "what is not of the job stays"
    write(spark, f"{output}/thesis.txt", b"years")
    with pytest.raises(LocalError, match=r"contains thesis\.txt"):
        job(output, overwrite=True)
    assert "thesis.txt" in names_of(spark, output)


@pytest.mark.parametrize("job", JOBS, indirect=True)
def test_a_table(spark: "SparkSession", tmp_path: Path, job: "Job") -> None:
    """It has the rows that a directory has, and is replaced only with ``--overwrite``."""
    spark.sql(f"CREATE SCHEMA outputs LOCATION '{tmp_path}/warehouse'")
    try:
        first = job("table:outputs.rows")
        with pytest.raises(LocalError, match=r"table:outputs\.rows: exists.*--overwrite"):
            job("table:outputs.rows")
        assert job("table:outputs.rows", overwrite=True) == first
        job(f"{tmp_path}/out")
        table, files = spark.table("outputs.rows"), spark.read.parquet(f"{tmp_path}/out")
        assert table.schema.simpleString() == files.schema.simpleString()
        assert table.count() == files.count()
        with pytest.raises(LocalError, match=r"table:nowhere\.rows: there is no schema nowhere"):
            job("table:nowhere.rows")
    finally:
        spark.sql("DROP SCHEMA outputs CASCADE")


@pytest.mark.parametrize(("job", "root"), JOBS_AND_ROOTS, indirect=True)
def test_what_a_killed_run_left_is_replaced(spark: "SparkSession", root: str, job: "Job") -> None:
    output = f"{root}/out"
    job(output)
    rows = spark.read.parquet(output).count()
    remove_output(spark, f"{output}/_SUCCESS")
    for name in (
        "_temporary/0/x",
        "part-00007-x.snappy.parquet",
        "part-00000-x.c000.zstd.parquet",
    ):
        write(spark, f"{output}/{name}", b"half")
    job(output)
    assert spark.read.parquet(output).count() == rows


def test_reports_that_came_by_mail(spark: "SparkSession", root: str) -> None:
    """What ``dsn`` writes, after a kill between its two tables, and when it is complete."""
    from zonemta_py.pipeline.feedback.reports import (
        NOTICES,
        DsnRequest,
        read_matched_reports,
        read_reports,
    )

    mail, output = f"{root}/mail.mbox", f"{root}/out"
    write(spark, mail, b"From a Thu Nov 26 10:00:00 2026\nSubject: out of office\n\nI am away\n")

    def run(**options: bool) -> int:
        request = DsnRequest([mail], [], output, ["s@example.com"], **options)
        return read_reports(spark, request, no_progress).messages

    assert run() == 1
    assert read_matched_reports(spark, output).count() == 1
    with pytest.raises(LocalError, match="--overwrite"):
        run()
    assert run(overwrite=True) == 1
    remove_output(spark, f"{output}/reports/_SUCCESS")
    for table in ("reports", NOTICES):
        write(spark, f"{output}/{table}/part-00009-x.snappy.parquet", b"half")
    with pytest.raises(LocalError, match="did not end"):
        read_matched_reports(spark, output)
    assert run() == 1
    assert read_matched_reports(spark, output).count() == 1


def test_files(spark: "SparkSession", tmp_path: Path, root: str) -> None:
    """What ``suppress`` and ``recommend`` write replaces what was there."""
    from zonemta_py.pipeline.feedback.bounces import SuppressRequest, make_suppression
    from zonemta_py.pipeline.report.advice import RecommendRequest, recommend

    gone = {
        "event": "bounced",
        "code": 550,
        "status": "5.1.1",
        "reply": "no such user",
        "time_ms": now_ms() - 5,
    }
    write_segment(
        tmp_path / "events",
        "a",
        [delivered(n, recipient=f"u{n}@x.example", **gone) for n in range(1, 4)],
    )
    log = open_log(spark, tmp_path / "events")
    for name in ("suppressed.csv", "zones.yaml"):
        write(spark, f"{root}/{name}", b"what was there before, and is longer than what follows" * 50)
    request = SuppressRequest(log, f"{root}/suppressed.csv")
    assert make_suppression(spark, request, no_progress) == 3
    lines = text_of(spark, request.output).splitlines()
    assert [line.partition(",")[0].strip(chr(34)) for line in lines if not line.startswith("#")] == [
        "entry",
        "u1@x.example",
        "u2@x.example",
        "u3@x.example",
    ]
    recommend(spark, RecommendRequest(log, f"{root}/zones.yaml"), no_progress)
    parse_config(text_of(spark, f"{root}/zones.yaml"), Path("zones.yaml"))


def test_a_file_stays_when_its_new_content_cannot_be_made(spark: "SparkSession", root: str) -> None:
    from zonemta_py.pipeline.spark.files import write_lines

    def lines() -> Iterator[str]:
        yield "entry\n" * 1_000_000
        raise LocalError("the job failed")

    write(spark, f"{root}/suppressed.csv", b"what was there")
    with pytest.raises(LocalError, match="the job failed"):
        write_lines(spark, f"{root}/suppressed.csv", lines())
    assert text_of(spark, f"{root}/suppressed.csv") == "what was there"


def test_an_event_log_without_events(spark: "SparkSession", tmp_path: Path) -> None:
    """Such as a directory where a disk is not mounted: no file replaces that of yesterday."""
    from zonemta_py.pipeline.feedback.bounces import SuppressRequest, make_suppression

    (tmp_path / "events").mkdir()
    output = tmp_path / "suppressed.csv"
    output.write_text("ann@x.example\n")
    log = open_log(spark, tmp_path / "events")
    with pytest.raises(LocalError, match="events: has no events"):
        make_suppression(spark, SuppressRequest(log, str(output)), no_progress)
    assert output.read_text() == "ann@x.example\n"
