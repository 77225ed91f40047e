"""Classifies the rows of a list: each is planned, or left out for a reason.

A row is rejected, else a duplicate, else suppressed, else planned; the four counts add up to the input.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

REJECTED, DUPLICATE, SUPPRESSED, PLANNED = "rejected", "duplicate", "suppressed", "planned"


def classify_rows(
    suppression: DataFrame | None, case_sensitive: bool = False
) -> Callable[[DataFrame], DataFrame]:
    """The rows of ``normalise_rows`` with ``kind`` and ``why`` instead of ``position`` and ``reason``.

    ``suppression`` has the columns ``entry`` (in lower case) and ``reason``. Of the rows with the same address the
    first in the list is planned. Addresses are compared without regard to case unless ``case_sensitive``; entries always.
    """

    def transform(rows: DataFrame) -> DataFrame:
        folded = F.lower("address")
        keyed = rows.select("*", (F.col("address") if case_sensitive else folded).alias("key"))
        digest = F.xxhash64("key")
        first = Window.partitionBy("digest", "key").orderBy("position")
        # Rejected rows have no address: each is a group of its own, or one task would get them all.
        ranked = keyed.select("*", F.coalesce(digest, F.col("position")).alias("digest")).select(
            "*", F.row_number().over(first).alias("nth")
        )
        if suppression is None:
            return ranked.select(*_columns(rows.columns, F.lit(None).cast("string")))
        found = ranked
        for name, key, entries in (
            ("by_address", folded, suppression.where(F.col("entry").contains("@"))),
            ("by_domain", F.substring_index("address", "@", -1), suppression.where(~F.col("entry").contains("@"))),
        ):  # fmt: skip
            listed = entries.select(F.col("entry").alias(f"{name}_entry"), F.col("reason").alias(name))
            found = found.join(listed, key == F.col(f"{name}_entry"), "left")
        return found.select(*_columns(rows.columns, F.coalesce("by_address", "by_domain")))

    return transform


def _columns(columns: list[str], suppressed_why: Column) -> list[Column]:
    rejected, duplicate = F.col("reason").isNotNull(), F.col("nth") > 1
    kind = (
        F.when(rejected, REJECTED)
        .when(duplicate, DUPLICATE)
        .when(suppressed_why.isNotNull(), SUPPRESSED)
        .otherwise(PLANNED)
    )
    why = (
        F.when(rejected, F.col("reason"))
        .when(duplicate, F.lit("earlier in the list"))
        .otherwise(suppressed_why)
    )
    return [
        *(F.col(name) for name in columns if name not in ("position", "reason")),
        kind.alias("kind"),
        why.alias("why"),
    ]
