"""Finds hours in which a rate of a provider deviates from its own history."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.damage import Damage
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.transforms.anomalies import AnomalyThresholds, anomalies
from zonemta_py.pipeline.transforms.rates import attempt_rows


@dataclass(frozen=True, slots=True)
class AnomalyRequest:
    """``output``: a directory for the rows as Parquet, or None."""

    events: str
    thresholds: AnomalyThresholds
    output: str | None = None
    damage: Sequence[Damage] = ()


def find_anomalies(spark: SparkSession, request: AnomalyRequest, progress: Progress) -> list[Row]:
    """The anomalies, latest first. Raises LocalError."""
    progress("comparing hours")
    found = (
        read_events(spark, request.events, request.damage)
        .transform(attempt_rows(None))
        .transform(anomalies(request.thresholds))
    )
    with spark_errors(request.events):
        if request.output is not None:
            try:
                found.write.parquet(request.output)
            except AnalysisException as exc:
                raise LocalError(f"{request.output} exists; choose another directory") from exc
            found = spark.read.parquet(request.output)
        return found.orderBy(found["hour"].desc(), "provider", "measure").collect()
