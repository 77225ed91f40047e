"""The request that a plan is made from, its manifest, which is written last, and its message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from zonemta_py.config.schema import Config
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.plan.rows import Selection
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
        """True if no recipient gets two messages of the campaign."""
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


BY_TASKS_BYTES_MIN = 1 << 20  # of a list; tables of a shorter one are written by Spark: it has few slots


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """``source``: the list. ``output``: a directory without a plan, or with one that ``overwrite`` replaces.

    ``suppress``: sources of entries (``read_suppression``); ``scopes``: of those that apply. ``once_per``: PLAN, or CAMPAIGN: then no
    other plan of that campaign sends to the same recipient either. ``case_sensitive``: addresses that differ in case only are planned,
    each. ``recipients_per_message`` applies to a message without merge fields. ``reader_options``: of Spark's reader, for the list;
    ``suppress_options`` for the sources of entries. ``tables``: a schema of the session's catalogs that gets the rows of the plan, too.
    """

    source: str
    output: str
    campaign: str
    sender: str
    message: bytes
    config: Config
    suppress: Sequence[str] = ()
    scopes: Sequence[str] = ()
    selection: Selection | None = None
    email_column: str | None = None
    send_at_column: str | None = None
    recipients_per_message: int = 50
    slots: int = 16
    case_sensitive: bool = False
    once_per: str = PLAN
    overwrite: bool = False
    tables: str | None = None
    reader_options: Mapping[str, str] = field(default_factory=dict)
    suppress_options: Mapping[str, str] = field(default_factory=dict)
