"""Addresses that should get nothing more, from what peers said to them."""

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

HARD = (
    "5.1.1",
    "5.1.2",
    "5.1.3",
    "5.1.6",
    "5.1.10",
    "5.2.1",
)  # RFC 3463: no such address, or it is closed
UNKNOWN = r"(?i)(user|mailbox|recipient|account|address)\S* .{0,40}(unknown|not (found|exist)|disabled|no longer)|no such (user|mailbox|recipient|address)"


def hard_bounces(statuses: Sequence[str], since_ms: int, times: int) -> Callable[[DataFrame], DataFrame]:
    """``entry`` and ``reason`` for whoever failed for good at least ``times`` since ``since_ms``, and was not delivered to later."""

    def transform(events: DataFrame) -> DataFrame:
        known = F.col("status").isin(*statuses) | (
            F.col("code").between(550, 559) & F.col("reply").rlike(UNKNOWN)
        )
        hard = (F.col("event") == "bounced") & known & (F.col("time_ms") >= since_ms)
        return (
            events.where(F.col("event").isin("bounced", "delivered"))
            .groupBy("recipient")
            .agg(
                F.count_if(hard).alias("bounces"),
                F.max(F.when(hard, F.col("time_ms"))).alias("last_ms"),
                F.max(F.when(F.col("event") == "delivered", F.col("time_ms"))).alias("delivered_ms"),
                F.max_by("status", F.when(hard, F.col("time_ms"))).alias("status"),
            )
            .where((F.col("bounces") >= times) & (F.col("last_ms") > F.coalesce("delivered_ms", F.lit(0))))
            .select(
                F.col("recipient").alias("entry"),
                F.concat(
                    F.lit("bounced "), F.col("status"), F.lit(" on "),
                    F.date_format(F.timestamp_millis("last_ms"), "yyyy-MM-dd"),
                ).alias("reason"),
            )
        )  # fmt: skip

    return transform
