"""Makes a plan from a list: the recipients of a message, packed into envelopes, in the order of sending.

The list is classified once and stored, and everything else is derived from that: a second evaluation
could see another order of rows, or a changed list.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.suppression import SuppressionList
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.lists import POSITION, address_column, read_list
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.storage import is_url, names_in, prepare_output, remove
from zonemta_py.pipeline.transforms.classify import (
    DUPLICATE,
    PLANNED,
    REJECTED,
    SUPPRESSED,
    classify_rows,
)
from zonemta_py.pipeline.transforms.normalise import normalise_rows
from zonemta_py.pipeline.transforms.pack import Packing, pack_envelopes
from zonemta_py.routing import make_router
from zonemta_py.smtp.address import domain_of
from zonemta_py.submit.merge import Template

VERSION = 2
READ_VERSIONS = (1, VERSION)  # a plan of version 1 has no id; its keys are in its envelopes
ID_BYTES = 16
PLAN, CAMPAIGN = "plan", "campaign"  # what a recipient gets the message once per
SLOT_ROWS_MIN = 1000  # recipients; a smaller list has fewer slots
BROADCAST_MAX = 1_000_000  # entries of a suppression list that every task keeps in memory
CLASSIFIED = "_judged"  # deleted at the end, where OUTPUT is a local directory
PARTS = frozenset((CLASSIFIED, "envelopes", "left_out", "message", "manifest", "ledger"))


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """``source``: the list. ``output``: a directory without a plan, or with one that ``overwrite`` replaces.

    ``once_per``: PLAN, or CAMPAIGN: then no other plan of that campaign sends to the same recipient either.
    ``case_sensitive``: addresses that differ in case only are planned, each. ``recipients_per_message`` applies to a message without merge fields. ``reader_options``: of Spark's reader.
    """

    source: str
    output: str
    campaign: str
    sender: str
    message: bytes
    config: Config
    suppression: SuppressionList
    email_column: str | None = None
    recipients_per_message: int = 50
    slots: int = 16
    case_sensitive: bool = False
    once_per: str = PLAN
    overwrite: bool = False
    reader_options: Mapping[str, str] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class _RecipientList:
    """The list as Spark reads it, with the names of its columns that are used."""

    rows: DataFrame
    email: str
    merge_fields: Sequence[str]


def make_plan(spark: SparkSession, request: PlanRequest, progress: Progress) -> PlanManifest:
    """Make the plan and write it. Raises LocalError; there is no plan then."""
    _prepare(spark, request)
    template = Template(request.message)
    listed = _open_list(spark, request, template)
    progress("reading and checking the list")
    classified, rows_read = _classify(spark, request, listed)
    id_ = secrets.token_hex(ID_BYTES)
    scope = request.campaign if request.once_per == CAMPAIGN else id_
    shared = (
        None if template.personal or request.once_per == CAMPAIGN else request.recipients_per_message
    )
    packing = Packing(scope, request.slots, shared)
    sizes = classified.groupBy("kind", "provider").agg(F.count("*").alias("size")).persist()
    counts, small_rows = _counts(sizes, packing)
    if rows_read != sum(counts.values()):
        rows_read = listed.rows.count()  # a stage that ran twice was counted twice
    packing = replace(packing, slots=min(request.slots, max(1, counts[PLANNED] // SLOT_ROWS_MIN)))
    progress("packing envelopes")
    envelopes = _write_envelopes(spark, request, classified, sizes, (packing, small_rows))
    sizes.unpersist()
    progress("writing the rows that are left out")
    _write_left_out(request, classified)
    manifest = PlanManifest(
        version=VERSION,
        campaign=request.campaign,
        sender=request.sender,
        personal=template.personal,
        slots=packing.slots,
        made_ms=clock.now_ms(),
        input=rows_read,
        envelopes=_count_envelopes(envelopes, rows_read, counts),
        id=id_,
        once_per=request.once_per,
        **counts,
    )
    if not is_url(request.output):
        remove(spark, f"{request.output}/{CLASSIFIED}")
    _write_row(spark, f"{request.output}/message", (request.message,), tables.MESSAGE)
    values = tuple(getattr(manifest, name) for name in tables.MANIFEST.names)
    _write_row(spark, f"{request.output}/manifest", values, tables.MANIFEST)
    return manifest


def _prepare(spark: SparkSession, request: PlanRequest) -> None:
    """Remove what a run that was killed has left. Raises LocalError for a plan that was sent, even in part."""
    if names_in(spark, f"{request.output}/ledger"):
        raise LocalError(
            f"{request.output}: mail of this plan was sent, and its ledger is here; choose another directory"
        )
    prepare_output(spark, request.output, PARTS, "manifest/_SUCCESS", overwrite=request.overwrite)


def _counts(sizes: DataFrame, packing: Packing) -> tuple[dict[str, int], int]:
    """Rows by kind, and the planned ones of small providers."""
    is_small = (F.col("kind") == PLANNED) & (F.col("size") < packing.small_max)
    rows = sizes.groupBy("kind").agg(
        F.sum("size").alias("size"), F.coalesce(F.sum(F.when(is_small, F.col("size"))), F.lit(0)).alias("small")
    ).collect()  # fmt: skip
    counts = dict.fromkeys((PLANNED, REJECTED, DUPLICATE, SUPPRESSED), 0)
    counts.update({row["kind"]: row["size"] for row in rows})
    return counts, sum(row["small"] for row in rows)


def _open_list(spark: SparkSession, request: PlanRequest, template: Template) -> _RecipientList:
    """Raises LocalError for an empty list, and for one without the columns that are needed."""
    rows = read_list(spark, request.source, request.reader_options)
    columns = [name for name in rows.columns if name != POSITION]
    email = address_column(columns, request.email_column, request.source)
    merge_fields = [name.decode("utf-8", "replace") for name in template.fields]
    missing = [name for name in merge_fields if name not in columns]
    if missing:
        raise LocalError(
            f"{request.source}: the message needs the column {', '.join(missing)}; "
            f"columns: {', '.join(columns)}"
        )
    if rows.isEmpty():
        raise LocalError(f"{request.source}: the list is empty")
    return _RecipientList(rows, email, merge_fields)


def _classify(
    spark: SparkSession, request: PlanRequest, listed: _RecipientList
) -> tuple[DataFrame, int]:
    """Every row with its kind, stored; and the number of rows read."""
    observation = Observation("list")
    suppression = None
    if request.suppression.entries:
        entries = list(request.suppression.entries.items())
        suppression = spark.createDataFrame(entries, "entry string, reason string")
        if len(entries) <= BROADCAST_MAX:
            suppression = F.broadcast(suppression)
    router = make_router(request.config)
    path = f"{request.output}/{CLASSIFIED}"
    with spark_errors(request.source):
        (
            listed.rows.observe(observation, F.count(F.lit(1)).alias("rows"))
            .transform(
                normalise_rows(listed.email, listed.merge_fields, router, domain_of(request.sender))
            )
            .transform(classify_rows(suppression, request.case_sensitive))
            .write.option("compression", "lz4")
            .option("parquet.enable.dictionary#address", "false")  # all are different
            .parquet(path)
        )
    return spark.read.parquet(path), int(observation.get["rows"])


def _write_envelopes(
    spark: SparkSession,
    request: PlanRequest,
    classified: DataFrame,
    sizes: DataFrame,
    packing: tuple[Packing, int],
) -> DataFrame:
    providers = sizes.where(F.col("kind") == PLANNED).select("provider", "size")
    path = f"{request.output}/envelopes"
    (
        classified.where(F.col("kind") == PLANNED)
        .transform(pack_envelopes(packing[0], providers, packing[1]))
        .repartition(packing[0].slots, "slot")
        .sortWithinPartitions("slot", "turn")
        .write.parquet(path)
    )
    return spark.read.schema(tables.ENVELOPE).parquet(path)


def _write_left_out(request: PlanRequest, classified: DataFrame) -> None:
    classified.where(F.col("kind") != PLANNED).select(
        "kind", F.coalesce("given", "address").alias("address"), F.col("why").alias("reason")
    ).write.parquet(f"{request.output}/left_out")


def _count_envelopes(envelopes: DataFrame, rows_read: int, counts: Mapping[str, int]) -> int:
    """The number of envelopes. Raises LocalError unless the counts and the recipients in them add up."""
    written = envelopes.agg(
        F.count("*").alias("envelopes"), F.coalesce(F.sum(F.size("recipients")), F.lit(0)).alias("recipients")
    ).collect()[0]  # fmt: skip
    if sum(counts.values()) != rows_read or written["recipients"] != counts[PLANNED]:
        raise LocalError(
            f"the sums are wrong: {rows_read} rows read, classified as {dict(counts)}, "
            f"{written['recipients']} recipients written"
        )
    return int(written["envelopes"])


def _write_row(spark: SparkSession, path: str, row: tuple[Any, ...], kind: StructType) -> None:
    spark.createDataFrame([row], kind).coalesce(1).write.parquet(path)


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
