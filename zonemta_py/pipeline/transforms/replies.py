"""Replies to failures: masked (their *kind*), with the reason and the template of each."""

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from zonemta_py.pipeline.rules.reasons import reason_of
from zonemta_py.pipeline.rules.templates import MASKS, mine_templates
from zonemta_py.pipeline.spark.tables import record_batch
from zonemta_py.pipeline.transforms.attempt_sums import KIND_MAX

REPLY = ("code", "status", "kind")  # what determines a reason

_REASONS = StructType([StructField(name, StringType()) for name in (*REPLY, "reason")])
_TEMPLATES = StructType([StructField(name, StringType()) for name in ("kind", "template")])

Transform = Callable[[DataFrame], DataFrame]


def failure_replies(replies: DataFrame) -> DataFrame:
    """One row for each kind of reply to an attempt that failed, with an example, from rows of the part ``replies`` of the sums."""
    counted = replies.groupBy("provider", "event", "phase", *REPLY).agg(
        F.sum("count").alias("count"), F.min("example").alias("example")
    )
    return (
        counted.transform(with_reasons())
        .transform(with_templates("count"))
        .select("provider", "event", "phase", F.col("code").cast("long").alias("code"), "status", "kind", "reason", "template", "count", "example")
    )  # fmt: skip


def with_reasons() -> Transform:
    """Rows with ``reason`` (``reasons.reason_of``), from their ``code``, ``status`` and ``kind``."""

    def classify(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                (row["code"], row["status"], row["kind"], str(reason_of(int(row["code"] or 0), row["status"] or "", row["kind"] or "")))
                for row in batch.to_pylist()
            ]  # fmt: skip
            yield record_batch(rows, _REASONS)

    def transform(rows: DataFrame) -> DataFrame:
        distinct = rows.select(F.col("code").cast("string"), "status", "kind").distinct()
        reasons = distinct.mapInArrow(classify, _REASONS).select(
            F.col("code").alias("r_code"), F.col("status").alias("r_status"), F.col("kind").alias("r_kind"), "reason"
        )  # fmt: skip
        same = (
            F.col("code").cast("string").eqNullSafe(F.col("r_code"))
            & F.col("status").eqNullSafe(F.col("r_status"))
            & F.col("kind").eqNullSafe(F.col("r_kind"))
        )
        return rows.join(F.broadcast(reasons), same, "left").select(*rows.columns, "reason")

    return transform


def with_templates(weight: str) -> Transform:
    """Rows with ``template`` of their ``kind``; the column ``weight`` is the number of replies of a row."""

    def mine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kinds = [kind for batch in batches for kind in batch.column("kind").to_pylist()]
        yield record_batch(list(mine_templates(kinds).items()), _TEMPLATES)

    def transform(rows: DataFrame) -> DataFrame:
        kinds = rows.groupBy("kind").agg(F.sum(weight).alias("weight")).where("kind IS NOT NULL")
        ordered = kinds.coalesce(1).sortWithinPartitions(F.desc("weight"), "kind").select("kind")
        templates = ordered.mapInArrow(mine, _TEMPLATES)
        return rows.join(F.broadcast(templates), "kind", "left").select(*rows.columns, "template")

    return transform


def mask_reply(reply: Column) -> Column:
    """A reply without addresses, ids and numbers: ``templates.masked`` in Spark, of at most KIND_MAX characters."""
    for pattern, placeholder in MASKS:
        reply = F.regexp_replace(reply, pattern, placeholder)
    return F.substring(reply, 1, KIND_MAX)
