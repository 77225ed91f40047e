"""Rates and latencies of delivery from the events of attempts, and the compliance with warm-up schedules.

A *failure* is an attempt that ended deferred, bounced or expired.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules.provider import PROVIDERS
from zonemta_py.pipeline.transforms.replies import mask_reply

ATTEMPTS = ("delivered", "deferred", "bounced", "expired")
DIMENSIONS = ("zone", "provider", "domain", "address", "campaign", "tenant")
TAG = "tag"  # a dimension, too: an attempt counts for each of its tags
QUANTILES = (0.5, 0.95, 0.99)
ACCURACY = 10_000  # of quantiles: an error of 1/ACCURACY of the rank
ALLOWANCE = "day date, address string, provider string, allowed long"

Transform = Callable[[DataFrame], DataFrame]


def attempt_rows(campaigns: DataFrame | None) -> Transform:
    """One row for each attempt; a failure has the ``kind`` of its reply.

    ``campaigns`` maps ``message`` to ``campaign``; other messages have that of their X-Campaign.
    """

    def transform(events: DataFrame) -> DataFrame:
        rows = events.where(F.col("event").isin(*ATTEMPTS)).select(
            "event",
            "message",
            "recipient",
            "zone",
            "domain",
            provider("domain").alias("provider"),
            F.col("source_ip").alias("address"),
            F.timestamp_millis("time_ms").alias("time"),
            "attempt",
            (F.col("time_ms") - F.col("created_ms")).alias("age_ms"),
            "phase",
            "code",
            "status",
            "reply",
            # Masked here once, and not again for each table: it is five expressions over every reply.
            F.when(F.col("event") != "delivered", mask_reply(F.col("reply"))).alias("kind"),
            "duration_ms",
            F.coalesce("tenant", F.lit("")).alias("tenant"),  # null in events of earlier versions
            F.coalesce(F.from_json("tags", "array<string>"), F.array().cast("array<string>")).alias(
                "tags"
            ),
            F.coalesce("campaign", F.lit("")).alias("campaign"),
        )
        if campaigns is None:
            return rows
        planned = campaigns.withColumnRenamed("campaign", "planned")
        return rows.join(planned, "message", "left").select(
            *(name for name in rows.columns if name != "campaign"),
            F.coalesce("planned", "campaign").alias("campaign"),
        )

    return transform


def provider(domain: str) -> Column:
    """The provider of a domain (``rules.provider``)."""
    table = F.create_map(*(F.lit(text) for pair in PROVIDERS.items() for text in pair))
    return F.coalesce(F.try_element_at(table, F.col(domain)), F.col(domain))


def rates_by_dimension(dimensions: Sequence[str] = DIMENSIONS) -> Transform:
    """For each value of each dimension, for each tag, and for ``all``: counts, rates, and quantiles of the time to delivery."""

    def transform(rows: DataFrame) -> DataFrame:
        keys = [F.struct(F.lit("all").alias("dimension"), F.lit("").alias("value"))]
        keys += [
            F.struct(F.lit(name).alias("dimension"), F.col(name).alias("value")) for name in dimensions
        ]
        tags = F.transform(
            "tags", lambda tag: F.struct(F.lit(TAG).alias("dimension"), tag.alias("value"))
        )
        counted = [F.count_if(F.col("event") == name).alias(name) for name in ATTEMPTS]
        delivered_age = F.when(F.col("event") == "delivered", F.col("age_ms"))
        grouped = (
            rows.select(
                "event", "age_ms", "attempt", F.explode(F.concat(F.array(*keys), tags)).alias("by")
            )
            .groupBy("by.dimension", "by.value")
            .agg(
                *counted,
                F.count("*").alias("attempts"),
                F.percentile_approx(delivered_age, list(QUANTILES), ACCURACY).alias("ages"),
            )
        )
        finals = F.col("delivered") + F.col("bounced") + F.col("expired")
        return grouped.select(
            "dimension",
            "value",
            *ATTEMPTS,
            "attempts",
            _share(F.col("delivered"), finals).alias("delivery_rate"),
            _share(F.col("bounced") + F.col("expired"), finals).alias("bounce_rate"),
            _share(F.col("deferred"), F.col("attempts")).alias("deferral_rate"),
            *(F.get("ages", i).alias(f"p{round(100 * share)}_ms") for i, share in enumerate(QUANTILES)),
        )

    return transform


def _share(part: Column, whole: Column) -> Column:
    """``part`` / ``whole``, null where ``whole`` is 0."""
    return F.when(whole > 0, part / whole)


def counts_by_hour() -> Transform:
    """Attempts by result for each hour and zone."""

    def transform(rows: DataFrame) -> DataFrame:
        counted = [F.count_if(F.col("event") == name).alias(name) for name in ATTEMPTS]
        return (
            rows.groupBy(F.date_trunc("hour", "time").alias("hour"), "zone")
            .agg(*counted)
            .select("hour", "zone", *ATTEMPTS)
        )

    return transform


def counts_by_day() -> Transform:
    """Attempts by result for each day, sending address and provider."""

    def transform(rows: DataFrame) -> DataFrame:
        counted = [F.count_if(F.col("event") == name).alias(name) for name in ATTEMPTS]
        return (
            rows.groupBy(F.to_date("time").alias("day"), "address", "provider")
            .agg(*counted)
            .select("day", "address", "provider", *ATTEMPTS)
        )

    return transform


def warmup_compliance(allowances: DataFrame) -> Transform:
    """``day``, ``address``, ``provider`` (empty: all), ``allowed``, ``sent``, ``over`` and ``kept`` of each allowance.

    ``allowances`` has the columns ALLOWANCE. Every attempt counts, because peers count them all.
    """

    def transform(attempts: DataFrame) -> DataFrame:
        of_day = attempts.groupBy(F.to_date("time").alias("day"), "address", "provider").agg(
            F.count("*").alias("sent")
        )
        per_provider = of_day.select("day", "address", "provider", "sent")
        together = of_day.groupBy("day", "address").agg(F.sum("sent").alias("sent")).select(
            "day", "address", F.lit("").alias("provider"), "sent"
        )  # fmt: skip
        sent = F.coalesce("sent", F.lit(0))
        return (
            allowances.join(per_provider.unionByName(together), ["day", "address", "provider"], "left")
            .select(
                "day", "address", "provider", "allowed", sent.alias("sent"),
                F.greatest(sent - F.col("allowed"), F.lit(0)).alias("over"),
                (sent <= F.col("allowed")).alias("kept"),
            )
        )  # fmt: skip

    return transform
