"""The rows that reconcile, anomaly and simulate write: each job may run again after a kill, and replaces nothing without being asked."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import no_progress, open_log, plan, write_list
from tests.pipeline.segments import accepted, delivered, write_segment
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
