"""Statistics of providers for ``rules.advice``: their minutes, replies about limits, and greylisting."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from zonemta_py.pipeline.transforms.replies import with_reasons
from zonemta_py.smtp.classification import ReplyClass

SESSIONS = r"(?i)connection|session|concurren"
LIMITS = (
    ReplyClass.RATE_LIMITED.value,
    ReplyClass.CONNECTION_LIMITED.value,
    ReplyClass.TOO_MANY_RECIPIENTS.value,
)
DOMAINS_MAX = 50  # listed of one provider
MINUTE_MS = 60_000
FIRST_ATTEMPT = 1  # the one that greylisting refuses

Transform = Callable[[DataFrame], DataFrame]


def provider_stats(attempts: DataFrame) -> DataFrame:
    """The fields of ``advice.ProviderStats`` for each provider, from rows of ``rates.attempt_rows``."""
    with_reason = attempts.transform(_with_reasons)
    transactions = with_reason.transform(_transactions).transform(_by_minute)
    clean, limited = F.col("limited") == 0, F.col("limited") > 0
    by_provider = transactions.groupBy("provider").agg(
        F.sum("transactions").alias("transactions"),
        F.sum("limited").alias("limited"),
        F.sum("limited_sessions").alias("limited_sessions"),
        F.percentile(F.when(clean, F.col("transactions")), 0.9).alias("clean_per_minute"),
        F.percentile(F.when(limited, F.col("transactions")), 0.5).alias("limited_per_minute"),
        F.percentile(F.when(clean, F.col("sessions")), 0.9).alias("clean_sessions"),
        F.max("sessions").alias("busiest_sessions"),
        F.max_by("limit_reply", F.col("limited")).alias("limit_reply"),
    )
    names = attempts.groupBy("provider").agg(
        F.slice(F.array_sort(F.collect_set("domain")), 1, DOMAINS_MAX).alias("domains"),
        F.array_sort(F.collect_set("zone")).alias("zones"),
    )
    return (
        by_provider.join(names, "provider")
        .join(with_reason.transform(_greylisted), "provider", "left")
        .select(
            "provider", "domains", "zones", "transactions", "limited", "limited_sessions",
            F.coalesce("limit_reply", F.lit("")).alias("limit_reply"), "clean_per_minute", "limited_per_minute", "clean_sessions",
            "busiest_sessions", F.coalesce("greylisted", F.lit(0)).alias("greylisted"), "greylist_s",
            F.coalesce("greylist_through", F.lit(0)).alias("greylist_through"),
        )
        .orderBy(F.desc("transactions"), "provider")
    )  # fmt: skip


def _with_reasons(attempts: DataFrame) -> DataFrame:
    rows = attempts.withColumn("kind", F.coalesce("kind", F.lit("")))
    failed = rows.where(F.col("event") != "delivered").transform(with_reasons())
    return failed.unionByName(
        rows.where(F.col("event") == "delivered").select("*", F.lit("").alias("reason"))
    )


def _transactions(attempts: DataFrame) -> DataFrame:
    """One row for each transaction: its recipients have the same attempt, time and duration."""
    limited = F.col("reason").isin(*LIMITS)
    return attempts.groupBy(
        "provider", "message", "domain", "attempt", "time", F.col("duration_ms").alias("took_ms")
    ).agg(
        F.max(limited.cast("int")).alias("limited"),
        F.max((limited & F.col("reply").rlike(SESSIONS)).cast("int")).alias("limited_sessions"),
        F.max(F.when(limited, F.col("kind"))).alias("limit_reply"),
    )


def _by_minute(transactions: DataFrame) -> DataFrame:
    """One row for each minute; ``sessions``: the mean number of busy sessions, by Little's law."""
    return transactions.groupBy("provider", F.date_trunc("minute", "time").alias("minute")).agg(
        F.count("*").alias("transactions"),
        F.sum("limited").alias("limited"),
        F.sum("limited_sessions").alias("limited_sessions"),
        (F.sum("took_ms") / MINUTE_MS).alias("sessions"),
        F.mode("limit_reply").alias("limit_reply"),
    )


def _greylisted(attempts: DataFrame) -> DataFrame:
    """Recipients whose first attempt was greylisted, and how long their delivery then took."""
    first = (F.col("reason") == ReplyClass.GREYLISTED.value) & (F.col("attempt") == FIRST_ATTEMPT)
    of_recipient = attempts.groupBy("provider", "message", "recipient").agg(
        F.min(F.when(first, F.col("time"))).alias("refused_at"),
        F.min(F.when(F.col("event") == "delivered", F.col("time"))).alias("delivered_at"),
    )
    waited_s = F.unix_millis("delivered_at") / 1000 - F.unix_millis("refused_at") / 1000
    return (
        of_recipient.where("refused_at IS NOT NULL")
        .groupBy("provider")
        .agg(
            F.count("*").alias("greylisted"),
            F.count("delivered_at").alias("greylist_through"),
            F.percentile(waited_s, 0.9).alias("greylist_s"),
        )
    )
