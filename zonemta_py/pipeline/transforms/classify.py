"""Which rows of a list are planned, and why the others are not: one kind for each row.

A row is rejected, else a duplicate, else suppressed, else planned; so the four sums make the input.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

REJECTED, DUPLICATE, SUPPRESSED, PLANNED = "rejected", "duplicate", "suppressed", "planned"


def classified(suppression: DataFrame | None) -> Callable[[DataFrame], DataFrame]:
    """Rows of ``normalise`` with ``kind`` and ``why``, without their position; ``suppression`` has the columns ``entry`` and ``reason``.

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
            return ranked.select(*_columns(rows.columns, F.lit(None).cast("string")))
        found = ranked
        for name, key, entries in (
            ("by_address", F.col("address"), suppression.where(F.col("entry").contains("@"))),
            ("by_domain", F.substring_index("address", "@", -1), suppression.where(~F.col("entry").contains("@"))),
        ):  # fmt: skip
            listed = entries.select(F.col("entry").alias(f"{name}_entry"), F.col("reason").alias(name))
            found = found.join(listed, key == F.col(f"{name}_entry"), "left")
        return found.select(*_columns(rows.columns, F.coalesce("by_address", "by_domain")))

    return transform


def _columns(columns: list[str], suppressed_for: Column) -> list[Column]:
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
        *(F.col(name) for name in columns if name not in ("position", "reason")),
        kind.alias("kind"),
        why.alias("why"),
    ]
