"""Finds hours in which a rate of a provider deviates from its own history."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from zonemta_py.pipeline.spark.attempts import attempt_sums
from zonemta_py.pipeline.spark.event_log import EventLog
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.output_lock import locks_output
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.rows_output import RowsOutput
from zonemta_py.pipeline.transforms.anomalies import AnomalyThresholds, explained, unusual_hours
from zonemta_py.pipeline.transforms.sums import part_of


@dataclass(frozen=True, slots=True)
class AnomalyRequest:
    """``output``: for the rows, see ``RowsOutput``."""

    log: EventLog
    thresholds: AnomalyThresholds
    output: str | None = None
    overwrite: bool = False


@locks_output
def find_anomalies(
    spark: SparkSession, request: AnomalyRequest, progress: Progress
) -> list[dict[str, Any]]:
    """The anomalies, latest first. Raises LocalError."""
    output = RowsOutput(spark, request.output, overwrite=request.overwrite)
    progress("comparing hours")
    with spark_errors(request.log.path):
        sums = attempt_sums(spark, request.log)
    unusual = unusual_hours(part_of(sums, "provider_hours"), request.thresholds)
    found = explained(unusual, part_of(sums, "replies"))
    output.write(found)
    output.keep_damage(request.log.damage)
    rows: list[dict[str, Any]] = found.to_pylist()
    rows.sort(key=lambda row: (row["provider"], row["measure"]))
    return sorted(rows, key=lambda row: row["hour"], reverse=True)
