"""The sums of a report that is kept up to date, in files by day: an update writes those of the days that have new events.

DIRECTORY/total.RUN.parquet         the sums without a time (``totals_of``)
DIRECTORY/2026-11-24.RUN.parquet    those of the hours of this day, and of the day

The state of the report names the run of each file. A file that it does not name is of a run that was killed, or was replaced.

The sums of a log (``attempt_sums``) are made by Spark's tasks, and added here. A task returns them as blocks of Arrow's own format:
Spark would copy each value twice, and generate code for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

from zonemta_py.pipeline.events.coverage import Range
from zonemta_py.pipeline.events.log import EventLog, lines_in
from zonemta_py.pipeline.events.rows import ATTEMPTS, DAY_MS, read_events
from zonemta_py.pipeline.report.attempts import (
    FIELDS,
    SUMS,
    TaskSums,
    add_sums,
    decode_attempts,
    part_of,
    schema_of,
    totals_of,
)
from zonemta_py.pipeline.spark.arrow import read_table, read_tables, write_table
from zonemta_py.pipeline.spark.files import names_in, remove

TOTAL = "total"
BLOCK_ROWS = 500_000  # of sums, in one row of Spark
_BLOCK = StructType([StructField("block", BinaryType())])


@dataclass(frozen=True, slots=True)
class ReportSums:
    """``files``: the run of each file, by name. Without a directory the sums are ``held``."""

    spark: SparkSession
    directory: str
    files: Mapping[str, int]
    held: pa.Table | None = None

    def added(self, new: pa.Table, run: int) -> "ReportSums":
        """With ``new``, written by ``run``. Nothing that was there is changed. Raises LocalError."""
        files = dict(self.files)
        for name, rows in _by_file(new):
            if name in files:
                rows = add_sums(pa.concat_tables([rows, self._read(name)]))
            write_table(self.spark, self._path(name, run), rows)
            files[name] = run
        return ReportSums(self.spark, self.directory, files)

    def remove_others(self) -> None:
        """Remove the files that are not of this state. Raises LocalError."""
        wanted = {self._path(name, run).rpartition("/")[2] for name, run in self.files.items()}
        for name in sorted((names_in(self.spark, self.directory) or set()) - wanted):
            remove(self.spark, f"{self.directory}/{name}")

    def totals(self, part: str) -> pa.Table:
        """The rows of ``rates`` or ``domains``, or of ``replies`` without their hours."""
        if self.held is not None:
            return part_of(totals_of(self.held) if part == "replies" else self.held, part)
        return part_of(self._read(TOTAL), part) if TOTAL in self.files else SUMS.empty_table()

    def timed(self, parts: Sequence[str], hours: pa.Array | None = None) -> pa.Table:
        """The rows of parts by hour or day, with the columns of these; ``hours``: those of them only. Reads each file once."""
        rows = pc.field("part").isin(list(parts))
        if hours is not None:
            rows &= pc.field("at_ms").isin(hours)
        if self.held is not None:
            return self.held.filter(rows)
        wanted = None if hours is None else {_day(ms) for ms in hours.to_pylist()}
        names = [
            name for name in sorted(self.files) if name != TOTAL and (wanted is None or name in wanted)
        ]
        paths = [self._path(name, self.files[name]) for name in names]
        return read_tables(self.spark, paths, schema_of(parts), rows)

    def _read(self, name: str) -> pa.Table:
        rows = read_table(self.spark, self._path(name, self.files[name]))
        if "class" not in rows.column_names:  # of an earlier version
            rows = rows.add_column(
                SUMS.get_field_index("class"), "class", pa.nulls(rows.num_rows, pa.string())
            )
        return rows.select(SUMS.names).cast(SUMS)

    def _path(self, name: str, run: int) -> str:
        return f"{self.directory}/{name}.{run}.parquet"


def _by_file(sums: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    totals = totals_of(sums)
    if totals.num_rows:
        yield TOTAL, totals
    timed = sums.filter(pc.is_valid(sums.column("at_ms")))
    days = timed.column("at_ms").to_numpy() // DAY_MS
    for day in np.unique(days):
        yield _day(int(day) * DAY_MS), timed.filter(pa.array(days == day))


def _day(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d}"


# ---- The sums of the attempts in an event log.


def attempt_sums(spark: SparkSession, log: EventLog, campaigns: DataFrame | None = None) -> pa.Table:
    """Rows of SUMS, one for each key.

    ``campaigns`` maps ``message`` to ``campaign``; other messages have that of their X-Campaign.
    """
    blocks: Sequence[Mapping[str, Any]] = ()
    if log.is_compacted or (log.segments and campaigns is not None):
        blocks = [row.asDict() for row in _joined(spark, log, campaigns).collect()]
    elif log.segments:
        # Spark would decode each event, and hand it to Python again.
        blocks = log.rows_of(spark, partial(_sum_segments, log.parts or {}), _BLOCK)
    parts = [pa.ipc.open_stream(row["block"]).read_all() for row in blocks]
    return add_sums(pa.concat_tables(parts)) if parts else SUMS.empty_table()


def _joined(spark: SparkSession, log: EventLog, campaigns: DataFrame | None) -> DataFrame:
    """The blocks of events that Spark reads, each with the campaign of its plan."""
    rows = read_events(spark, log).where(F.col("event").isin(*ATTEMPTS))
    tags = F.coalesce(F.from_json("tags", "array<string>"), F.array().cast("array<string>"))
    attempts = rows.select(
        "message", *(tags.alias(name) if name == "tags" else F.col(name) for name in FIELDS)
    )
    if campaigns is not None:
        planned = campaigns.withColumnRenamed("campaign", "planned")
        attempts = attempts.join(planned, "message", "left").withColumn(
            "campaign", F.coalesce("planned", "campaign")
        )
    return attempts.select(*FIELDS).mapInArrow(_sum_rows, _BLOCK)


def _sum_segments(
    parts: Mapping[str, Sequence[Range]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    # Segments are decoded together: those of a quiet relay are small.
    sums = TaskSums()
    for attempts in decode_attempts(lines for _, lines in lines_in(batches, parts)):
        sums.add(attempts)
    yield from _as_blocks(sums)


def _sum_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    sums = TaskSums()
    for batch in batches:
        sums.add(pa.Table.from_batches([batch]))
    yield from _as_blocks(sums)


def _as_blocks(sums: TaskSums) -> Iterator[pa.RecordBatch]:
    for rows in sums.tables(BLOCK_ROWS):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            writer.write_table(rows)
        block = pa.array([sink.getvalue().to_pybytes()], pa.binary())
        yield pa.RecordBatch.from_arrays([block], names=_BLOCK.names)
