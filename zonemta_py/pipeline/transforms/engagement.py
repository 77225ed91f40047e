"""Engagement segments: when each address of a list was last active, and the segment that follows from it.

Added columns begin with ``#``, as that of ``read_list`` does, because a list may have columns of any name.
"""

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    StringType,
    StructField,
    StructType,
)

from zonemta_py.pipeline.rules.engagement import LAPSED, NEW, SUNSET, EngagementPolicy
from zonemta_py.pipeline.spark.lists import POSITION
from zonemta_py.pipeline.transforms.classify import DUPLICATE, EARLIER, REJECTED
from zonemta_py.pipeline.transforms.normalise import check_addresses
from zonemta_py.pipeline.transforms.times import quoted, time_ms
from zonemta_py.submit.recipients import BLANKS

SEGMENTED = "segmented"  # the kind of a row that is neither rejected nor a duplicate
ADDRESS, KEY, GIVEN, KIND, WHY, JOINED = "#address", "#key", "#given", "#kind", "#why", "#joined"
STORED = (ADDRESS, KEY, GIVEN, KIND, WHY, JOINED)  # what ``classify_list`` adds to a list
LAST = "#last"

CHECKED = StructType([StructField(name, StringType()) for name in ("address", "folded", "reason")])

Transform = Callable[[DataFrame], DataFrame]


def _checked(email: str) -> Transform:
    """Adds ``#given``, and ``#checked``: the normalised address, or the reason why there is none."""

    def check(texts: pa.Array) -> pa.Array:
        _, addresses, folded, reasons = check_addresses(texts)
        return pa.StructArray.from_arrays([addresses, folded, reasons], CHECKED.names)

    def transform(rows: DataFrame) -> DataFrame:
        given = F.btrim(F.coalesce(F.col(quoted(email)).cast("string"), F.lit("")), F.lit(BLANKS))
        checked = arrow_udf(check, CHECKED)  # type: ignore[call-overload,unused-ignore]  # its stub is of the older form
        return rows.withColumn(GIVEN, given).withColumn("#checked", checked(f"`{GIVEN}`"))

    return transform


def _key() -> Column:
    """The address as it is compared, without regard to case."""
    return F.coalesce("`#checked`.folded", F.lower("`#checked`.address"))


def engagement_by_address(email: str, time: str, policy: EngagementPolicy) -> Transform:
    """For each address that is compared without regard to case: ``key``, ``last_ms``, and how many rows count.

    ``key`` is null for all rows without a valid address together. ``rows`` = ``used`` + ``bad_times`` + ``later``.
    """

    def transform(rows: DataFrame) -> DataFrame:
        ms = F.col("ms")
        timed = rows.select(
            F.col(quoted(email)).cast("string").alias("address"),
            time_ms(time, rows.schema[time].dataType).alias("ms"),
        )
        # Each text is checked once, however many opens and clicks it has.
        texts = timed.groupBy("address").agg(
            F.max(F.when(ms < policy.ends_ms, ms)).alias("last_ms"),
            F.count("*").alias("rows"),
            F.count_if(ms < policy.ends_ms).alias("used"),
            F.count_if(ms.isNull()).alias("bad_times"),
            F.count_if(ms >= policy.ends_ms).alias("later"),
        )
        counts = [F.sum(name).alias(name) for name in ("rows", "used", "bad_times", "later")]
        checked = texts.transform(_checked("address"))
        return checked.groupBy(_key().alias("key")).agg(F.max("last_ms").alias("last_ms"), *counts)

    return transform


def classify_list(email: str, joined: str | None) -> Transform:
    """Adds KIND (rejected, duplicate or SEGMENTED), WHY, GIVEN, ADDRESS and JOINED to a list with POSITION.

    Of the rows with the same address the first in the list is segmented.
    """

    def transform(rows: DataFrame) -> DataFrame:
        joined_ms = time_ms(joined, rows.schema[joined].dataType) if joined else F.lit(None).cast("long")
        checked = rows.withColumn(JOINED, joined_ms).transform(_checked(email))
        address, reason = F.col("`#checked`.address"), F.col("`#checked`.reason")
        # Rejected rows have no address: each is a group of its own, or one task would get them all. The hash of a null is no null.
        digest = F.when(reason.isNull(), F.xxhash64(_key())).otherwise(F.col(f"`{POSITION}`"))
        first = Window.partitionBy(digest, _key()).orderBy(f"`{POSITION}`")
        kind = F.when(reason.isNotNull(), REJECTED).when(F.col("`#nth`") > 1, DUPLICATE)
        why = F.when(F.col("`#nth`") > 1, EARLIER)
        return (
            checked.withColumn("#nth", F.row_number().over(first))
            .withColumns(
                {
                    ADDRESS: address,
                    KEY: _key(),
                    KIND: kind.otherwise(SEGMENTED),
                    WHY: F.coalesce(reason, why),
                }
            )
            .drop("#checked", "#nth", POSITION)
        )

    return transform


def with_segment(engagement: DataFrame, policy: EngagementPolicy) -> Transform:
    """The rows of kind SEGMENTED with ``address``, ``last_active_ms`` and ``segment``, then the columns of the list.

    ``engagement``: the rows of ``engagement_by_address``. A column of the list with one of the three names is replaced.
    """

    def transform(classified: DataFrame) -> DataFrame:
        last = engagement.where("key IS NOT NULL AND last_ms IS NOT NULL").select(
            F.col("key").alias("#active"), F.col("last_ms").alias(LAST)
        )
        ours = {"address": F.col(f"`{ADDRESS}`"), "last_active_ms": F.col(f"`{LAST}`")}
        others = [
            F.col(quoted(name))
            for name in classified.columns
            if name not in STORED and name.lower() not in (*ours, "segment")
        ]
        return (
            classified.where(F.col(f"`{KIND}`") == SEGMENTED)
            .join(last, F.col(f"`{KEY}`") == F.col("`#active`"), "left")
            .select(
                *(column.alias(name) for name, column in ours.items()),
                *others,
                _segment(policy).alias("segment"),
            )
        )

    return transform


def _segment(policy: EngagementPolicy) -> Column:
    last, joined = F.col(f"`{LAST}`"), F.col(f"`{JOINED}`")
    found = F.when(last.isNull() & (joined >= policy.new_since_ms), NEW)
    for name, since_ms in policy.active_since_ms.items():
        found = found.when(last >= since_ms, name)
    return found.when(last >= policy.lapsed_since_ms, LAPSED).otherwise(SUNSET)
