"""What a plan says of itself: the manifest, which is written last, and the message."""

from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark import tables

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
