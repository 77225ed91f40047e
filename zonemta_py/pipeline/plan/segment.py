"""Divides a list into segments by the last open or click of each address, and writes the sunset policy's suppression file.

An address is in the segment ``active_N`` of the smallest N whose days its last open or click is in. Days are those of UTC: an address
that was active on 1 November is 30 days old on 1 December, at every hour.

As for a plan, the list is classified once and stored: a second evaluation could see another order of rows. Added columns begin with
``#``, as that of ``read_list`` does, because a list may have columns of any name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    StringType,
    StructField,
    StructType,
)

from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.pipeline.events.rows import quoted, time_ms
from zonemta_py.pipeline.plan.list import POSITION, address_column, read_list
from zonemta_py.pipeline.plan.rows import CELL_MAX, DUPLICATE, EARLIER, REJECTED, check_addresses
from zonemta_py.pipeline.plan.suppression import suppression_lines
from zonemta_py.pipeline.spark.files import is_url, prepare_output, remove, write_lines
from zonemta_py.pipeline.spark.output import locks_output, replace_tables
from zonemta_py.pipeline.spark.session import spark_errors
from zonemta_py.pipeline.spark.tables import Progress, Transform
from zonemta_py.submit.recipients import BLANKS

ACTIVE_DAYS = (30, 90, 180)
SUNSET_DAYS = 365
NEW_DAYS = 30
NEW, LAPSED, SUNSET = "new", "lapsed", "sunset"
SEGMENTED = "segmented"  # the kind of a row that is neither rejected nor a duplicate
ADDRESS, KEY, GIVEN, KIND, WHY, JOINED = "#address", "#key", "#given", "#kind", "#why", "#joined"
STORED = (ADDRESS, KEY, GIVEN, KIND, WHY, JOINED)  # what ``classify_list`` adds to a list
LAST = "#last"
CHECKED = StructType([StructField(name, StringType()) for name in ("address", "folded", "reason")])
TIME_COLUMNS = ("time", "timestamp", "time_ms", "date")
SEGMENTS, LEFT_OUT, SUNSET_FILE = "segments", "left_out", "sunset.csv"
CLASSIFIED = "_classified"  # deleted at the end, where OUTPUT is a local directory
PARTS = (CLASSIFIED, SEGMENTS, LEFT_OUT, SUNSET_FILE)


@dataclass(frozen=True, slots=True)
class EngagementPolicy:
    """``as_of``: the day for which the segments are made; what happened after it does not count.

    ``active_days``: in any order, one segment for each. Raises ConfigError for days that contradict each other.
    """

    as_of: date
    active_days: tuple[int, ...] = ACTIVE_DAYS
    sunset_days: int = SUNSET_DAYS
    new_days: int = NEW_DAYS

    def __post_init__(self) -> None:
        if not self.active_days:
            raise ConfigError("at least one number of active days is needed")
        if self.sunset_days < max(self.active_days):
            raise ConfigError(
                f"sunset after {self.sunset_days} days, but {max(self.active_days)} days are active: "
                "addresses would be active and in the sunset segment"
            )

    @property
    def ends_ms(self) -> int:
        """The end of the day ``as_of``."""
        return self._begins_ms(-1)

    @property
    def active_since_ms(self) -> dict[str, int]:
        """The begin of each segment ``active_N``, the shortest first."""
        return {f"active_{days}": self._begins_ms(days) for days in sorted(set(self.active_days))}

    @property
    def lapsed_since_ms(self) -> int:
        """An address whose last engagement is before it is in the segment ``sunset``."""
        return self._begins_ms(self.sunset_days)

    @property
    def new_since_ms(self) -> int:
        """An address without engagement that joined before it is not ``new``."""
        return self._begins_ms(self.new_days)

    @property
    def names(self) -> tuple[str, ...]:
        """Every segment, from the most to the least active."""
        return (*self.active_since_ms, NEW, LAPSED, SUNSET)

    def _begins_ms(self, days_before: int) -> int:
        """The begin of a day, counted back from ``as_of``."""
        begins = datetime(self.as_of.year, self.as_of.month, self.as_of.day, tzinfo=UTC)
        return int((begins - timedelta(days=days_before)).timestamp()) * 1000


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """``engagement`` and ``source``: the opens and clicks, and the list, as ``read_list`` takes them.

    ``email_column``: in both; a table without it has a column of ADDRESS_COLUMNS. ``joined_column``: of the list; None: there is no
    segment ``new``. ``engagement_options`` and ``list_options``: of Spark's reader. ``tables``: a schema of the session's catalogs
    that gets a table for each segment, too, or None.
    """

    engagement: str
    source: str
    output: str
    policy: EngagementPolicy
    email_column: str | None = None
    time_column: str | None = None
    joined_column: str | None = None
    overwrite: bool = False
    engagement_options: Mapping[str, str] = field(default_factory=dict)
    list_options: Mapping[str, str] = field(default_factory=dict)
    tables: str | None = None


@dataclass(frozen=True, slots=True)
class EngagementCounts:
    """Rows of the table of opens and clicks: ``rows`` is the sum of the four after it.

    ``later``: after the day of the policy. ``unlisted``: addresses, not rows, with a time, that are not in the list.
    """

    rows: int
    used: int
    bad_times: int
    bad_addresses: int
    later: int
    unlisted: int


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """Rows of the list: ``input`` is the sum of ``segments``, ``rejected`` and ``duplicate``."""

    as_of: str
    input: int
    segments: dict[str, int]
    rejected: int
    duplicate: int
    bad_joined: int
    engagement: EngagementCounts


@dataclass(frozen=True, slots=True)
class _Listed:
    """The list as Spark reads it, and its address column."""

    rows: DataFrame
    email: str


@locks_output
def make_segments(spark: SparkSession, request: SegmentRequest, progress: Progress) -> SegmentCounts:
    """Write OUTPUT; returns the counts. Raises LocalError; there is no sunset.csv then."""
    prepare_output(spark, request.output, PARTS, SUNSET_FILE, overwrite=request.overwrite)
    listed, engagement = _open_tables(spark, request)
    progress("reading opens and clicks")
    engagement = engagement.persist()
    try:
        with spark_errors(request.engagement):
            found = _engagement_sums(engagement)
        if not found["used"]:
            raise LocalError(
                f"{request.engagement}: no open or click with a valid address and a time until "
                f"{request.policy.as_of}: the whole list would be in the sunset segment"
            )
        progress("reading and checking the list")
        classified, rows_read = _classify(spark, request, listed)
        progress("writing segments")
        segments = _write_segments(spark, request, classified, engagement)
    finally:
        engagement.unpersist()
    counts = _counts(request, segments, classified)
    if rows_read != sum(counts.values()):
        rows_read = listed.rows.count()  # a stage that ran twice was counted twice
    if rows_read != sum(counts.values()):
        raise LocalError(f"the sums are wrong: {rows_read} rows read, counted as {counts}")
    _write_left_out(request, classified)
    bad_joined = _bad_joined(request, classified)
    if request.tables:
        progress(f"writing the tables of {request.tables}")
        of_segment = {
            name: segments.where(F.col("segment") == name).drop("segment")
            for name in request.policy.names
        }
        replace_tables(spark, request.tables, of_segment)
    progress("writing the suppression file")
    _write_sunset(spark, request, segments)
    if not is_url(request.output):
        remove(spark, f"{request.output}/{CLASSIFIED}")
    active = segments.where("last_active_ms IS NOT NULL").count()
    found["unlisted"] = found.pop("addresses") - active
    return SegmentCounts(
        as_of=request.policy.as_of.isoformat(),
        input=rows_read,
        segments={name: counts[name] for name in request.policy.names},
        rejected=counts[REJECTED],
        duplicate=counts[DUPLICATE],
        bad_joined=bad_joined,
        engagement=EngagementCounts(**found),
    )


def _open_tables(spark: SparkSession, request: SegmentRequest) -> tuple[_Listed, DataFrame]:
    """The list, and the rows of ``engagement_by_address``. Raises LocalError for a column that is missing."""
    listed = read_list(spark, request.source, request.list_options)
    names = [name for name in listed.columns if name != POSITION]
    opens = read_list(spark, request.engagement, request.engagement_options)
    open_names = [name for name in opens.columns if name != POSITION]
    wanted = request.email_column
    elsewhere = wanted in open_names and wanted not in names
    email = address_column(names, None if elsewhere else wanted, request.source)
    if request.joined_column is not None:
        _column(names, (request.joined_column,), request.source)
    lower = {name.lower() for name in names}
    if email.lower() != "address" and "address" in lower and "last_active_ms" not in lower:
        raise LocalError(
            f"{request.source}: has a column 'address' beside the address column '{email}'; the segments have a column "
            "of this name: rename it"
        )
    open_email = address_column(open_names, wanted if wanted in open_names else None, request.engagement)
    times = TIME_COLUMNS if request.time_column is None else (request.time_column,)
    time = _column(open_names, times, request.engagement)
    by_address = opens.transform(engagement_by_address(open_email, time, request.policy))
    if listed.isEmpty():
        raise LocalError(f"{request.source}: the list is empty")
    return _Listed(listed, email), by_address


def _column(names: Sequence[str], wanted: Sequence[str], source: str) -> str:
    """The first of ``wanted`` that is there. Raises LocalError."""
    found = next((name for name in wanted if name in names), None)
    if found is None:
        raise LocalError(f"{source}: no column {' or '.join(wanted)}; columns: {', '.join(names)}")
    return found


def _engagement_sums(engagement: DataFrame) -> dict[str, int]:
    """The fields of EngagementCounts but ``unlisted``, and ``addresses``: those that were ever active."""
    valid = F.col("key").isNotNull()

    def total(name: str, where: Column) -> Column:
        return F.coalesce(F.sum(F.when(where, F.col(name))), F.lit(0)).alias(name)

    row = engagement.agg(
        total("rows", F.lit(True)),
        *(total(name, valid) for name in ("used", "bad_times", "later")),
        total("rows", ~valid).alias("bad_addresses"),
        F.count_if(valid & F.col("last_ms").isNotNull()).alias("addresses"),
    ).collect()[0]
    return {name: int(row[name]) for name in row.asDict()}


def _classify(spark: SparkSession, request: SegmentRequest, listed: _Listed) -> tuple[DataFrame, int]:
    """Every row of the list with its kind, stored; and the number of rows read."""
    observation = Observation("list")
    path = f"{request.output}/{CLASSIFIED}"
    with spark_errors(request.source):
        (
            listed.rows.observe(observation, F.count(F.lit(1)).alias("rows"))
            .transform(classify_list(listed.email, request.joined_column))
            .write.option("compression", "lz4")
            .parquet(path)
        )
    return spark.read.parquet(path), int(observation.get["rows"])


def _write_segments(
    spark: SparkSession, request: SegmentRequest, classified: DataFrame, engagement: DataFrame
) -> DataFrame:
    path = f"{request.output}/{SEGMENTS}"
    with spark_errors(path):
        segmented = classified.transform(with_segment(engagement, request.policy))
        segmented.write.partitionBy("segment").parquet(path)
        # Without rows there are no files, whose schema could be read.
        return spark.read.schema(segmented.schema).parquet(path)


def _counts(request: SegmentRequest, segments: DataFrame, classified: DataFrame) -> dict[str, int]:
    """Rows by segment, as written, and those that are in none by kind."""
    counts = dict.fromkeys((*request.policy.names, REJECTED, DUPLICATE), 0)
    kinds = classified.groupBy(F.col(f"`{KIND}`").alias("name")).count()
    left_out = kinds.where(F.col("name") != SEGMENTED)
    for row in segments.groupBy("segment").count().union(left_out).collect():
        counts[row["segment"]] = row["count"]
    return counts


def _write_left_out(request: SegmentRequest, classified: DataFrame) -> None:
    kind, given, why = (F.col(f"`{name}`") for name in (KIND, GIVEN, WHY))
    classified.where(kind != SEGMENTED).select(
        kind.alias("kind"), F.substring(given, 1, CELL_MAX).alias("address"), why.alias("reason")
    ).write.parquet(f"{request.output}/{LEFT_OUT}")


def _bad_joined(request: SegmentRequest, classified: DataFrame) -> int:
    """Rows whose time of joining is there and cannot be read."""
    if request.joined_column is None:
        return 0
    text = F.trim(F.col(quoted(request.joined_column)).cast("string"))
    return classified.where((text != "") & F.col(f"`{JOINED}`").isNull()).count()


def _write_sunset(spark: SparkSession, request: SegmentRequest, segments: DataFrame) -> None:
    found = segments.where(F.col("segment") == SUNSET).orderBy("address")
    lines = _sunset_lines(found.select("address", "last_active_ms").toLocalIterator(), request)
    write_lines(spark, f"{request.output}/{SUNSET_FILE}", lines)


def _sunset_lines(rows: Iterator[Row], request: SegmentRequest) -> Iterator[str]:
    """No row has a last day: the next run replaces the file."""
    made = f"{clock.utc(clock.now_ms()):%Y-%m-%d %H:%M} UTC"
    comment = f"made by zonemta pipeline segment as of {request.policy.as_of}, {made}"
    return suppression_lines(
        comment, ([row["address"], _sunset_reason(row["last_active_ms"]), ""] for row in rows)
    )


def _sunset_reason(last_ms: int | None) -> str:
    return (
        f"sunset: {'never active' if last_ms is None else f'last active {clock.utc(last_ms):%Y-%m-%d}'}"
    )


# ---- The last activity of each address, and the segment that follows from it.


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
