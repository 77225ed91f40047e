"""Plan, ledger and events together: the one outcome of every recipient of a campaign, and the sums."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.jobs.plan import read_manifest
from zonemta_py.pipeline.jobs.send import read_ledger
from zonemta_py.pipeline.spark import schema
from zonemta_py.pipeline.spark.errors import told
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.transforms.outcomes import OUTCOMES, outcomes

Step = Callable[[str], None]


def reconcile(
    spark: SparkSession, plan: str, events: str, output: str | None, step: Step
) -> dict[str, int]:
    """How many recipients had which outcome. Raises LocalError, for sums that are wrong too."""
    manifest = read_manifest(spark, plan)
    step("matching plan, ledger and events")
    found = (
        spark.read.schema(schema.ENVELOPE)
        .parquet(f"{plan}/envelopes")
        .transform(outcomes(read_ledger(spark, plan), read_events(spark, events)))
    )
    with told(events):
        if output is not None:
            found.write.parquet(output)
            found = spark.read.parquet(output)
        rows = found.groupBy("outcome").count().collect()
    counts = {row["outcome"]: row["count"] for row in rows}
    if sum(counts.values()) != manifest.planned:
        raise LocalError(
            f"{plan}: {manifest.planned} were planned, {sum(counts.values())} have an outcome"
        )
    return {name: counts.get(name, 0) for name in OUTCOMES}
