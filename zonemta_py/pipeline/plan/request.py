"""What was submitted of a plan: its ledger, and when its first submission began."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.plan.pack import TURNS
from zonemta_py.pipeline.plan.rows import Selection
from zonemta_py.pipeline.send.submission import DEFERRED, PERMANENT
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.session import analysed, spark_errors

CLOCKS_DIFFER_MS = 60_000  # between two machines
SEND_STARTS_MS = 2_000  # a run of another plan that has ended since took longer to start than this; more than a reply takes


def read_ledger(spark: SparkSession, plan: str) -> DataFrame | None:
    """The rows of ``tables.LEDGER_RUNS``, or None before the first run."""
    try:
        return analysed(spark.read.schema(tables.LEDGER_RUNS).parquet(f"{plan}/ledger"))
    except AnalysisException:
        return None


def begin_of_sending(spark: SparkSession, plan: str) -> int:
    """When the first submission of the plan began: from then on the relay's repeats are its own. Recorded before it begins."""
    begun_ms = recorded_begin_ms(spark, plan)
    if begun_ms is None:
        begun_ms = clock.now_ms()
        with spark_errors(f"{plan}: cannot be written"):
            rows = spark.createDataFrame([(begun_ms,)], tables.BEGUN).coalesce(1)
            rows.write.mode("overwrite").parquet(f"{plan}/begun")
    return begun_ms


def recorded_begin_ms(spark: SparkSession, plan: str) -> int | None:
    """Of a plan that an earlier version sent: the begin of the first round in its ledger. None before the first run."""
    try:
        rows = spark.read.schema(tables.BEGUN).parquet(f"{plan}/begun").collect()
    except AnalysisException:
        rows = []
    if rows:
        return int(rows[0]["begun_ms"])
    ledger = read_ledger(spark, plan)
    first = ledger.agg(F.min("run").alias("run")).collect()[0]["run"] if ledger is not None else None
    return None if first is None else int(first)


def is_earlier(begun_ms: int, *, of_campaign: bool) -> Column:
    """Whether a row is of a message that the relay accepted before the first submission of this plan began.

    ``of_campaign``: the plan may meet messages of another one, whose run has just ended. A relay that does not say how long
    ago it accepted a message begins its id with the time.
    """
    differ_ms = SEND_STARTS_MS if of_campaign else CLOCKS_DIFFER_MS
    by_age = F.col("time_ms") - F.col("age_ms") < begun_ms - differ_ms
    id_ms = F.conv(F.substring(F.try_element_at("messages", F.lit(1)), 1, 12), 16, 10).cast("long")
    by_id = id_ms < begun_ms - CLOCKS_DIFFER_MS
    return F.col("repeated") & F.coalesce(by_age, by_id, F.lit(False))


def is_of_mail() -> Column:
    """Whether a row is of a permanent reply to MAIL: it is about the message or its sender (``envelope.PERMANENT``)."""
    return (F.col("state") == DEFERRED) & (F.col("code") >= PERMANENT)


def refused_last(ledger: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Envelopes whose message got a permanent reply to MAIL have their turn after all others: they hold up none in another run."""
    refused = ledger.where(is_of_mail()).select("key", F.lit(TURNS).alias("later")).distinct()

    def transform(envelopes: DataFrame) -> DataFrame:
        turn = F.col("turn") + F.coalesce("later", F.lit(0))
        return envelopes.join(refused, "key", "left").withColumn("turn", turn).drop("later")

    return transform


def without(settled: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Envelopes without the recipients in ``settled``; the keys do not change."""

    def transform(envelopes: DataFrame) -> DataFrame:
        each = envelopes.select("*", F.explode("recipients").alias("recipient")).drop("recipients")
        left = each.join(
            settled.select("key", F.col("address").alias("settled")),
            (each["key"] == settled["key"]) & (F.col("recipient.address") == F.col("settled")),
            "left_anti",
        )
        return left.groupBy("key", "slot", "turn", "zone", "provider", "send_at_ms").agg(
            F.collect_list("recipient").alias("recipients")
        )

    return transform


# ---- What a plan says of itself: the manifest, which is written last, and the message.

VERSION = 3
READ_VERSIONS = (1, 2, VERSION)  # a plan of version 1 has no id; its keys are in its envelopes
PLAN, CAMPAIGN = "plan", "campaign"  # what a recipient gets the message once per


@dataclass(frozen=True, slots=True)
class PlanManifest:
    """The row of ``tables.MANIFEST``."""

    version: int
    campaign: str
    sender: str
    personal: bool
    slots: int
    made_ms: int
    input: int
    planned: int
    rejected: int
    duplicate: int
    suppressed: int
    envelopes: int
    id: str | None = None
    once_per: str | None = None
    not_sampled: int | None = 0
    other_variant: int | None = 0
    postponed: int | None = 0

    @property
    def is_of_campaign(self) -> bool:
        """Whether no recipient gets two messages of the campaign."""
        return self.once_per == CAMPAIGN


def read_manifest(spark: SparkSession, plan: str) -> PlanManifest:
    """The manifest of ``plan``. Raises LocalError when there is none, or one of another version."""
    try:
        row = spark.read.schema(tables.MANIFEST).parquet(f"{plan}/manifest").collect()[0]
    except (AnalysisException, IndexError) as exc:
        raise LocalError(f"{plan}: there is no plan here; make one with: zonemta pipeline plan") from exc
    if row["version"] not in READ_VERSIONS:
        raise LocalError(f"{plan}: a plan of version {row['version']}, this version reads {VERSION}")
    return PlanManifest(**row.asDict())


def read_message(spark: SparkSession, plan: str) -> bytes:
    """The message of a plan, header and body."""
    message: bytearray = (
        spark.read.schema(tables.MESSAGE).parquet(f"{plan}/message").collect()[0]["octets"]
    )
    return bytes(message)


# ---- What a plan is made from.

BY_TASKS_BYTES_MIN = 1 << 20  # of a list; tables of a shorter one are written by Spark: it has few slots


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """``source``: the list. ``output``: a directory without a plan, or with one that ``overwrite`` replaces.

    ``suppress``: sources of entries (``spark.suppression``); ``scopes``: of those that apply. ``once_per``: PLAN, or CAMPAIGN: then no
    other plan of that campaign sends to the same recipient either. ``case_sensitive``: addresses that differ in case only are planned,
    each. ``recipients_per_message`` applies to a message without merge fields. ``reader_options``: of Spark's reader, for the list;
    ``suppress_options`` for the sources of entries. ``tables``: a schema of the session's catalogs that gets the rows of the plan, too.
    """

    source: str
    output: str
    campaign: str
    sender: str
    message: bytes
    config: Config
    suppress: Sequence[str] = ()
    scopes: Sequence[str] = ()
    selection: Selection | None = None
    email_column: str | None = None
    send_at_column: str | None = None
    recipients_per_message: int = 50
    slots: int = 16
    case_sensitive: bool = False
    once_per: str = PLAN
    overwrite: bool = False
    tables: str | None = None
    reader_options: Mapping[str, str] = field(default_factory=dict)
    suppress_options: Mapping[str, str] = field(default_factory=dict)
