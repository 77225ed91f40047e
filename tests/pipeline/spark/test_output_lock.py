"""One run has an output directory."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.campaigns import plan, write_list
from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

lock = pytest.importorskip("zonemta_py.pipeline.spark.output")


@dataclass(frozen=True)
class Request:
    output: str | None


def test_a_second_run(spark: "SparkSession", tmp_path: Path) -> None:
    """It ends with an error and leaves the files of the first one alone; afterwards there is nothing but the output."""
    listed, output = write_list(tmp_path / "list.csv", [["a@x.example", "x"]]), tmp_path / "new" / "plan"
    with lock.locked_output(spark, str(output)):
        with pytest.raises(LocalError, match="another run writes here"):
            plan(spark, listed, output)
        assert output.is_dir(), "the one that has it has not written yet"
        (output / "envelopes").mkdir()
        with pytest.raises(LocalError, match="plan: another run writes here; wait until it ends"):
            plan(spark, listed, f"{tmp_path}/new/../new/plan")
        (output / "envelopes").rmdir()
    assert not output.exists()
    plan(spark, listed, output)
    assert spark.read.parquet(f"{output}/envelopes").count() == 1


@pytest.mark.parametrize("output", [None, "table:a.b", "file:///nowhere/at/all"])
def test_outputs_without_a_lock(spark: "SparkSession", output: str | None) -> None:
    """They are those of a database or of Spark's file systems; a job may have none."""
    from zonemta_py.pipeline.spark.output import locks_output

    @locks_output
    def job(spark: "SparkSession", request: Request) -> int:
        return job_of_another(spark, request)

    @locks_output
    def job_of_another(spark: "SparkSession", request: Request) -> int:
        return 7

    assert job(spark, Request(output)) == 7


@pytest.mark.parametrize("name", ["june*", "june[1]", "{june,july}", "a?", "a\\b", "file:///plans/*"])
def test_a_pattern(spark: "SparkSession", tmp_path: Path, name: str) -> None:
    """Spark would read other directories, too, or none."""
    output = name if ":" in name else f"{tmp_path}/{name}"
    listed = write_list(tmp_path / "list.csv", [["a@x.example", "x"]])
    with pytest.raises(LocalError, match="is a pattern to Spark; choose another name"):
        plan(spark, listed, output)
    assert [each.name for each in tmp_path.iterdir()] == ["list.csv"]


def test_a_pattern_in_the_current_directory(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative output is there."""
    (tmp_path / "june[1]").mkdir()
    monkeypatch.chdir(tmp_path / "june[1]")
    with (
        pytest.raises(LocalError, match="is a pattern to Spark; choose another name"),
        lock.locked_output(spark, "out"),
    ):
        pass


def test_a_directory_that_cannot_be_made(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(LocalError, match="file/out: Not a directory"),
        lock.locked_output(spark, f"{tmp_path}/file/out"),
    ):
        pass
