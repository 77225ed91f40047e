"""Where the rows of a job go: into a directory as Parquet, into a table of a catalog of the session, or nowhere."""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.events.quarantine import BESIDE_ROWS, Damage, write_quarantine
from zonemta_py.pipeline.events.rows import event_schema, with_columns_of
from zonemta_py.pipeline.plan.list import TABLE
from zonemta_py.pipeline.spark.arrow import write_table
from zonemta_py.pipeline.spark.files import (
    PATTERN,
    SUCCESS,
    is_here,
    is_url,
    local_path,
    names_in,
    prepare_output,
    remove,
    write_text,
)
from zonemta_py.pipeline.spark.session import spark_errors

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


# ---- A table of a catalog of the session, to which each run of a job appends its rows once.
#
# The column ``run`` names the run: the next run can thus see whether the rows of one that was killed are there. Iceberg and Delta commit
# all rows of a run or none; Spark's own Parquet tables show the files of the tasks that had ended.

RUN = "run"


def run_table_schema() -> StructType:
    """The columns of a table of events: those of ``event_schema``, and ``run``."""
    return StructType([*event_schema().fields, StructField(RUN, StringType())])


def prepare_table(spark: SparkSession, table: str) -> None:
    """Create ``table``, by ``date``, unless it exists. Raises LocalError for one that lacks a column, or has it with another type.

    Without ``USING`` the catalog chooses the format; Spark's own takes that of spark.sql.sources.default.
    """
    columns = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in run_table_schema())
    with spark_errors(f"table {table}"):
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) PARTITIONED BY (date)")
        spark.catalog.refreshTable(table)  # a job that failed may have written files
        present = {each.name: each.dataType.simpleString() for each in spark.table(table).schema}
    for each in run_table_schema():
        kind = each.dataType.simpleString()
        if each.name not in present:
            raise LocalError(
                f"table {table}: has no column {each.name}; if it is a table of events, add it: "
                f"ALTER TABLE {table} ADD COLUMNS (`{each.name}` {kind})"
            )
        if present[each.name] != kind:
            raise LocalError(
                f"table {table}: the column {each.name} is {present[each.name]}, expected {kind}"
            )


def append_once(
    spark: SparkSession, table: str, run: str, rows: DataFrame, *, count: int, is_first_try: bool
) -> None:
    """Append the ``count`` ``rows`` of ``run`` to a table that is prepared, in one commit, unless they are there.

    Columns of the table that are not in ``run_table_schema`` are null. Raises LocalError when some of the rows are there.
    """
    with spark_errors(f"table {table}"):
        found = 0 if is_first_try else _rows_of(spark, table, run)
        if found == count:
            return
        if found:
            raise LocalError(
                f"table {table}: has {found:,} rows of the run {run}, which are {count:,}: the commit was interrupted, and the table "
                f"shows a part of it; delete the rows with {RUN} = '{run}', then run this again"
            )
        tagged = rows.withColumn(RUN, F.lit(run))
        # By position: to append by name Spark would need the format of a table of its own.
        with_columns_of(tagged, spark.table(table).schema).write.insertInto(table)


def _rows_of(spark: SparkSession, table: str, run: str) -> int:
    # A kill after the files of a new partition, and before the Hive metastore knew it: the next append would show them.
    with suppress(AnalysisException):  # tables without partitions, and all others than Spark's own
        spark.sql(f"MSCK REPAIR TABLE {table}")
    return spark.table(table).where(F.col(RUN) == run).count()


# ---- One run writes to an output directory: two of them, such as a scheduler's retry beside the first try, would mix their files.
#
# The lock is one of the directory itself (flock), so that it leaves nothing behind and ends with the process. Object stores and other
# file systems of Spark have none, nor has a directory of another machine that is reached over Spark Connect.

P = ParamSpec("P")
R = TypeVar("R")


class _Request(Protocol):
    @property
    def output(self) -> str | None: ...


RequestT = TypeVar("RequestT", bound=_Request)


def locks_output(
    job: Callable[Concatenate[SparkSession, RequestT, P], R],
) -> Callable[Concatenate[SparkSession, RequestT, P], R]:
    """``job`` with the output of its request locked while it runs. It raises LocalError when another run has it."""

    @wraps(job)
    def locked(spark: SparkSession, request: RequestT, /, *args: P.args, **options: P.kwargs) -> R:
        if request.output is None:
            return job(spark, request, *args, **options)
        with locked_output(spark, request.output):
            return job(spark, request, *args, **options)

    return locked


@contextmanager
def locked_output(spark: SparkSession, output: str) -> Iterator[None]:
    """Raises LocalError when another run has the directory, for one that cannot be made, and for a name that cannot be read again.

    The directory is made; it is removed in the end if it is empty.
    """
    if output.startswith(TABLE):
        yield
        return
    path = output if is_url(output) else str(local_path(output))
    if found := sorted(PATTERN & set(path)):
        raise LocalError(f"{path}: a path with {found[0]} is a pattern to Spark; choose another name")
    if is_url(output) or not is_here(spark):
        yield
        return
    directory = local_path(output)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as exc:
        raise LocalError(f"{output}: {exc.strerror}") from exc
    try:
        _lock(handle, output)
        try:
            yield
        finally:
            with suppress(OSError):
                directory.rmdir()  # only by the run that has it
    finally:
        os.close(handle)


def _lock(handle: int, output: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LocalError(f"{output}: another run writes here; wait until it ends") from None
    except OSError:
        pass  # a file system without locks
