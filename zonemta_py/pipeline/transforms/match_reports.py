"""Reports about our mail, matched to the recipients of the ledger that they are about."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from zonemta_py.pipeline.rules.reasons import reason_of
from zonemta_py.pipeline.spark.arrow import batch_of
from zonemta_py.smtp.address import AddressError, normalise
from zonemta_py.smtp.reports import read_notices

NO_REPORT, UNREADABLE = "no report", "unreadable"
BY_KEY, BY_ONLY, BY_VERP, BY_ADDRESS, UNMATCHED = (
    "envelope id", "envelope id, its only recipient", "verp", "address", "",
)  # fmt: skip
WAYS = (BY_KEY, BY_ONLY, BY_VERP, BY_ADDRESS)  # the surest first

_TEXTS = ("source", "kind", "recipient", "by_verp", "key", "status", "diagnostic", "reporter", "reason")
NOTICE = StructType(
    [StructField(name, StringType()) for name in _TEXTS]
    + [StructField("code", IntegerType()), StructField("time_ms", LongType())]
)
MATCHED = ("source", "kind", "address", "campaign", "key", "matched", "recipient", "status", "code", "reason", "diagnostic", "reporter", "time_ms")  # fmt: skip

Transform = Callable[[DataFrame], DataFrame]


def notices(senders: Sequence[str]) -> Transform:
    """NOTICE rows from messages (``source``, ``octets``): one for each recipient that a report names.

    A message that is no report, or cannot be read, is one row of a kind of its own. ``number`` tells
    rows apart, but a second run may number them otherwise: write them down first.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pairs = zip(
                batch.column("source").to_pylist(), batch.column("octets").to_pylist(), strict=True
            )
            yield batch_of(
                [row for source, octets in pairs for row in _rows(source, octets, senders)], NOTICE
            )

    def transform(mail: DataFrame) -> DataFrame:
        found = mail.mapInArrow(read, NOTICE)
        # A report without a date counts from now, or no rule with a date in it would ever see it.
        dated = F.coalesce(F.nullif(F.col("time_ms"), F.lit(0)), F.unix_millis(F.current_timestamp()))
        return found.select(
            *_TEXTS, "code", dated.alias("time_ms"), F.monotonically_increasing_id().alias("number")
        )

    return transform


def _rows(source: str, octets: bytes | None, senders: Sequence[str]) -> Iterator[tuple[object, ...]]:
    if octets is None:
        yield source, UNREADABLE, "", "", "", "", "", "", "", 0, 0
        return
    found = read_notices(octets, senders)
    if not found:
        yield source, NO_REPORT, "", "", "", "", "", "", "", 0, 0
    for each in found:
        reason = reason_of(each.code or 500, each.status, each.diagnostic) if each.status else ""
        yield (
            source, each.kind, _normal(each.recipient), _normal(each.by_verp), each.key, each.status,
            each.diagnostic, each.reporter, str(reason), each.code, each.time_ms,
        )  # fmt: skip


def _normal(address: str) -> str:
    try:
        return normalise(address)
    except AddressError:
        return address


def matched(ledger: DataFrame) -> Transform:
    """MATCHED from rows of ``notices``: whom in the ``ledger`` each is about, and how that was found.

    By envelope id and recipient; by envelope id alone, when the message had one recipient; by the
    address that the report came to; by the recipient's address, the last campaign that had it.
    """

    def transform(numbered: DataFrame) -> DataFrame:
        sent = ledger.groupBy("key", "address", "campaign").agg(F.max("time_ms").alias("sent_ms"))
        known = sent.select("*", F.count("*").over(Window.partitionBy("key")).alias("recipients"))
        last = sent.groupBy("address").agg(
            F.max_by(F.struct("key", "campaign"), F.struct("sent_ms", "key")).alias("last")
        )
        by_key = numbered.join(known, "key").select(
            "number", "address", "campaign", "key",
            F.when(F.col("recipient") == F.col("address"), BY_KEY).when(F.col("recipients") == 1, BY_ONLY).alias("matched"),
        ).where("matched IS NOT NULL")  # fmt: skip
        candidates = by_key
        for column, way in (("by_verp", BY_VERP), ("recipient", BY_ADDRESS)):
            candidates = candidates.unionByName(
                numbered.where(F.col(column) != "")
                .drop("key")
                .join(last, F.col(column) == F.col("address"))
                .select("number", "address", "last.campaign", "last.key", F.lit(way).alias("matched"))
            )
        order = F.array_position(F.array(*map(F.lit, WAYS)), F.col("matched"))
        best = candidates.groupBy("number").agg(
            F.min_by(
                F.struct("address", "campaign", "key", "matched"), F.struct(order, "address")
            ).alias("best")
        )
        return numbered.drop("key").join(best, "number", "left").select(
            "source", "kind",
            *(F.coalesce(f"best.{name}", F.lit(UNMATCHED)).alias(name) for name in ("address", "campaign", "key", "matched")),
            "recipient", "status", "code", "reason", "diagnostic", "reporter", "time_ms",
        )  # fmt: skip

    return transform
