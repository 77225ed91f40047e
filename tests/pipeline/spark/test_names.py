"""Inputs whose names Spark would take for patterns: what is read is what is named, and not its neighbour."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.campaigns import open_log
from tests.pipeline.segments import delivered, write_segment
from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

lists = pytest.importorskip("zonemta_py.pipeline.plan.list")
as_read = pytest.importorskip("zonemta_py.pipeline.spark.files").as_read

NEIGHBOURS = [("june[1]", "june1"), ("l*", "list"), ("d?", "dx"), ("{a,b}", "a")]


@pytest.mark.parametrize(("name", "neighbour"), NEIGHBOURS)
@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "parquet", "orc"])
def test_a_list(spark: "SparkSession", tmp_path: Path, name: str, neighbour: str, kind: str) -> None:
    for directory in (name, neighbour):
        path, address = tmp_path / directory, f"u{len(directory)}@x.example"
        if kind in ("csv", "tsv"):
            path.mkdir()
            (path / f"a.{kind}").write_text(f"email\n{address}\n")
        else:
            rows = spark.createDataFrame([(address,)], "email string")
            rows.coalesce(1).write.format(kind).save(str(path))
    found = lists.read_list(spark, str(tmp_path / name), {})
    assert [row["email"] for row in found.collect()] == [f"u{len(name)}@x.example"]


@pytest.mark.parametrize(("name", "neighbour"), NEIGHBOURS)
def test_a_suppression_list(spark: "SparkSession", tmp_path: Path, name: str, neighbour: str) -> None:
    from zonemta_py.pipeline.plan.suppression import read_suppression

    for directory in (name, neighbour):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "s.csv").write_text(f"entry,reason\nu{len(directory)}@x.example,left\n")
    found = read_suppression(spark, [str(tmp_path / name)], (), date(2026, 11, 21), {})
    assert found is not None
    assert found.held is not None
    assert found.held["entry"].to_pylist() == [f"u{len(name)}@x.example"]
    found.release()


@pytest.mark.parametrize(("name", "neighbour"), NEIGHBOURS)
def test_an_event_log(spark: "SparkSession", tmp_path: Path, name: str, neighbour: str) -> None:
    from zonemta_py.pipeline.events.rows import read_events

    write_segment(tmp_path / name, "a", [delivered(seq) for seq in range(1, 5)])
    write_segment(tmp_path / neighbour, "b", [delivered(seq) for seq in range(1, 3)])
    log = open_log(spark, str(tmp_path / name))
    assert (log.records, log.damage) == (4, [])
    assert read_events(spark, log).count() == 4
    assert len(log.contents(spark).collect()) == 1


def test_what_is_not_here_is_a_pattern(spark: "SparkSession", tmp_path: Path) -> None:
    """Of several lists of one kind; without a match it is an error."""
    for number in (1, 2):
        (tmp_path / f"part{number}.csv").write_text(f"email\nu{number}@x.example\n")
    assert as_read(f"{tmp_path}/part*.csv") == f"{tmp_path}/part*.csv"
    assert lists.read_list(spark, f"{tmp_path}/part*.csv", {}).count() == 2
    many = ",".join(f"part{number}" for number in range(100))
    assert as_read(f"{tmp_path}/{{{many}}}.csv").endswith("}.csv"), "longer than a name may be"
    with pytest.raises(LocalError, match=r"other\*\.csv does not exist$"):
        lists.read_list(spark, f"{tmp_path}/other*.csv", {})


def test_urls(tmp_path: Path) -> None:
    (tmp_path / "a[1]").mkdir()
    assert as_read(f"file://{tmp_path}/a[1]") == f"file://{tmp_path}/a\\[1\\]"
    assert as_read(f"file:{tmp_path}/a[1]") == f"file:{tmp_path}/a\\[1\\]"
    assert as_read("s3a://bucket/a[1]") == "s3a://bucket/a[1]"
