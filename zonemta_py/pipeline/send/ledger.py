"""The ledger of a plan: the recipients that were submitted, and when its first submission began.

The ledger has a row for each recipient and run. An envelope that was submitted without a row, because a task, an executor or the job
died, is submitted again with the same key, which the relay recognises (``repeated``). A repeat of a message that the relay accepted
before the plan began is of another plan (``is_earlier``).
"""

from collections.abc import Callable

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core import clock
from zonemta_py.pipeline.plan.pack import TURNS
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
    """True for a row of a message that the relay accepted before the first submission of this plan began.

    ``of_campaign``: the plan may meet messages of another one, whose run has just ended. A relay that does not say how long
    ago it accepted a message begins its id with the time.
    """
    differ_ms = SEND_STARTS_MS if of_campaign else CLOCKS_DIFFER_MS
    by_age = F.col("time_ms") - F.col("age_ms") < begun_ms - differ_ms
    id_ms = F.conv(F.substring(F.try_element_at("messages", F.lit(1)), 1, 12), 16, 10).cast("long")
    by_id = id_ms < begun_ms - CLOCKS_DIFFER_MS
    return F.col("repeated") & F.coalesce(by_age, by_id, F.lit(False))


def is_of_mail() -> Column:
    """True for a row of a permanent reply to MAIL: it is about the message or its sender (PERMANENT)."""
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


def last_rows(*columns: str | Column) -> Callable[[DataFrame], DataFrame]:
    """``key``, ``address`` and ``last`` of every recipient in a ledger: the ``columns`` of its last row, unless that is deferred and an earlier one is not."""

    def transform(ledger: DataFrame) -> DataFrame:
        order = F.struct(F.col("state") != DEFERRED, "run")
        return ledger.groupBy("key", "address").agg(F.max_by(F.struct(*columns), order).alias("last"))

    return transform
