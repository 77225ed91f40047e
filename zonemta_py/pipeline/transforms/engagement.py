"""Engagement segments: when each address of a list was last active, and the segment that follows from it.

Added columns begin with ``#``, as that of ``read_list`` does, because a list may have columns of any name.
"""

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from zonemta_py.pipeline.rules.engagement import LAPSED, NEW, SUNSET, EngagementPolicy
from zonemta_py.pipeline.spark.lists import POSITION
from zonemta_py.pipeline.transforms.classify import DUPLICATE, EARLIER, REJECTED
from zonemta_py.pipeline.transforms.normalise import check_addresses
from zonemta_py.submit.recipients import BLANKS

SEGMENTED = "segmented"  # the kind of a row that is neither rejected nor a duplicate
ADDRESS, KEY, GIVEN, KIND, WHY, JOINED = "#address", "#key", "#given", "#kind", "#why", "#joined"
STORED = (ADDRESS, KEY, GIVEN, KIND, WHY, JOINED)  # what ``classify_list`` adds to a list
LAST = "#last"

EARLIEST_MS = (
    631_152_000_000  # 1990: an earlier time of an open or click is an error, such as 0 for "never"
)
MS_FROM, MS_END = (
    10**11,
    10**14,
)  # a number from MS_FROM on is in milliseconds; a larger one is not a time
NUMBER = r"\A[0-9]{9,14}(?:\.[0-9]+)?\z"
BASIC_DAY = r"\A[0-9]{8}\z"  # 20261101: as seconds it would be in 1970
ISO = (
    r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2}))?)?\z"
)
CHECKED = StructType([StructField(name, StringType()) for name in ("address", "folded", "reason")])

Transform = Callable[[DataFrame], DataFrame]


def quoted(name: str) -> str:
    """The name of a column as Spark's expressions take it: a dot or a space in it has no meaning."""
    return f"`{name.replace('`', '``')}`"


def time_ms(column: str, kind: DataType) -> Column:
    """Unix milliseconds of a time, a date, an ISO 8601 text, or a number of seconds or milliseconds; else null."""
    found = F.col(quoted(column))
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        ms = F.unix_millis(found.cast("timestamp"))
    else:
        if isinstance(kind, DoubleType | FloatType | DecimalType):
            found = found.try_cast("decimal(20,3)")  # a double as text has an exponent
        text = F.btrim(found.cast("string"), F.lit(BLANKS))
        number = F.when(text.rlike(NUMBER), text.cast("double"))
        basic = F.concat_ws(
            "-", F.substring(text, 1, 4), F.substring(text, 5, 2), F.substring(text, 7, 2)
        )
        iso = F.when(text.rlike(BASIC_DAY), basic).when(text.rlike(ISO), text)
        ms = F.coalesce(
            F.when(number < MS_FROM, number * 1000).when(number < MS_END, number).cast("long"),
            F.unix_millis(F.try_to_timestamp(iso)),
        )
    return F.when(ms >= EARLIEST_MS, ms)


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
        # Rejected rows have no address: each is a group of its own, or one task would get them all.
        digest = F.coalesce(F.xxhash64(_key()), F.col(f"`{POSITION}`"))
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
