"""Matches reports that came by mail to the recipients in ledgers that they are about."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from zonemta_py.pipeline.rules.reasons import FailedReply, reason_of
from zonemta_py.pipeline.spark.tables import record_batch
from zonemta_py.smtp.address import AddressError, normalise
from zonemta_py.smtp.reports import read_notices

NO_REPORT, UNREADABLE = "no report", "unreadable"
BY_KEY, BY_ONLY, BY_VERP, BY_ADDRESS, UNMATCHED = (
    "envelope id", "envelope id, its only recipient", "verp", "address", "",
)  # fmt: skip
METHODS = (BY_KEY, BY_ONLY, BY_VERP, BY_ADDRESS)  # the most reliable first

_TEXTS = ("source", "kind", "recipient", "by_verp", "key", "status", "diagnostic", "reporter", "reason")
NOTICE = StructType(
    [StructField(name, StringType()) for name in _TEXTS]
    + [StructField("code", IntegerType()), StructField("time_ms", LongType())]
)

Transform = Callable[[DataFrame], DataFrame]


def extract_notices(senders: Sequence[str]) -> Transform:
    """NOTICE rows, with ``notice_id``, from messages (``source``, ``octets``): one for each recipient in a report.

    A message that is not a report, or cannot be read, is one row with a kind of its own. A second
    evaluation may assign other ids: store the rows before they are matched.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            messages = zip(
                batch.column("source").to_pylist(), batch.column("octets").to_pylist(), strict=True
            )
            yield record_batch(
                [row for source, message in messages for row in _rows(source, message, senders)], NOTICE
            )

    def transform(mail: DataFrame) -> DataFrame:
        found = mail.mapInArrow(read, NOTICE)
        # A report without a date gets the current time, or rules with a date would never select it.
        dated = F.coalesce(F.nullif(F.col("time_ms"), F.lit(0)), F.unix_millis(F.current_timestamp()))
        return found.select(
            *_TEXTS, "code", dated.alias("time_ms"), F.monotonically_increasing_id().alias("notice_id")
        )

    return transform


def _rows(source: str, message: bytes | None, senders: Sequence[str]) -> Iterator[tuple[object, ...]]:
    try:
        found = read_notices(message, senders) if message is not None else None
    except Exception:  # strangers write these: one that the parser cannot take must not stop the others
        found = None
    if found is None:
        yield source, UNREADABLE, "", "", "", "", "", "", "", 0, 0
        return
    if not found:
        yield source, NO_REPORT, "", "", "", "", "", "", "", 0, 0
    for each in found:
        reply = FailedReply("", "", str(each.code or 500), each.status, each.diagnostic)
        reason = reason_of(reply) if each.status else ""
        yield (
            source, each.kind, _normal(each.recipient), _normal(each.by_verp), each.key, each.status,
            each.diagnostic, each.reporter, reason, each.code, each.time_ms,
        )  # fmt: skip


def _normal(address: str) -> str:
    try:
        return normalise(address)
    except AddressError:
        return address


def match_reports(ledger: DataFrame) -> Transform:
    """The rows of ``extract_notices`` with ``address``, ``campaign`` and ``key`` of the ledger's recipient.

    ``matched`` is the method: by envelope id and recipient; by envelope id alone, when the message had one
    recipient; by the address that the report was sent to; by the recipient's address in its latest campaign.
    Addresses match in any case, as many systems report them; one in the same spelling is preferred.
    """

    def transform(found: DataFrame) -> DataFrame:
        sent = ledger.groupBy("key", "address", "campaign").agg(F.max("time_ms").alias("sent_ms"))
        known = sent.select("*", F.count("*").over(Window.partitionBy("key")).alias("recipients"))
        last = sent.groupBy("address").agg(
            F.max_by(F.struct("key", "campaign", "sent_ms"), F.struct("sent_ms", "key")).alias("last")
        )
        by_key = found.join(known, "key").select(
            "notice_id", "address", "campaign", "key", _is_spelled("recipient"), "sent_ms",
            F.when(_is_same("recipient"), BY_KEY).when(F.col("recipients") == 1, BY_ONLY).alias("matched"),
        ).where("matched IS NOT NULL")  # fmt: skip
        candidates = by_key
        for column, method in (("by_verp", BY_VERP), ("recipient", BY_ADDRESS)):
            candidates = candidates.unionByName(
                found.where(F.col(column) != "")
                .drop("key")
                .join(last, _is_same(column))
                .select(
                    "notice_id", "address", "last.campaign", "last.key", _is_spelled(column), "last.sent_ms",
                    F.lit(method).alias("matched"),
                )
            )  # fmt: skip
        order = F.array_position(F.array(*map(F.lit, METHODS)), F.col("matched"))
        best = candidates.groupBy("notice_id").agg(
            F.min_by(
                F.struct("address", "campaign", "key", "matched"),
                F.struct(order, ~F.col("is_spelled"), -F.col("sent_ms"), "address"),
            ).alias("best")
        )
        return found.drop("key").join(best, "notice_id", "left").select(
            "source", "kind",
            *(F.coalesce(f"best.{name}", F.lit(UNMATCHED)).alias(name) for name in ("address", "campaign", "key", "matched")),
            "recipient", "status", "code", "reason", "diagnostic", "reporter", "time_ms",
        )  # fmt: skip

    return transform


def _is_same(column: str) -> Column:
    return F.lower(column) == F.lower("address")


def _is_spelled(column: str) -> Column:
    return (F.col(column) == F.col("address")).alias("is_spelled")
