"""What peers said to failures: kinds of replies, the templates behind them, and why they said it."""

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from zonemta_py.pipeline.rules.reasons import reason_of
from zonemta_py.pipeline.rules.templates import MASKS, mined
from zonemta_py.pipeline.spark.arrow import batch_of

KIND_MAX = 200  # characters of a kind
SAID = ("code", "status", "kind")  # what a reason is told from

_REASONS = StructType([StructField(name, StringType()) for name in (*SAID, "reason")])
_TEMPLATES = StructType([StructField(name, StringType()) for name in ("kind", "template")])

Transform = Callable[[DataFrame], DataFrame]


def replies() -> Transform:
    """One row for each kind of reply to failures (attempts that were no delivery), with an example."""

    def transform(rows: DataFrame) -> DataFrame:
        failed = rows.where(F.col("event") != "delivered")
        counted = failed.groupBy("provider", "event", "phase", *SAID).agg(
            F.count("*").alias("count"), F.min("reply").alias("example")
        )
        return (
            counted.transform(explained())
            .transform(with_templates("count"))
            .select("provider", "event", "phase", *SAID, "reason", "template", "count", "example")
        )

    return transform


def explained() -> Transform:
    """``rows`` with ``reason`` (``reasons.reason_of``), from their ``code``, ``status`` and ``kind``."""

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                (row["code"], row["status"], row["kind"], str(reason_of(int(row["code"] or 0), row["status"] or "", row["kind"] or "")))
                for row in batch.to_pylist()
            ]  # fmt: skip
            yield batch_of(rows, _REASONS)

    def transform(rows: DataFrame) -> DataFrame:
        said = rows.select(F.col("code").cast("string"), "status", "kind").distinct()
        reasons = said.mapInArrow(judge, _REASONS).select(
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
    """``rows`` with ``template``: what the kinds of replies have in common, by their ``weight``."""

    def mine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kinds = [kind for batch in batches for kind in batch.column("kind").to_pylist()]
        yield batch_of(list(mined(kinds).items()), _TEMPLATES)

    def transform(rows: DataFrame) -> DataFrame:
        kinds = rows.groupBy("kind").agg(F.sum(weight).alias("weight")).where("kind IS NOT NULL")
        ordered = kinds.coalesce(1).sortWithinPartitions(F.desc("weight"), "kind").select("kind")
        templates = ordered.mapInArrow(mine, _TEMPLATES)
        return rows.join(F.broadcast(templates), "kind", "left").select(*rows.columns, "template")

    return transform


def kind_of(reply: Column) -> Column:
    """A reply without what differs from message to message: ``templates.masked``, in Spark."""
    for pattern, stands_for in MASKS:
        reply = F.regexp_replace(reply, pattern, stands_for)
    return F.substring(reply, 1, KIND_MAX)
