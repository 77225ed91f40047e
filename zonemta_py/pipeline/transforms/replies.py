"""Replies to failures: masked (their *kind*), with the reason and the template of each."""

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from zonemta_py.pipeline.rules.reasons import FailedReply, reason_of
from zonemta_py.pipeline.rules.templates import MASKS, mine_templates
from zonemta_py.pipeline.spark.tables import record_batch
from zonemta_py.pipeline.transforms.attempt_sums import KIND_MAX

_SAME = ("phase", "code", "status", "kind")  # of replies that have one class
_REASONS = StructType([StructField(f"r_{name}", StringType()) for name in (*_SAME, "reason")])

Transform = Callable[[DataFrame], DataFrame]


def reasons_in(replies: pa.Table) -> list[str]:
    """The reason of each row of the part ``replies`` of sums: its class, else that of its example."""
    names = ("class", "phase", "code", "status", "example")
    columns = (replies.column(name).to_pylist() for name in names)
    return [reason_of(FailedReply(*each)) for each in zip(*columns, strict=True)]


def templates_of(weights: Mapping[str | None, int]) -> dict[str, str]:
    """The template of each kind. ``weights``: how often each occurs."""
    kinds = sorted((-weight, kind) for kind, weight in weights.items() if kind is not None)
    return mine_templates(kind for _, kind in kinds)


def with_reasons() -> Transform:
    """Rows with ``reason`` (``reasons.reason_of``), from their ``class``, ``phase``, ``code``, ``status``, ``reply`` and ``kind``.

    Those without a class have that of one reply of their kind.
    """

    def classify(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                (*(row[name] for name in _SAME), reason_of(FailedReply("", row["phase"], row["code"], row["status"], row["reply"])))
                for row in batch.to_pylist()
            ]  # fmt: skip
            yield record_batch(rows, _REASONS)

    def transform(rows: DataFrame) -> DataFrame:
        text = {"code": F.col("code").cast("string")}
        keys = [text.get(name, F.col(name)).alias(name) for name in _SAME]
        unclassified = rows.where(F.coalesce("class", F.lit("")) == "").groupBy(*keys)
        reasons = unclassified.agg(F.min("reply").alias("reply")).mapInArrow(classify, _REASONS)
        same = F.lit(True)
        for name in _SAME:
            same = same & text.get(name, F.col(name)).eqNullSafe(F.col(f"r_{name}"))
        found = rows.join(F.broadcast(reasons.withColumnRenamed("r_reason", "searched")), same, "left")
        reason = F.coalesce(F.nullif("class", F.lit("")), "searched").alias("reason")
        return found.select(*rows.columns, reason)

    return transform


def mask_reply(reply: Column) -> Column:
    """A reply without addresses, ids and numbers: ``templates.masked`` in Spark, of at most KIND_MAX characters."""
    for pattern, placeholder in MASKS:
        reply = F.regexp_replace(reply, pattern, placeholder)
    return F.substring(reply, 1, KIND_MAX)
