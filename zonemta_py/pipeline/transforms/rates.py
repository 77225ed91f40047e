"""How delivery went: rates and latencies, from the events of attempts.

A *failure* here is what an attempt ended in: deferred, bounced or expired.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules.provider import PROVIDERS
from zonemta_py.pipeline.transforms.replies import kind_of

ATTEMPTS = ("delivered", "deferred", "bounced", "expired")
DIMENSIONS = ("zone", "provider", "domain", "address", "campaign")
QUANTILES = (0.5, 0.95, 0.99)
ACCURACY = 10_000  # of quantiles: one part in so many of the rank

Transform = Callable[[DataFrame], DataFrame]


def attempts(campaigns: DataFrame | None) -> Transform:
    """One row for each attempt, failures with the ``kind`` of their reply; ``campaigns`` maps ``message`` to ``campaign``."""

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
            # Masked once, here: five expressions over every reply are not for each table again.
            F.when(F.col("event") != "delivered", kind_of(F.col("reply"))).alias("kind"),
            "duration_ms",
        )
        if campaigns is None:
            return rows.select("*", F.lit("").alias("campaign"))
        return rows.join(campaigns, "message", "left").select(
            *rows.columns, F.coalesce("campaign", F.lit("")).alias("campaign")
        )

    return transform


def provider(domain: str) -> Column:
    """The provider of a domain, by the same table as everywhere."""
    table = F.create_map(*(F.lit(text) for pair in PROVIDERS.items() for text in pair))
    return F.coalesce(F.try_element_at(table, F.col(domain)), F.col(domain))


def rates(dimensions: Sequence[str] = DIMENSIONS) -> Transform:
    """For each value of each dimension, and for ``all``: counts, rates, and quantiles of the time to delivery."""

    def transform(rows: DataFrame) -> DataFrame:
        places = [F.struct(F.lit("all").alias("dimension"), F.lit("").alias("value"))]
        places += [
            F.struct(F.lit(name).alias("dimension"), F.col(name).alias("value")) for name in dimensions
        ]
        counted = [F.count_if(F.col("event") == name).alias(name) for name in ATTEMPTS]
        delivered_age = F.when(F.col("event") == "delivered", F.col("age_ms"))
        grouped = (
            rows.select("event", "age_ms", "attempt", F.explode(F.array(*places)).alias("place"))
            .groupBy("place.dimension", "place.value")
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
    """``part`` of ``whole``, null where there is nothing."""
    return F.when(whole > 0, part / whole)


def by_hour() -> Transform:
    """What each hour of each zone brought."""

    def transform(rows: DataFrame) -> DataFrame:
        counted = [F.count_if(F.col("event") == name).alias(name) for name in ATTEMPTS]
        return (
            rows.groupBy(F.date_trunc("hour", "time").alias("hour"), "zone")
            .agg(*counted)
            .select("hour", "zone", *ATTEMPTS)
        )

    return transform


def by_day_and_address() -> Transform:
    """What each address of ours sent to each provider on each day: the record of a warm-up."""

    def transform(rows: DataFrame) -> DataFrame:
        counted = [F.count_if(F.col("event") == name).alias(name) for name in ATTEMPTS]
        return (
            rows.groupBy(F.to_date("time").alias("day"), "address", "provider")
            .agg(*counted)
            .select("day", "address", "provider", *ATTEMPTS)
        )

    return transform
