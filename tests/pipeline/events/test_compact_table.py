"""``compact --table``: each event is in the table once, wherever a run was killed. The tables are Spark's own, of Parquet."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import no_progress, open_log, report
from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS, delivered, write_segment
from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "lake.events"


class Killed(BaseException):
    """Ends a run without any handler, as a kill does."""


@pytest.fixture
def lake(spark: "SparkSession", tmp_path: Path) -> Iterator[None]:
    """The schema of the table, in a directory of the test."""
    spark.sql(f"CREATE SCHEMA lake LOCATION '{tmp_path}/warehouse'")
    yield
    spark.sql("DROP SCHEMA lake CASCADE")


pytestmark = pytest.mark.usefixtures("lake")


def compacted(
    spark: "SparkSession", directory: Path, table: str | None = TABLE
) -> tuple[int, list[int]]:
    """The number of events that a run has written, and all sequence numbers in the table after it."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact

    request = CompactRequest(str(directory / "log"), str(directory / "state"), table=table)
    written = compact(spark, request, no_progress).records
    return written, sorted(row["seq"] for row in spark.table(TABLE).select("seq").collect())


def add_events(directory: Path, numbers: range) -> None:
    events = [delivered(n, time_ms=HOUR_BEGINS_MS + n % 3 * 20 * HOUR_MS) for n in numbers]
    write_segment(directory / "log", f"s{numbers[0]}", events)


def test_each_event_is_written_once(spark: "SparkSession", tmp_path: Path) -> None:
    """The column ``run`` distinguishes the runs; OUTPUT has no events; jobs read the table as they read files."""
    from pyspark.testing import assertDataFrameEqual

    from zonemta_py.pipeline.events.compact import CompactRequest, compact
    from zonemta_py.pipeline.events.rows import read_events
    from zonemta_py.pipeline.report.job import ReportRequest

    add_events(tmp_path, range(10))
    assert compacted(spark, tmp_path) == (10, list(range(10)))
    add_events(tmp_path, range(5, 12))
    assert compacted(spark, tmp_path) == (2, list(range(12)))
    assert compacted(spark, tmp_path) == (0, list(range(12)))
    counts = sorted(row["count"] for row in spark.table(TABLE).groupBy("run").count().collect())
    assert counts == [2, 10]
    assert {path.name for path in (tmp_path / "state").iterdir()} == {
        "quarantine",
        "read",
        "table.json",
    }
    assert {path.name.partition("=")[0] for path in (tmp_path / "warehouse" / "events").glob("[a-z]*")} == {"date"}  # fmt: skip

    compact(spark, CompactRequest(str(tmp_path / "log"), str(tmp_path / "files")), no_progress)
    files = read_events(spark, open_log(spark, tmp_path / "files" / "events"))
    log = open_log(spark, f"table:{TABLE}")
    assertDataFrameEqual(read_events(spark, log), files)
    sums = report(spark, ReportRequest(f"table:{TABLE}", (), str(tmp_path / "report")))
    assert sums["delivered"] == 12


def test_two_logs_in_one_table(spark: "SparkSession", tmp_path: Path) -> None:
    """Both first runs have the number 1: their names differ all the same."""
    for name in ("one", "two"):
        add_events(tmp_path / name, range(5))
        assert compacted(spark, tmp_path / name)[0] == 5
    assert spark.table(TABLE).select("run").distinct().count() == 2


