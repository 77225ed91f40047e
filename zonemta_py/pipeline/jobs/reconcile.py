"""Reconciles plan, ledger and events: one outcome of every recipient of a campaign, and the counts."""

from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.event_log import EventLog
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.output_lock import locks_output
from zonemta_py.pipeline.spark.plan_ledger import read_ledger
from zonemta_py.pipeline.spark.plan_manifest import read_manifest
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.rows_output import RowsOutput
from zonemta_py.pipeline.transforms.outcomes import OUTCOMES, outcome_events, plan_outcomes


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
