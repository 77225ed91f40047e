"""Which rows of a list are planned, and why the others are not: one kind for each row.

A row is rejected, else a duplicate, else suppressed, else planned; so the four sums make the input.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

REJECTED, DUPLICATE, SUPPRESSED, PLANNED = "rejected", "duplicate", "suppressed", "planned"


def classified(suppression: DataFrame | None) -> Callable[[DataFrame], DataFrame]:
    """NORMALISED with ``kind``; ``suppression`` has the columns ``entry`` and ``reason``.

    Of the rows with one address the first in the list counts.
    """

    def transform(rows: DataFrame) -> DataFrame:
        digest = F.xxhash64("address")
        first = Window.partitionBy("digest", "address").orderBy("position")
        # A rejected row has no address: each is its own group, or one task would have them all.
        ranked = rows.select("*", F.coalesce(digest, F.col("position")).alias("digest")).select(
            "*", F.row_number().over(first).alias("nth")
        )
        if suppression is None:
            return ranked.select(*_columns(F.lit(None).cast("string")))
        addresses = suppression.select(
            F.col("entry").alias("s_address"), F.col("reason").alias("by_address")
        )
        domains = suppression.select(
            F.col("entry").alias("s_domain"), F.col("reason").alias("by_domain")
        )
        return (
            ranked.join(addresses.where(F.col("s_address").contains("@")), F.col("address") == F.col("s_address"), "left")
            .join(
                F.broadcast(domains.where(~F.col("s_domain").contains("@"))),
                F.col("domain") == F.col("s_domain"),
                "left",
            )
            .select(*_columns(F.coalesce("by_address", "by_domain")))
        )  # fmt: skip

    return transform


def _columns(suppressed_for: Column) -> list[Column]:
    rejected, duplicate = F.col("reason").isNotNull(), F.col("nth") > 1
    kind = (
        F.when(rejected, REJECTED)
        .when(duplicate, DUPLICATE)
        .when(suppressed_for.isNotNull(), SUPPRESSED)
        .otherwise(PLANNED)
    )
    why = (
        F.when(rejected, F.col("reason"))
        .when(duplicate, F.lit("stands in the list before"))
        .otherwise(suppressed_for)
    )
    return [
        F.col("position"),
        F.col("given"),
        F.col("address"),
        F.col("domain"),
        F.col("provider"),
        F.col("zone"),
        F.col("fields"),
        kind.alias("kind"),
        why.alias("why"),
    ]
