"""The sums of the attempts in an event log (``transforms.attempt_sums``), made by Spark's tasks, and added here.

A task returns its sums as blocks of Arrow's own format: Spark would copy each value twice, and generate code for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

from zonemta_py.pipeline.rules.coverage import Range
from zonemta_py.pipeline.spark.event_log import EventLog, lines_of
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.transforms.attempt_sums import FIELDS, TaskSums, decode_attempts
from zonemta_py.pipeline.transforms.sums import ATTEMPTS, SUMS, add_sums

BLOCK_ROWS = 500_000  # of sums, in one row of Spark

_BLOCK = StructType([StructField("block", BinaryType())])


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
    lines = (
        block
        for batch in batches
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True)
        for block in lines_of(content.as_py(), path.as_py(), parts)
    )
    sums = TaskSums()
    for attempts in decode_attempts(lines):
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
