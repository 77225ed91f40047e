"""The attempts in an event log as rows of Spark. A *failure* is an attempt that ended deferred, bounced or expired."""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules.provider import PROVIDERS
from zonemta_py.pipeline.transforms.replies import mask_reply
from zonemta_py.pipeline.transforms.sums import ATTEMPTS

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
            named_provider().alias("provider"),
            F.col("source_ip").alias("address"),
            F.timestamp_millis("time_ms").alias("time"),
            "attempt",
            (F.col("time_ms") - F.col("created_ms")).alias("age_ms"),
            "phase",
            "class",
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


def named_provider() -> Column:
    """The provider of an event: the one that it names, which the relay knew by the hosts; else that of its domain."""
    return F.coalesce(F.nullif("provider", F.lit("")), provider("domain"))


def provider(domain: str) -> Column:
    """The provider of a domain (``rules.provider``)."""
    table = F.create_map(*(F.lit(text) for pair in PROVIDERS.items() for text in pair))
    return F.coalesce(F.try_element_at(table, F.col(domain)), F.col(domain))
