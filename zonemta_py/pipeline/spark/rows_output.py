"""Where the rows of a job go: into a directory as Parquet, into a table of a catalog of the session, or nowhere."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.arrow_files import write_table
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.lists import TABLE
from zonemta_py.pipeline.spark.quarantine import BESIDE_ROWS, Damage, write_quarantine
from zonemta_py.pipeline.spark.storage import SUCCESS, names_in, prepare_output, remove, write_text

FILE = "rows.parquet"


class RowsOutput:
    """``output``: a directory, ``table:NAME``, or None. Raises LocalError when there is something that ``overwrite`` does not replace."""

    def __init__(self, spark: SparkSession, output: str | None, *, overwrite: bool) -> None:
        self._spark = spark
        self._path, self._table = output, ""
        self._mode: str | None = None
        if output is not None and output.startswith(TABLE):
            self._path, self._table = None, output.removeprefix(TABLE)
            schema = self._table.rpartition(".")[0]
            with spark_errors(output):
                if schema and not spark.catalog.databaseExists(schema):
                    raise LocalError(f"{output}: there is no schema {schema}; create it first")
                exists = spark.catalog.tableExists(self._table)
            if exists and not overwrite:
                raise LocalError(
                    f"{output}: exists; choose another name, or replace it with --overwrite"
                )
        elif output is not None:
            self._mode = _prepared(spark, output, overwrite=overwrite)

    def written(self, rows: DataFrame) -> DataFrame:
        """``rows`` as they were written; these without an output. Raises LocalError."""
        if self._table:
            with spark_errors(f"{TABLE}{self._table}"):
                rows.write.mode("overwrite").saveAsTable(self._table)
                return self._spark.table(self._table)
        if self._path is not None:
            with spark_errors(self._path):
                rows.write.parquet(self._path, self._mode)
                return self._spark.read.parquet(self._path)
        return rows

    def write(self, rows: pa.Table) -> None:
        """Write a small table. Raises LocalError."""
        if self._table:
            self.written(self._spark.createDataFrame(rows))
        elif self._path is not None:
            write_table(self._spark, f"{self._path}/{FILE}", rows)
            write_text(self._spark, f"{self._path}/{SUCCESS}", "")

    def keep_damage(self, damage: Sequence[Damage]) -> None:
        """Write, beside the rows in a directory, what of the event log could not be read. Raises LocalError."""
        if self._path is not None and damage:
            write_quarantine(self._spark, self._path, damage, BESIDE_ROWS)

    def discard(self) -> None:
        """What was written is not complete: nothing may take it for that. Raises LocalError."""
        if self._table:
            with spark_errors(f"{TABLE}{self._table}"):
                self._spark.sql(f"DROP TABLE IF EXISTS {self._table}")
        elif self._path is not None and names_in(self._spark, self._path):
            remove(self._spark, f"{self._path}/{SUCCESS}")


def replace_tables(spark: SparkSession, schema: str, tables: Mapping[str, DataFrame | None]) -> None:
    """Write ``tables``, by name, to ``schema`` of a catalog of the session; None: there is none, and that of an earlier run is dropped.

    Raises LocalError.
    """
    with spark_errors(schema):
        for name, rows in tables.items():
            if rows is None:
                spark.sql(f"DROP TABLE IF EXISTS {schema}.{name}")
            else:
                rows.write.mode("overwrite").saveAsTable(f"{schema}.{name}")


def _prepared(spark: SparkSession, output: str, *, overwrite: bool) -> str | None:
    """As ``prepare_output``, for a directory with the files of one table and SUCCESS; returns the mode in which Spark is to write.

    None, Spark's default: an error if there is anything, where this process cannot look.
    """
    found = names_in(spark, output)
    if found is None:
        return None
    of_rows = {
        name for name in found if name.startswith(("part-", "rows.")) and name.endswith(".parquet")
    }
    prepare_output(spark, output, {*of_rows, BESIDE_ROWS, SUCCESS}, SUCCESS, overwrite=overwrite)
    return (
        "append"  # to what is not of this job; "overwrite" would remove the directory, whatever is in it
    )
