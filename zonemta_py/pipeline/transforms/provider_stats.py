"""What ``advice`` is given from: each provider's minutes, what it said of limits, how long it greylisted."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules.reasons import Reason
from zonemta_py.pipeline.transforms.replies import explained

SESSIONS = r"(?i)connection|session|concurren"
DOMAINS_MAX = 50  # of one provider
MINUTE_MS = 60_000
NEVER_FIRST = 1  # the attempt that greylisting refuses

Transform = Callable[[DataFrame], DataFrame]


def observed(attempts: DataFrame) -> DataFrame:
    """A row with the columns of ``advice.Observed`` for each provider, from rows of ``rates.attempts``."""
    said = attempts.transform(_explained_attempts)
    transactions = said.transform(_transactions).transform(_by_minute)
    clean, limited = F.col("limited") == 0, F.col("limited") > 0
    by_provider = transactions.groupBy("provider").agg(
        F.sum("transactions").alias("transactions"),
        F.sum("limited").alias("limited"),
        F.sum("limited_sessions").alias("limited_sessions"),
        F.percentile(F.when(clean, F.col("transactions")), 0.9).alias("clean_per_minute"),
        F.percentile(F.when(limited, F.col("transactions")), 0.5).alias("limited_per_minute"),
        F.percentile(F.when(clean, F.col("sessions")), 0.9).alias("clean_sessions"),
        F.max("sessions").alias("busiest_sessions"),
        F.max_by("said", F.col("limited")).alias("said"),
    )
    places = attempts.groupBy("provider").agg(
        F.slice(F.array_sort(F.collect_set("domain")), 1, DOMAINS_MAX).alias("domains"),
        F.array_sort(F.collect_set("zone")).alias("zones"),
    )
    return (
        by_provider.join(places, "provider")
        .join(said.transform(_greylisted), "provider", "left")
        .select(
            "provider", "domains", "zones", "transactions", "limited", "limited_sessions",
            F.coalesce("said", F.lit("")).alias("said"), "clean_per_minute", "limited_per_minute", "clean_sessions",
            "busiest_sessions", F.coalesce("greylisted", F.lit(0)).alias("greylisted"), "greylist_s",
            F.coalesce("greylist_through", F.lit(0)).alias("greylist_through"),
        )
        .orderBy(F.desc("transactions"), "provider")
    )  # fmt: skip


def _explained_attempts(attempts: DataFrame) -> DataFrame:
    rows = attempts.withColumn("kind", F.coalesce("kind", F.lit("")))
    failed = rows.where(F.col("event") != "delivered").transform(explained())
    return failed.unionByName(
        rows.where(F.col("event") == "delivered").select("*", F.lit("").alias("reason"))
    )


def _transactions(attempts: DataFrame) -> DataFrame:
    """One row for each transaction: its recipients have their attempt, time and duration in common."""
    limited = F.col("reason") == str(Reason.RATE_LIMITED)
    return attempts.groupBy(
        "provider", "message", "domain", "attempt", "time", F.col("duration_ms").alias("took_ms")
    ).agg(
        F.max(limited.cast("int")).alias("limited"),
        F.max((limited & F.col("reply").rlike(SESSIONS)).cast("int")).alias("limited_sessions"),
        F.max(F.when(limited, F.col("kind"))).alias("said"),
    )


def _by_minute(transactions: DataFrame) -> DataFrame:
    """``sessions``: how many were busy on average, by Little's law."""
    return transactions.groupBy("provider", F.date_trunc("minute", "time").alias("minute")).agg(
        F.count("*").alias("transactions"),
        F.sum("limited").alias("limited"),
        F.sum("limited_sessions").alias("limited_sessions"),
        (F.sum("took_ms") / MINUTE_MS).alias("sessions"),
        F.mode("said").alias("said"),
    )


def _greylisted(attempts: DataFrame) -> DataFrame:
    """How long those that were greylisted first had waited when they got through."""
    first = (F.col("reason") == str(Reason.GREYLISTED)) & (F.col("attempt") == NEVER_FIRST)
    of_recipient = attempts.groupBy("provider", "message", "recipient").agg(
        F.min(F.when(first, F.col("time"))).alias("refused"),
        F.min(F.when(F.col("event") == "delivered", F.col("time"))).alias("taken"),
    )
    waited_s = F.unix_millis("taken") / 1000 - F.unix_millis("refused") / 1000
    return (
        of_recipient.where("refused IS NOT NULL")
        .groupBy("provider")
        .agg(
            F.count("*").alias("greylisted"),
            F.count("taken").alias("greylist_through"),
            F.percentile(waited_s, 0.9).alias("greylist_s"),
        )
    )
