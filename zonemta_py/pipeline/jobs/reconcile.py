"""Reconciles plan, ledger and events: one outcome of every recipient of a campaign, and the counts."""

from dataclasses import dataclass

from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.jobs.send import read_ledger
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.event_log import EventLog
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.plan_manifest import read_manifest
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.storage import SUCCESS, names_in, prepare_rows, remove
from zonemta_py.pipeline.transforms.outcomes import OUTCOMES, plan_outcomes


@dataclass(frozen=True, slots=True)
class ReconcileRequest:
    """``output``: a directory for one row for each recipient as Parquet, or None."""

    plan: str
    log: EventLog
    output: str | None = None
    overwrite: bool = False


def reconcile(spark: SparkSession, request: ReconcileRequest, progress: Progress) -> dict[str, int]:
    """The number of recipients by outcome. Raises LocalError, also when the counts do not add up to the plan."""
    plan, events, output = request.plan, request.log.path, request.output
    mode = prepare_rows(spark, output, overwrite=request.overwrite) if output is not None else None
    log = read_events(spark, request.log)
    manifest = read_manifest(spark, plan)
    progress("matching plan, ledger and events")
    found = (
        spark.read.schema(tables.ENVELOPE)
        .parquet(f"{plan}/envelopes")
        .transform(plan_outcomes(read_ledger(spark, plan), log))
    )
    with spark_errors(events):
        if output is not None:
            found.write.parquet(output, mode)
            found = spark.read.parquet(output)
        rows = found.groupBy("outcome").count().collect()
    counts = {row["outcome"]: row["count"] for row in rows}
    if sum(counts.values()) != manifest.planned:
        if output is not None and names_in(spark, output):
            remove(spark, f"{output}/{SUCCESS}")
        raise LocalError(
            f"{plan}: {manifest.planned} recipients planned, {sum(counts.values())} with an outcome"
        )
    return {name: counts.get(name, 0) for name in OUTCOMES}
