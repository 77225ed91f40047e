"""Finds hours in which a rate of a provider deviates from its own history."""

from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.attempts import attempt_sums, part_of
from zonemta_py.pipeline.spark.event_log import EventLog
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.transforms.anomalies import AnomalyThresholds, anomalies


@dataclass(frozen=True, slots=True)
class AnomalyRequest:
    """``output``: a directory for the rows as Parquet, or None."""

    log: EventLog
    thresholds: AnomalyThresholds
    output: str | None = None


def find_anomalies(spark: SparkSession, request: AnomalyRequest, progress: Progress) -> list[Row]:
    """The anomalies, latest first. Raises LocalError."""
    progress("comparing hours")
    sums = attempt_sums(spark, request.log).persist(StorageLevel.DISK_ONLY)
    replies = part_of(sums, "replies")
    found = part_of(sums, "provider_hours").transform(anomalies(request.thresholds, replies))
    with spark_errors(request.log.path):
        if request.output is not None:
            try:
                found.write.parquet(request.output)
            except AnalysisException as exc:
                raise LocalError(f"{request.output} exists; choose another directory") from exc
            found = spark.read.parquet(request.output)
        return found.orderBy(found["hour"].desc(), "provider", "measure").collect()
