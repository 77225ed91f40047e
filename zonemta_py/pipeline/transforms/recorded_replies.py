"""What events say of providers: which domains they have, and how they replied at which rate."""

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules.reply_model import (
    BOUNCED,
    DEFERRED,
    DELIVERED,
    CountedReply,
    RecordedReply,
    ReplyModel,
)
from zonemta_py.pipeline.rules.simulated_egress import RecordedDomain
from zonemta_py.pipeline.transforms.rates import named_provider, provider
from zonemta_py.pipeline.transforms.replies import mask_reply
from zonemta_py.pipeline.transforms.sums import ATTEMPTS
from zonemta_py.schedule.controller import OF_SENDER

DOMAINS_MAX = 200_000  # whose provider is known from events, the busiest
REPLIES_MAX = 50_000  # rows of counted replies, those of the busiest providers
HOSTS_MAX = 10  # of a domain
_MINUTE_MS = 60_000


def is_of_sender() -> Column:
    """Whether the reply of an attempt speaks of the sender; false for events without a class."""
    return F.coalesce(F.col("class").isin(*sorted(OF_SENDER)), F.lit(False))


def recorded_domains(events: DataFrame) -> DataFrame:
    """``domain``, the ``provider`` that its events name, else that of the relay's table or the domain, and the ``hosts`` that were tried."""
    attempts = events.where(F.col("event").isin(*ATTEMPTS))
    return (
        attempts.groupBy("domain")
        .agg(
            F.count("*").alias("attempts"),
            F.coalesce(F.max(F.nullif("provider", F.lit(""))), provider("domain")).alias("provider"),
            F.slice(F.array_sort(F.collect_set(F.nullif("mx", F.lit("")))), 1, HOSTS_MAX).alias("hosts"),
        )
        .orderBy(F.desc("attempts"), "domain")
        .limit(DOMAINS_MAX)
        .select("domain", "provider", "hosts")
    )


def domain_map(rows: Iterable[Mapping[str, Any]]) -> dict[str, RecordedDomain]:
    """Rows of ``recorded_domains`` by domain."""
    return {row["domain"]: RecordedDomain(row["provider"], tuple(row["hosts"])) for row in rows}


def recorded_replies(events: DataFrame) -> DataFrame:
    """How often each provider gave each reply, by the ``step`` of the rate from the address in that minute.

    ``event`` is delivered, deferred or bounced. Replies that differ in numbers and addresses only are one, with an example.
    """
    path = ["provider", "address", "minute"]
    event = F.when(F.col("event") == "expired", DEFERRED).otherwise(F.col("event"))
    is_failure = F.col("event") != DELIVERED
    each = events.where(F.col("event").isin(*ATTEMPTS)).select(
        named_provider().alias("provider"),
        F.col("source_ip").alias("address"),
        F.floor(F.col("time_ms") / _MINUTE_MS).alias("minute"),
        event.alias("event"),
        F.when(is_failure, F.coalesce("class", F.lit(""))).alias("class"),
        F.when(is_failure, F.col("code")).alias("code"),
        F.when(is_failure, F.col("status")).alias("status"),
        F.when(is_failure, mask_reply(F.col("reply"))).alias("kind"),
        F.when(is_failure, F.col("reply")).alias("example"),
        is_of_sender().alias("of_sender"),
    )
    reply = ["event", "class", "code", "status", "kind", "of_sender"]
    minutes = each.groupBy(*path, *reply).agg(
        F.count("*").alias("count"), F.min("example").alias("example")
    )
    per_minute = F.sum("count").over(Window.partitionBy(*path))
    step = F.floor(F.log2(per_minute)).cast("int")
    counted = minutes.withColumn("step", step).groupBy("provider", "step", *reply).agg(
        F.sum("count").alias("count"), F.min("example").alias("example")
    )  # fmt: skip
    whole = F.sum("count").over(Window.partitionBy("provider"))
    return (
        counted.withColumn("whole", whole)
        .orderBy(F.desc("whole"), "provider", F.desc("count"))
        .limit(REPLIES_MAX)
        .drop("whole", "kind")
    )


def reply_models(rows: Iterable[Mapping[str, Any]]) -> dict[str, ReplyModel]:
    """A model for each provider, from rows of ``recorded_replies``."""
    counted: dict[str, list[CountedReply]] = {}
    for row in rows:
        reply = None
        if row["event"] in (DEFERRED, BOUNCED):
            text = row["example"] or ""
            reply = RecordedReply(
                row["event"], row["class"], row["code"] or 0, row["status"] or "", text
            )
        each = CountedReply(row["step"], reply, row["count"], row["of_sender"])
        counted.setdefault(row["provider"], []).append(each)
    return {name: ReplyModel(each) for name, each in counted.items()}
