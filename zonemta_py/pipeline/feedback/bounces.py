"""Addresses to suppress: those that bounced hard, and those whose owners complained. ``zonemta pipeline plan --suppress`` reads the file.

A bounce is hard by the class of its event (GONE): the relay has classified the reply, and no rule here knows its words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.events.log import EventLog
from zonemta_py.pipeline.events.rows import DAY_MS, HOUR_MS, provider, read_events, with_classes
from zonemta_py.pipeline.feedback.reports import read_matched_reports
from zonemta_py.pipeline.plan.suppression import suppression_lines
from zonemta_py.pipeline.spark.files import write_lines
from zonemta_py.pipeline.spark.session import spark_errors
from zonemta_py.pipeline.spark.tables import Progress, Transform
from zonemta_py.smtp.reply_class import GONE
from zonemta_py.smtp.reports.reader import COMPLAINT
from zonemta_py.smtp.verdict import Phase

DAY = "yyyy-MM-dd"
REPORTED_MS = DAY_MS  # from a bounce to the relay's own report of it, at most
CLOCKS_DIFFER_MS = HOUR_MS
BEFORE_RECIPIENTS = (
    Phase.CONNECT.value,
    Phase.MAIL.value,
)  # a reply there is not about a recipient, whatever its words


@dataclass(frozen=True, slots=True)
class SuppressRequest:
    """An address is listed for at least ``times`` hard bounces in ``days``, or a complaint in ``complaint_days``.

    ``reports``: what ``zonemta pipeline dsn`` wrote.
    """

    log: EventLog
    output: str
    days: int = 180
    times: int = 1
    reports: Sequence[str] = ()
    complaint_days: int = 3650


def make_suppression(spark: SparkSession, request: SuppressRequest, progress: Progress) -> int:
    """Write the file; returns the number of its entries. Raises LocalError."""
    log = request.log
    if not (log.segments or log.damage or log.is_compacted):
        # Such as a disk that is not mounted: a file without entries would suppress nothing.
        raise LocalError(f"{log.path}: has no events")
    progress("searching for hard bounces and complaints")
    now_ms = clock.now_ms()
    since_ms = now_ms - request.days * DAY_MS
    outcomes = delivery_outcomes(read_events(spark, request.log))
    reports = [read_matched_reports(spark, path) for path in request.reports]
    mail = reduce(lambda all_, each: all_.unionByName(each), reports) if reports else None
    if mail is not None:
        outcomes = outcomes.unionByName(mail.transform(reported_failures(outcomes)))
    found = outcomes.transform(hard_bounces(since_ms, request.times, request.days))
    if mail is not None:
        since_ms = now_ms - request.complaint_days * DAY_MS
        found = found.unionByName(mail.transform(complaints(since_ms, request.complaint_days)))
        # An address with both has one line: the one that applies longer.
        found = found.groupBy("entry").agg(
            F.max_by("reason", "until").alias("reason"), F.max("until").alias("until")
        )
    count = 0

    def rows() -> Iterator[list[str]]:
        nonlocal count
        for row in found.orderBy("entry").toLocalIterator():
            count += 1
            yield [row["entry"], row["reason"], row["until"]]

    comment = f"made by zonemta pipeline suppress, {clock.utc(now_ms):%Y-%m-%d %H:%M} UTC"
    with spark_errors(request.log.path):
        write_lines(spark, request.output, suppression_lines(comment, rows()))
    return count


def hard_bounces(since_ms: int, times: int, days: int) -> Transform:
    """``entry``, ``reason`` and ``until`` of each address that bounced hard at least ``times`` since ``since_ms``.

    Addresses are in lower case. Without those to which mail was delivered later. ``until`` is ``days`` after the last bounce.
    """

    def transform(found: DataFrame) -> DataFrame:
        hard = (
            (F.col("event") == "bounced")
            & F.col("reason").isin(*sorted(GONE))
            & (F.col("time_ms") >= since_ms)
        )
        return (
            found.groupBy(F.lower("recipient").alias("recipient"))
            .agg(
                F.count_if(hard).alias("bounces"),
                F.max(F.when(hard, F.col("time_ms"))).alias("last_ms"),
                F.max(F.when(F.col("event") == "delivered", F.col("time_ms"))).alias("delivered_ms"),
                F.max_by(F.coalesce("status", F.lit("")), F.when(hard, F.col("time_ms"))).alias("status"),
            )
            .where((F.col("bounces") >= times) & (F.col("last_ms") > F.coalesce("delivered_ms", F.lit(0))))
            .select(
                F.col("recipient").alias("entry"),
                F.concat(F.lit("bounced "), "status", F.lit(" on "), _day("last_ms")).alias("reason"),
                _until("last_ms", days).alias("until"),
            )
        )  # fmt: skip

    return transform


def delivery_outcomes(events: DataFrame) -> DataFrame:
    """``recipient``, ``event``, ``time_ms``, ``status`` and ``reason`` of each bounce and delivery in the events.

    Without bounces of mail without a sender: it goes to senders, as reports of the relay. Without those by a server's reply before
    it had a recipient: it is about the sender, or about us.
    """
    is_early = F.coalesce(F.col("phase").isin(*BEFORE_RECIPIENTS), F.lit(False)) & (
        F.coalesce("code", F.lit(0)) != 0
    )
    bounced = events.where((F.col("event") == "bounced") & (F.col("sender") != "") & ~is_early).select(
        "recipient", "event", "time_ms", "class", "phase", "code", "status", "reply"
    )
    delivered = events.where(F.col("event") == "delivered").select(
        "recipient", "event", "time_ms", "status", F.lit("").alias("reason")
    )
    reason = F.col("class").alias("reason")
    return (
        bounced.transform(with_classes)
        .select("recipient", "event", "time_ms", "status", reason)
        .unionByName(delivered)
    )


def reported_failures(outcomes: DataFrame) -> Transform:
    """The columns of ``delivery_outcomes``, from reports received by mail (rows of ``match_reports``).

    Only from reports that match a ledger: reports are easily forged. Without those of REPORTED_MS after a bounce of the address in
    ``outcomes``: the relay reports it to the sender itself.
    """

    def transform(reports: DataFrame) -> DataFrame:
        known = outcomes.where(F.col("event") == "bounced").select(
            F.lower("recipient").alias("known"), F.col("time_ms").alias("bounced_ms")
        )
        after_ms = F.col("time_ms") - F.col("bounced_ms")
        failed = reports.where((F.col("kind") == "failed") & (F.col("address") != ""))
        return failed.join(
            known,
            (F.lower("address") == F.col("known")) & after_ms.between(-CLOCKS_DIFFER_MS, REPORTED_MS),
            "left_anti",
        ).select(
            F.col("address").alias("recipient"),
            F.lit("bounced").alias("event"),
            "time_ms",
            "status",
            "reason",
        )

    return transform


def complaints(since_ms: int, days: int) -> Transform:
    """``entry``, ``reason`` and ``until`` of each address with a complaint since ``since_ms``.

    Unlike a bounce, a complaint is not cancelled by a later delivery.
    """

    def transform(reports: DataFrame) -> DataFrame:
        rows = reports.where(
            (F.col("kind") == COMPLAINT) & (F.col("address") != "") & (F.col("time_ms") >= since_ms)
        )
        return (
            rows.groupBy(F.lower("address").alias("entry"))
            .agg(F.max("time_ms").alias("last_ms"))
            .select(
                "entry",
                F.concat(F.lit("complained on "), _day("last_ms")).alias("reason"),
                _until("last_ms", days).alias("until"),
            )
        )

    return transform


def complaint_counts(providers: DataFrame) -> Transform:
    """``day``, ``provider``, ``campaign`` and ``complaints``, from reports received by mail; only those that match a ledger.

    ``providers``: ``domain`` and ``provider``, as events name them; of other domains that of the relay's table.
    """

    def transform(reports: DataFrame) -> DataFrame:
        rows = reports.where((F.col("kind") == COMPLAINT) & (F.col("address") != ""))
        domain = F.lower(F.substring_index("address", "@", -1))
        named = rows.withColumn("domain", domain).join(F.broadcast(providers), "domain", "left")
        return named.groupBy(
            F.to_date(F.timestamp_millis("time_ms")).alias("day"),
            F.coalesce("provider", provider("domain")).alias("provider"),
            "campaign",
        ).agg(F.count("*").alias("complaints"))

    return transform


def _day(time_ms: str) -> Column:
    return F.date_format(F.timestamp_millis(time_ms), DAY)


def _until(time_ms: str, days: int) -> Column:
    return F.date_format(F.date_add(F.to_date(F.timestamp_millis(time_ms)), days), DAY)
