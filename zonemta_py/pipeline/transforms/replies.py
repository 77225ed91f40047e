"""Replies to failures: masked (their *kind*), with the reason and the template of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

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

Transform = Callable[[DataFrame], DataFrame]


class ReplyKind(NamedTuple):
    """``code``: three digits; ``kind``: masked."""

    code: str | None
    status: str | None
    kind: str | None


def reasons_of(replies: Iterable[ReplyKind]) -> dict[ReplyKind, str]:
    """The reason of each reply (``reasons.reason_of``)."""
    return {
        each: str(reason_of(int(each.code or 0), each.status or "", each.kind or "")) for each in replies
    }


def templates_of(weights: Mapping[str | None, int]) -> dict[str, str]:
    """The template of each kind. ``weights``: how often each occurs."""
    kinds = sorted((-weight, kind) for kind, weight in weights.items() if kind is not None)
    return mine_templates(kind for _, kind in kinds)


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


def mask_reply(reply: Column) -> Column:
    """A reply without addresses, ids and numbers: ``templates.masked`` in Spark, of at most KIND_MAX characters."""
    for pattern, placeholder in MASKS:
        reply = F.regexp_replace(reply, pattern, placeholder)
    return F.substring(reply, 1, KIND_MAX)
