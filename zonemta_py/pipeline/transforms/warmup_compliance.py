"""Whether a warm-up was kept: what each address sent on each day, beside what it was allowed."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

ALLOWANCE = "day date, address string, provider string, allowed long"

Transform = Callable[[DataFrame], DataFrame]


def warmed(allowances: DataFrame) -> Transform:
    """``day``, ``address``, ``provider`` (empty: all), ``allowed``, ``sent``, ``over`` and ``kept``.

    ``allowances`` are rows of ALLOWANCE, attempts the rows: each attempt counts, as peers count them.
    A day on which nothing was sent is in it too, with 0.
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
