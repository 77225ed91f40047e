"""Hours in which a provider's rates left their own history, as rows."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.errors import told
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.transforms.anomalies import Sensitivity, anomalies
from zonemta_py.pipeline.transforms.rates import attempts

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """In which events, how far from usual, perhaps into which folder as Parquet."""

    events: str
    sensitivity: Sensitivity
    output: str | None = None


def find_anomalies(spark: SparkSession, request: Request, step: Step) -> list[Row]:
    """The hours, the latest first. Raises LocalError."""
    step("comparing hours")
    found = (
        read_events(spark, request.events)
        .transform(attempts(None))
        .transform(anomalies(request.sensitivity))
    )
    with told(request.events):
        if request.output is not None:
            try:
                found.write.parquet(request.output)
            except AnalysisException as exc:
                problem = f"{request.output}: there is something already; choose another folder"
                raise LocalError(problem) from exc
            found = spark.read.parquet(request.output)
        return found.orderBy(found["hour"].desc(), "provider", "measure").collect()
