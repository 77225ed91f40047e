"""The sums of the attempts in an event log (``transforms.attempt_sums``), made by Spark's tasks."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from zonemta_py.pipeline.rules.coverage import Range
from zonemta_py.pipeline.spark.event_log import EventLog, lines_of
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.transforms.attempt_sums import (
    ATTEMPTS,
    FIELDS,
    KEYS,
    SUMS,
    TaskSums,
    add_rates,
    decode_attempts,
)

SUMS_SCHEMA: StructType = from_arrow_schema(SUMS)


def attempt_sums(spark: SparkSession, log: EventLog, campaigns: DataFrame | None = None) -> DataFrame:
    """Rows of SUMS_SCHEMA; those with the same keys are not added yet.

    ``campaigns`` maps ``message`` to ``campaign``; other messages have that of their X-Campaign.
    """
    if not log.is_parquet and campaigns is None:
        if not log.segments:
            return spark.createDataFrame([], SUMS_SCHEMA)
        # Spark would decode each event, and hand it to Python again.
        return log.contents(spark).mapInArrow(partial(_sum_segments, log.parts or {}), SUMS_SCHEMA)
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
    return attempts.select(*FIELDS).mapInArrow(_sum_rows, SUMS_SCHEMA)


def _sum_segments(
    parts: Mapping[str, Sequence[Range]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    sums = TaskSums()
    for batch in batches:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            for attempts in decode_attempts(lines_of(content.as_py(), path.as_py(), parts)):
                sums.add(attempts)
    yield from sums.batches()


def _sum_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    sums = TaskSums()
    for batch in batches:
        sums.add(pa.Table.from_batches([batch]))
    yield from sums.batches()


def added(sums: DataFrame) -> DataFrame:
    """``sums`` with one row for each key. Store them before: each part reads them."""
    found = added_rates(sums)
    for part in KEYS:
        if part != "rates":
            rows = part_of(sums, part)
            found = found.unionByName(
                rows.select(F.lit(part).alias("part"), "*"), allowMissingColumns=True
            )
    return found.select(*SUMS_SCHEMA.names)


def added_rates(sums: DataFrame) -> DataFrame:
    """The rows of the part ``rates``, one for each dimension and value."""
    rates = sums.where(F.col("part") == "rates").repartition("dimension", "value")
    return rates.mapInArrow(_add_rates, SUMS_SCHEMA)


def part_of(sums: DataFrame, part: str) -> DataFrame:
    """The keys and counts of a part other than rates, one row for each key."""
    counts: list[Column] = (
        [F.sum("count").alias("count"), F.min("example").alias("example")]
        if part == "replies"
        else [F.sum(name).alias(name) for name in ATTEMPTS]
    )
    return sums.where(F.col("part") == part).groupBy(*KEYS[part]).agg(*counts)


def _add_rates(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    parts = list(batches)
    if parts:
        yield from add_rates(pa.Table.from_batches(parts)).to_batches(max_chunksize=10_000)
