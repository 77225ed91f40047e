"""The output of a job: its rows, what is damaged in the event log that it read, and the lock that keeps other runs away.

Rows go into a directory as Parquet, into a table of a catalog of the session (``table:NAME``), or nowhere:

    output = RowsOutput(spark, request.output, overwrite=request.overwrite)    refuses what it must not replace
    rows = output.written(rows)
    output.keep_damage(log.damage)                                             OUTPUT/_quarantine/segments.jsonl

Two runs in one directory, such as a scheduler's retry while the first try runs, would mix their files. The lock is one of the directory
itself (flock), so that it leaves nothing behind and ends with the process. Object stores and other file systems of Spark have none,
nor has a directory of another machine that is reached over Spark Connect.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.arrow import write_table
from zonemta_py.pipeline.spark.files import (
    PATTERN,
    SUCCESS,
    TABLE,
    is_here,
    is_url,
    local_path,
    names_in,
    prepare_output,
    read_text,
    remove,
    write_text,
)
from zonemta_py.pipeline.spark.session import spark_errors

ROWS_FILE = "rows.parquet"
DAMAGE_FILE = "segments.jsonl"
QUARANTINE = "quarantine"
BESIDE_ROWS = "_quarantine"  # in the directory of a table, where Spark reads no names that begin so
P = ParamSpec("P")
R = TypeVar("R")


class Damage(NamedTuple):
    """A damaged segment, or a place where segments are missing: then ``path`` is empty.

    ``offset``: the byte at which the damage begins. ``readable``: the records that are in the sums all the same. ``unread``: the lines
    that can be decompressed and are not: what is no event, and the rest of its group commits.
    """

    reason: str
    path: str = ""
    offset: int = 0
    readable: int = 0
    unread: int = 0

    def __str__(self) -> str:
        if not self.path:
            return self.reason
        unread = f", {self.unread:,} lines not" if self.unread else ""
        return f"{self.reason}; {self.readable:,} of its records are read{unread}"


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
            write_table(self._spark, f"{self._path}/{ROWS_FILE}", rows)
            write_text(self._spark, f"{self._path}/{SUCCESS}", "")

    def keep_damage(self, damage: Sequence[Damage]) -> None:
        """Write what of the event log could not be read to the directory of the rows. Raises LocalError."""
        if self._path is not None and damage:
            write_quarantine(self._spark, self._path, damage, BESIDE_ROWS)

    def discard(self) -> None:
        """Mark what was written as incomplete: drop the table, or remove the file that says it is complete. Raises LocalError."""
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


def write_quarantine(
    spark: SparkSession, output: str, damage: Iterable[Damage], name: str = QUARANTINE
) -> None:
    """Write or replace the file; without damage it is empty. ``name``: of its directory. Raises LocalError."""
    lines = (
        json.dumps(
            {"file": each.path or None, "offset": each.offset, "reason": each.reason, "readable": each.readable,
             "unread": each.unread}
        )
        for each in damage
    )  # fmt: skip
    write_text(spark, f"{output}/{name}/{DAMAGE_FILE}", "".join(f"{line}\n" for line in lines))


def read_quarantine(spark: SparkSession, output: str) -> list[Damage] | None:
    """The damage; None when there is no file, or none that this process can look at. Raises LocalError."""
    path = f"{output}/{QUARANTINE}/{DAMAGE_FILE}"
    if DAMAGE_FILE not in (names_in(spark, f"{output}/{QUARANTINE}") or ()):
        return None
    found = []
    try:
        for line in (read_text(spark, path) or "").splitlines():
            each = json.loads(line)
            numbers = (each["offset"], each["readable"], each.get("unread", 0))  # the last is new
            found.append(Damage(each["reason"], each["file"] or "", *numbers))
    except (ValueError, KeyError, TypeError) as exc:
        raise LocalError(f"{path}: not a file of the pipeline: {exc}") from exc
    return found


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