@pytest.mark.parametrize("moment", ["before it counts", "before the append", "after the append", "at the end"])  # fmt: skip
def test_a_run_that_is_killed(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The next run finishes it: no event is lost, and none is there twice."""
    from zonemta_py.pipeline.events import compact as module

    add_events(tmp_path, range(5))
    assert compacted(spark, tmp_path)[0] == 5
    add_events(tmp_path, range(5, 9))
    name, ending = {
        "before it counts": ("write_text", "moving.json"),
        "before the append": ("append_once", ""),
        "after the append": ("move", "state.json"),
        "at the end": ("remove", "moving.json"),
    }[moment]
    original = getattr(module, name)

    def fail(session: Any, path: str, *rest: Any, **options: Any) -> Any:
        if path.endswith(ending):
            raise Killed
        return original(session, path, *rest, **options)

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(Killed):
        compacted(spark, tmp_path)
    monkeypatch.undo()
    spark.catalog.refreshTable(TABLE)
    present = spark.table(TABLE).count()
    assert present == (5 if moment.startswith("before") else 9)
    assert compacted(spark, tmp_path)[1] == list(range(9))
    assert compacted(spark, tmp_path) == (0, list(range(9)))
    assert spark.table(TABLE).select("run").distinct().count() == 2
    assert {path.name for path in (tmp_path / "state").iterdir()} == {
        "quarantine",
        "read",
        "table.json",
    }


def test_a_commit_that_is_not_atomic(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows are there: nothing is appended until they are gone, by the way that docs/pipeline.md names."""
    from zonemta_py.pipeline.events import compact as module
    from zonemta_py.pipeline.events.compact import append_once

    def append_some(session: Any, table: str, run: str, rows: Any, **options: Any) -> None:
        some = rows.where("seq < 2")
        append_once(session, table, run, some, **{**options, "count": 2})
        raise Killed

    add_events(tmp_path, range(5))
    monkeypatch.setattr(module, "append_once", append_some)
    with pytest.raises(Killed):
        compacted(spark, tmp_path)
    monkeypatch.undo()
    [run] = {row["run"] for row in spark.table(TABLE).select("run").collect()}
    said = f"table {TABLE}: has 2 rows of the run {run}, which are 5: .*delete the rows with run = '{run}'"  # fmt: skip
    for _ in range(2):
        with pytest.raises(LocalError, match=said):
            compacted(spark, tmp_path)
    assert spark.table(TABLE).count() == 2
    files = spark.table(TABLE).where(f"run = '{run}'").selectExpr("_metadata.file_path").distinct()
    for row in files.collect():
        Path(row["file_path"].removeprefix("file:")).unlink()
    assert compacted(spark, tmp_path) == (0, list(range(5)))


@pytest.mark.parametrize(("columns", "said"), [
    ("node string, run string, date date", r"table lake\.events: has no column seq; .*ADD COLUMNS \(`seq` bigint\)"),
    ("node string, seq int, run string, date date", r"table lake\.events: the column seq is int, expected bigint"),
])  # fmt: skip
def test_a_table_with_other_columns(
    spark: "SparkSession", tmp_path: Path, columns: str, said: str
) -> None:
    """It is found before any segment is read, and OUTPUT may be used for another table."""
    spark.sql(f"CREATE TABLE {TABLE} ({columns}) PARTITIONED BY (date)")
    add_events(tmp_path, range(5))
    with pytest.raises(LocalError, match=said):
        compacted(spark, tmp_path)
    spark.sql(f"DROP TABLE {TABLE}")
    assert compacted(spark, tmp_path)[0] == 5


def test_a_table_of_ones_own(spark: "SparkSession", tmp_path: Path) -> None:
    """Its columns may have another order, and it may have more; the table may be partitioned by others."""
    from zonemta_py.pipeline.events.compact import run_table_schema

    fields = [f"`{each.name}` {each.dataType.simpleString()}" for each in reversed(run_table_schema())]
    columns = ", ".join([*fields, "owner string"])
    spark.sql(f"CREATE TABLE {TABLE} ({columns}) USING orc PARTITIONED BY (node)")
    add_events(tmp_path, range(5))
    assert compacted(spark, tmp_path) == (5, list(range(5)))
    [row] = spark.table(TABLE).where("seq = 3").collect()
    assert (row["owner"], row["recipient"], row["node"], row["hour"]) == (None, "r3@x.example", "abcdef", 2)  # fmt: skip


def test_the_target_of_a_directory_stays(spark: "SparkSession", tmp_path: Path) -> None:
    add_events(tmp_path, range(5))
    compacted(spark, tmp_path)
    for other in (None, "lake.others"):
        with pytest.raises(LocalError, match=r"its events are in the table lake\.events; use --table"):
            compacted(spark, tmp_path, other)
    assert not spark.catalog.tableExists("lake.others")
    files = tmp_path / "files"
    add_events(files, range(5))
    compacted(spark, files, None)
    with pytest.raises(LocalError, match="its events are Parquet files; use another directory"):
        compacted(spark, files)


def test_no_table(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.events.rows import read_events

    spark.sql("CREATE TABLE lake.people (node string, name string)")
    for name, said in (
        ("lake.missing", r"table:lake\.missing: no event log here: .*lake.*missing"),
        ("lake.people", r"table:lake\.people: no table of events, because it has no column seq"),
    ):
        with pytest.raises(LocalError, match=said):
            read_events(spark, open_log(spark, f"table:{name}"))
