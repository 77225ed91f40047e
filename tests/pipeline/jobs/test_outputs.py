"""What jobs write, on a path and on a URL: each may run again after a kill, and replaces nothing without being asked."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import no_progress, open_log, plan, write_list
from tests.pipeline.segments import accepted, delivered, write_segment
from zonemta_py.core.clock import now_ms
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.scenarios import scenarios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Job = Callable[..., Any]

SCHEMES = ("", "file://")
JOBS = ("reconcile", "anomaly", "simulate")


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, spark: "SparkSession", tmp_path_factory: Any) -> "Job":
    """Runs the job of the parameter with an output, on a small log."""
    directory: Path = tmp_path_factory.mktemp("outputs")
    write_segment(directory / "events", "a", [accepted(1, ["u@x.example"]), delivered(2, duration_ms=9)])
    plan(spark, write_list(directory / "list.csv", [["u@x.example", "U"]]), directory / "plan")
    log = open_log(spark, directory / "events")

    def run(output: str, **options: Any) -> Any:
        from zonemta_py.pipeline.jobs.anomaly import AnomalyRequest, find_anomalies
        from zonemta_py.pipeline.jobs.reconcile import ReconcileRequest, reconcile
        from zonemta_py.pipeline.jobs.simulate import SimulateRequest, simulate_scenarios
        from zonemta_py.pipeline.transforms.anomalies import AnomalyThresholds

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


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("job", JOBS, indirect=True)
def test_an_output_that_exists(spark: "SparkSession", tmp_path: Path, job: "Job", scheme: str) -> None:
    output = f"{scheme}{tmp_path}/out"
    first = job(output)
    assert (tmp_path / "out" / "_SUCCESS").exists()
    rows = spark.read.parquet(output).count()
    with pytest.raises(LocalError, match="--overwrite"):
        job(output)
    assert job(output, overwrite=True) == first
    assert spark.read.parquet(output).count() == rows
    (tmp_path / "out" / "thesis.txt").write_text("years")
    with pytest.raises(LocalError, match=r"contains thesis\.txt"):
        job(output, overwrite=True)
    assert (tmp_path / "out" / "thesis.txt").exists()


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


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("job", JOBS, indirect=True)
def test_what_a_killed_run_left_is_replaced(
    spark: "SparkSession", tmp_path: Path, job: "Job", scheme: str
) -> None:
    output = f"{scheme}{tmp_path}/out"
    job(output)
    rows = spark.read.parquet(output).count()
    (tmp_path / "out" / "_SUCCESS").unlink()
    (tmp_path / "out" / "_temporary" / "0").mkdir(parents=True)
    (tmp_path / "out" / "part-00007-x.snappy.parquet").write_bytes(b"half")
    (tmp_path / "out" / "part-00000-x.c000.zstd.parquet").write_bytes(b"half")
    job(output)
    assert spark.read.parquet(output).count() == rows


@pytest.mark.parametrize("scheme", SCHEMES)
def test_reports_that_came_by_mail(spark: "SparkSession", tmp_path: Path, scheme: str) -> None:
    """What ``dsn`` writes, after a kill between its two tables, and when it is complete."""
    from zonemta_py.pipeline.jobs.dsn import (
        NOTICES,
        DsnRequest,
        read_matched_reports,
        read_reports,
    )

    (tmp_path / "mail").mkdir()
    (tmp_path / "mail" / "cur").mkdir()
    (tmp_path / "mail" / "new").mkdir()
    (tmp_path / "mail" / "new" / "1").write_bytes(b"Subject: out of office\n\nI am away\n")
    output = tmp_path / "out"

    def run(**options: bool) -> int:
        request = DsnRequest(
            [str(tmp_path / "mail")], [], f"{scheme}{output}", ["s@example.com"], **options
        )
        return read_reports(spark, request, no_progress).messages

    assert run() == 1
    assert read_matched_reports(spark, f"{scheme}{output}").count() == 1
    with pytest.raises(LocalError, match="--overwrite"):
        run()
    assert run(overwrite=True) == 1
    (output / "reports" / "_SUCCESS").unlink()
    (output / "reports" / "part-00009-x.snappy.parquet").write_bytes(b"half")
    (output / NOTICES).mkdir(exist_ok=True)
    (output / NOTICES / "part-00009-x.snappy.parquet").write_bytes(b"half")
    assert run() == 1
    assert read_matched_reports(spark, f"{scheme}{output}").count() == 1


def test_files_on_a_url(spark: "SparkSession", tmp_path: Path) -> None:
    """What ``suppress`` and ``recommend`` write is the same at a path and at a URL, and replaces what was there."""
    from zonemta_py.pipeline.jobs.recommend import RecommendRequest, recommend
    from zonemta_py.pipeline.jobs.suppress import SuppressRequest, make_suppression

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
        (tmp_path / f"url-{name}").write_text(
            "what was there before, and is longer than what follows" * 50
        )
    for where in (f"{tmp_path}/", f"file://{tmp_path}/url-"):
        assert make_suppression(spark, SuppressRequest(log, f"{where}suppressed.csv"), no_progress) == 3
        recommend(spark, RecommendRequest(log, f"{where}zones.yaml"), no_progress)
    for name in ("suppressed.csv", "zones.yaml"):
        lines = [(tmp_path / each).read_text().splitlines() for each in (name, f"url-{name}")]
        assert [line for line in lines[0] if not line.startswith("#")] == [
            line for line in lines[1] if not line.startswith("#")
        ]
        assert len(lines[0]) > 1
