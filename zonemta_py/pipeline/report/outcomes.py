"""Reconciles plan, ledger and events: exactly one outcome of each recipient of a plan, and the counts."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core.errors import LocalError
from zonemta_py.events.schema import FINAL, Accepted
from zonemta_py.pipeline.events.log import EventLog
from zonemta_py.pipeline.events.rows import read_events
from zonemta_py.pipeline.plan.request import read_manifest
from zonemta_py.pipeline.send.ledger import last_rows, read_ledger
from zonemta_py.pipeline.send.submission import ACCEPTED, DEFERRED, REFUSED
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.output import RowsOutput, locks_output
from zonemta_py.pipeline.spark.session import spark_errors
from zonemta_py.pipeline.spark.tables import Progress

WAITING, UNSENT = "waiting", "unsent"
SUBMISSION = {REFUSED: "refused by the relay", DEFERRED: "deferred by the relay"}
OUTCOMES = (*FINAL, WAITING, *SUBMISSION.values(), UNSENT)


@dataclass(frozen=True, slots=True)
class ReconcileRequest:
    """``output``: for one row for each recipient, see ``RowsOutput``."""

    plan: str
    log: EventLog
    output: str | None = None
    overwrite: bool = False


@locks_output
def reconcile(spark: SparkSession, request: ReconcileRequest, progress: Progress) -> dict[str, int]:
    """The number of recipients by outcome. Raises LocalError, also when the counts do not add up to the plan."""
    plan, events = request.plan, request.log.path
    output = RowsOutput(spark, request.output, overwrite=request.overwrite)
    log = outcome_events(read_events(spark, request.log)).persist(StorageLevel.DISK_ONLY)
    manifest = read_manifest(spark, plan)
    progress("matching plan, ledger and events")
    found = (
        spark.read.schema(tables.ENVELOPE)
        .parquet(f"{plan}/envelopes")
        .transform(plan_outcomes(read_ledger(spark, plan), log))
    )
    with spark_errors(events):
        rows = output.written(found).groupBy("outcome").count().collect()
    log.unpersist()
    output.keep_damage(request.log.damage)
    counts = {row["outcome"]: row["count"] for row in rows}
    if sum(counts.values()) != manifest.planned:
        output.discard()
        raise LocalError(
            f"{plan}: {manifest.planned} recipients planned, {sum(counts.values())} with an outcome"
        )
    return {name: counts.get(name, 0) for name in OUTCOMES}


def outcome_events(events: DataFrame) -> DataFrame:
    """Events about the outcome of a recipient: final events, and those of messages that a policy made of one that was submitted."""
    is_other = (F.col("event") == Accepted.name) & (F.col("submission") != "")
    return events.where(F.col("event").isin(*FINAL) | is_other).select(
        "event", "message", "submission", "recipient", "code", "status", "reply"
    )


def plan_outcomes(ledger: DataFrame | None, events: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """``address``, ``key``, ``outcome`` and ``detail`` of every recipient of the plan's envelopes.

    ``waiting``: accepted by a relay, without a final event. ``events`` (``outcome_events``) are evaluated twice: cache them.
    """

    def transform(envelopes: DataFrame) -> DataFrame:
        planned = envelopes.select("key", F.explode("recipients.address").alias("address"))
        if ledger is None:
            return planned.select(
                "key", "address", F.lit(UNSENT).alias("outcome"), F.lit("").alias("detail")
            )
        submitted = ledger.transform(last_rows("state", "reply", "messages"))
        others = events.where(F.col("event") == Accepted.name).select(
            "message", F.col("submission").alias("named")
        )
        finals = (
            submitted.select("key", "address", F.explode("last.messages").alias("message"))
            .join(
                events.where(F.col("event") != Accepted.name)
                .join(others, "message", "left")
                .select(
                    F.coalesce("named", "message").alias("message"),
                    F.col("recipient").alias("address"),
                    F.col("event").alias("final"),
                    F.concat_ws(" ", F.col("code"), "status", "reply").alias("reply"),
                ),
                ["message", "address"],
            )
            # A recipient is in only one of the messages of a key; if it were in two, keep one row.
            .groupBy("key", "address")
            .agg(F.min_by(F.struct("final", "reply"), "message").alias("end"))
        )
        state = F.col("last.state")
        outcome = (
            F.when(F.col("end").isNotNull(), F.col("end.final"))
            .when(state == ACCEPTED, WAITING)
            .when(state == REFUSED, SUBMISSION[REFUSED])
            .when(state == DEFERRED, SUBMISSION[DEFERRED])
            .otherwise(UNSENT)
        )
        return (
            planned.join(submitted, ["key", "address"], "left")
            .join(finals, ["key", "address"], "left")
            .select(
                "key",
                "address",
                outcome.alias("outcome"),
                F.coalesce("end.reply", "last.reply", F.lit("")).alias("detail"),
            )
        )

    return transform
