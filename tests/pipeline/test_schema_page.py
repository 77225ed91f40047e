"""docs/pipeline_schema.md has every column of every table that the pipeline writes, with its type and whether it is null."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tests.pipeline.small_runs import tables_of_small_runs
from zonemta_py.pipeline.events.compact import run_table_schema
from zonemta_py.pipeline.send.source import QUEUE
from zonemta_py.pipeline.simulate.job import PREDICTION
from zonemta_py.pipeline.spark import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "pipeline_schema.md"
ROW = re.compile(r"\| `(\w+)` \| `([^`]+)` \| (.+?) \| (.+?) \| (.+?) \|")
DECLARED = {
    "plan/envelopes": tables.ENVELOPE,
    "plan/message": tables.MESSAGE,
    "plan/manifest": tables.MANIFEST,
    "plan/begun": tables.BEGUN,
    "plan/ledger": tables.LEDGER_RUNS,
    "simulate": PREDICTION,
}
SOURCE = "zonemta"  # a data source of Spark, not a job


class ColumnRow(NamedTuple):
    """A row of the page."""

    name: str
    kind: str
    unit: str
    null: str
    meaning: str


def page() -> dict[str, list[ColumnRow]]:
    """The rows below each heading of the third level."""
    found: dict[str, list[ColumnRow]] = {}
    for part in PAGE.read_text().split("\n### ")[1:]:
        name, _, text = part.partition("\n")
        text = text.partition("\n## ")[0]
        found[name] = [ColumnRow(*match.groups()) for match in ROW.finditer(text)]
        assert len(found[name]) == text.count("\n| `"), f"{name}: a row that is not a column"
    return found


ROWS = page()


def described(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


@pytest.fixture(scope="module")
def written(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> "dict[str, DataFrame]":
    return tables_of_small_runs(spark, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", DECLARED)
def test_the_schemas_of_the_code(name: str) -> None:
    assert [(row.name, row.kind) for row in ROWS[name]] == described(DECLARED[name])


def test_the_schema_of_the_data_source() -> None:
    assert ", ".join(f"{row.name} {row.kind}" for row in ROWS[SOURCE]) == QUEUE


def test_the_columns_of_events() -> None:
    """Those of the table of ``compact`` are fields of docs/events.md, or in its section, which has their types."""
    section = PAGE.read_text().partition("\n## compact\n")[2].partition("\n## ")[0]
    fields = set(re.findall(r"^\| `(\w+)` \|", PAGE.with_name("events.md").read_text(), re.MULTILINE))
    kinds = {"event": "string", "seq": "bigint", "position": "bigint", "date": "date", "hour": "int"}
    for column in run_table_schema():
        kind = column.dataType.simpleString()
        assert kind == kinds.get(column.name, kind)
        assert kind in ("bigint", "boolean", "string") or column.name in ("date", "hour")
        assert column.name in fields or f"`{column.name}`" in section, column.name


def test_every_table_that_was_written(written: "dict[str, DataFrame]") -> None:
    """The page has each of them, and no other; the fields of events are in docs/events.md."""
    assert set(ROWS) == (set(written) - {"compact/events"}) | {SOURCE}
    for name, rows in written.items():
        if name in ROWS:
            assert [(row.name, row.kind) for row in ROWS[name]] == described(rows.schema), name


def test_columns_that_are_never_null(written: "dict[str, DataFrame]") -> None:
    for name, rows in written.items():
        never = [row.name for row in ROWS.get(name, ()) if row.null == "no"]
        counted = rows.select(
            F.count("*").alias("#rows"), *(F.count(each).alias(each) for each in never)
        )
        counts = counted.collect()[0].asDict()
        assert counts["#rows"], f"{name}: the small run wrote no row"
        nulls = [each for each in never if counts[each] != counts["#rows"]]
        assert nulls == [], f"{name}: null in a run"


def test_units() -> None:
    """A number has the unit of its name; a text has none."""
    for name, rows in ROWS.items():
        for row in rows:
            ends = row.name.rpartition("_")[2]
            if ends in ("ms", "s"):
                assert row.unit == ends, f"{name}.{row.name}"
            if row.kind in ("string", "boolean"):
                assert row.unit == "—", f"{name}.{row.name}"
            assert row.meaning, f"{name}.{row.name}"


def test_it_is_linked() -> None:
    assert "(pipeline_schema.md)" in PAGE.with_name("pipeline.md").read_text()
