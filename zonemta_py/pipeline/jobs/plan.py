"""Makes a plan from a list: the recipients of a message, packed into envelopes, in the order of sending.

The list is read, classified and packed in one pass, whose result is kept on disk while the plan is written: a second evaluation
could see a changed list.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from zonemta_py.config.providers import load_providers
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.provider import listed_domains
from zonemta_py.pipeline.rules.selection import Selection
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.listing import local_size_bytes
from zonemta_py.pipeline.spark.lists import POSITION, address_column, read_list
from zonemta_py.pipeline.spark.plain_lists import PlainList, begins_with_rows, plain_list
from zonemta_py.pipeline.spark.plan_manifest import VERSION, PlanManifest
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.storage import names_in, prepare_output
from zonemta_py.pipeline.spark.suppression import Suppression, read_suppression
from zonemta_py.pipeline.transforms.blocks import Blocks
from zonemta_py.pipeline.transforms.classify import (
    KINDS,
    PLANNED,
    POSTPONED,
    Classifier,
    arrange_rows,
)
from zonemta_py.pipeline.transforms.envelopes import Packing
from zonemta_py.pipeline.transforms.normalise import normalise_plain, normalise_rows
from zonemta_py.pipeline.transforms.pack import pack_rows, with_keys
from zonemta_py.routing import make_router
from zonemta_py.smtp.address import domain_of
from zonemta_py.submit.merge import Template

ID_BYTES = 16
PLAN, CAMPAIGN = "plan", "campaign"  # what a recipient gets the message once per
SLOT_ROWS_MIN = 1000  # recipients; a smaller list has fewer slots
BUCKETS_MIN, BUCKET_BYTES = 32, 4 << 20  # of the list, which may be compressed
PARTS = frozenset(("_judged", "envelopes", "left_out", "postponed", "message", "manifest", "ledger"))


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """``source``: the list. ``output``: a directory without a plan, or with one that ``overwrite`` replaces.

    ``suppress``: sources of entries (``spark.suppression``); ``scopes``: of those that apply. ``once_per``: PLAN, or CAMPAIGN: then no
    other plan of that campaign sends to the same recipient either. ``case_sensitive``: addresses that differ in case only are planned,
    each. ``recipients_per_message`` applies to a message without merge fields. ``reader_options``: of Spark's reader, for the list;
    ``suppress_options`` for the sources of entries.
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
    reader_options: Mapping[str, str] = field(default_factory=dict)
    suppress_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A plan that was made. ``suppression``: what was read of the suppression lists, or None without."""

    manifest: PlanManifest
    suppression: Suppression | None


@dataclass(frozen=True, slots=True)
class _RecipientList:
    """The list as Spark reads it, with the names of its columns that are used."""

    rows: DataFrame
    email: str
    merge_fields: Sequence[str]


def make_plan(spark: SparkSession, request: PlanRequest, progress: Progress) -> PlanResult:
    """Make the plan and write it. Raises LocalError; there is no plan then."""
    _prepare(spark, request)
    template = Template(request.message)
    listed = _open_list(spark, request, template)
    if request.suppress:
        progress("reading the suppression lists")
    today = clock.utc(clock.now_ms()).date()
    suppression = read_suppression(
        spark, request.suppress, request.scopes, today, request.suppress_options
    )
    progress("reading, checking and packing the list")
    packed, counts, rows_read = _pack(request, listed, suppression, personal=template.personal)
    if not rows_read and not _may_be_empty(request):
        raise LocalError(f"{request.source}: the list is empty")
    progress("writing the plan")
    id_ = secrets.token_hex(ID_BYTES)
    scope = request.campaign if request.once_per == CAMPAIGN else id_
    slots = min(request.slots, max(1, counts[PLANNED] // SLOT_ROWS_MIN))
    written = _write_parts(spark, request, packed, (scope, slots))
    if request.selection is not None and request.selection.caps:
        _write_postponed(request, listed, packed)
    manifest = PlanManifest(
        version=VERSION,
        campaign=request.campaign,
        sender=request.sender,
        personal=template.personal,
        slots=slots,
        made_ms=clock.now_ms(),
        input=rows_read,
        envelopes=_count_envelopes(written, rows_read, counts),
        id=id_,
        once_per=request.once_per,
        **counts,
    )
    packed.unpersist()
    if suppression is not None:
        suppression.release()
    _write_row(spark, f"{request.output}/message", (request.message,), tables.MESSAGE)
    values = tuple(getattr(manifest, name) for name in tables.MANIFEST.names)
    _write_row(spark, f"{request.output}/manifest", values, tables.MANIFEST)
    return PlanResult(manifest, suppression)


def _prepare(spark: SparkSession, request: PlanRequest) -> None:
    """Remove what a run that was killed has left. Raises LocalError for a plan that was sent, even in part."""
    if names_in(spark, f"{request.output}/ledger"):
        raise LocalError(
            f"{request.output}: mail of this plan was sent, and its ledger is here; choose another directory"
        )
    prepare_output(spark, request.output, PARTS, "manifest/_SUCCESS", overwrite=request.overwrite)


def _open_list(spark: SparkSession, request: PlanRequest, template: Template) -> _RecipientList:
    """Raises LocalError for a list without the columns that are needed, and for an empty one that another plan has not postponed."""
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
    if request.send_at_column not in (None, *columns):
        raise LocalError(
            f"{request.source}: no column {request.send_at_column}; columns: {', '.join(columns)}"
        )
    if not _may_be_empty(request) and not begins_with_rows(request.source) and rows.isEmpty():
        raise LocalError(f"{request.source}: the list is empty")
    return _RecipientList(rows, email, merge_fields)


def _may_be_empty(request: PlanRequest) -> bool:
    """Whether another plan has written the list."""
    return request.source.rstrip("/").endswith(f"/{POSTPONED}")


def _pack(
    request: PlanRequest, listed: _RecipientList, suppression: Suppression | None, *, personal: bool
) -> tuple[DataFrame, dict[str, int], int]:
    """The rows of ``pack_rows``, stored; the rows of the list by kind; and the number of rows read."""
    read = Observation("list")
    selection = request.selection or Selection(request.campaign)
    config = request.config
    alone = personal or request.once_per == CAMPAIGN
    packing = Packing(
        make_router(config),
        domain_of(request.sender),
        None if alone else request.recipients_per_message,
        listed_domains(load_providers(config.providers.file, shipped=config.providers.shipped)),
    )
    classifier = Classifier(request.case_sensitive, suppression.held if suppression else None)
    blocks = _blocks(request, listed, suppression)
    arrange = arrange_rows(suppression, selection, request.case_sensitive)
    plain = _plain(request, listed) if blocks and not blocks.columns else None
    with spark_errors(request.source):
        if blocks and plain:
            checked = normalise_plain(plain, blocks)(listed.rows.sparkSession)
            checked = checked.observe(read, F.coalesce(F.sum("rows"), F.lit(0)).alias("rows"))
        else:
            checked = listed.rows.observe(read, F.count(F.lit(1)).alias("rows")).transform(
                normalise_rows(listed.email, listed.merge_fields, request.send_at_column, blocks)
            )
        packed = (
            checked.transform(blocks.distribute if blocks else arrange)
            .transform(pack_rows(classifier, packing, selection.caps, blocks))
            .persist(StorageLevel.DISK_ONLY)
        )
        rows = packed.groupBy("kind").agg(
            F.sum(F.coalesce(F.size("recipients"), F.lit(1))).alias("size")
        )
        counts = dict.fromkeys(KINDS, 0)
        counts.update({row["kind"]: int(row["size"]) for row in rows.collect()})
        sums = sum(counts.values())
        rows_read = int(read.get["rows"]) if sums else 0  # what is not run observes nothing
        if rows_read != sums or not sums:
            rows_read = listed.rows.count()  # a stage that ran twice was counted twice
    return packed, counts, rows_read


def _blocks(
    request: PlanRequest, listed: _RecipientList, suppression: Suppression | None
) -> Blocks | None:
    """How the rows are distributed; None where Spark has to look at single ones, or the size of the list is not known."""
    selection = request.selection or Selection(request.campaign)
    if (suppression and suppression.held is None) or selection.variant or selection.sample < 1:
        return None
    if (size_bytes := local_size_bytes(listed.rows.sparkSession, request.source)) is None:
        return None
    extra = [*(["fields"] if listed.merge_fields else []), *(["send_at_ms"] if request.send_at_column else [])]  # fmt: skip
    buckets = max(BUCKETS_MIN, size_bytes // BUCKET_BYTES)
    return Blocks(request.case_sensitive, buckets, tuple(extra))


def _plain(request: PlanRequest, listed: _RecipientList) -> PlainList | None:
    """How tasks read the list themselves; None where Spark has to."""
    separator = {"csv": ",", "txt": ",", "tsv": "\t"}.get(request.source.lower().rpartition(".")[2])
    if separator is None or request.reader_options or not Path(request.source).is_file():
        return None
    names = [name for name in listed.rows.columns if name != POSITION]
    return plain_list(Path(request.source), separator, names, listed.email)


def _write_parts(
    spark: SparkSession, request: PlanRequest, packed: DataFrame, keys: tuple[str, int]
) -> DataFrame:
    """Write envelopes, with keys of that scope and in that number of slots, and what is left out; returns the envelopes as written."""
    path = f"{request.output}/envelopes"
    planned = F.col("kind") == PLANNED
    with spark_errors(request.output):
        packed.where(planned).transform(with_keys(*keys)).sortWithinPartitions(
            "slot", "turn"
        ).write.parquet(path)
        packed.where(~planned).select("kind", "address", "reason").write.parquet(
            f"{request.output}/left_out"
        )
    return spark.read.schema(tables.ENVELOPE).parquet(path)


def _write_postponed(request: PlanRequest, listed: _RecipientList, packed: DataFrame) -> None:
    """Write the recipients over the caps, if there are any, as a list for another plan."""
    columns = [F.col("address").alias(listed.email)]
    columns += [
        F.col("fields")[name].alias(name) for name in listed.merge_fields if name != listed.email
    ]
    if request.send_at_column:
        columns.append(F.timestamp_millis("send_at_ms").alias(request.send_at_column))
    packed.where(F.col("kind") == POSTPONED).select(*columns).write.parquet(
        f"{request.output}/postponed"
    )


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
    # From a table of Arrow, which needs no Python worker.
    table = pa.Table.from_batches([tables.record_batch([row], kind)])
    spark.createDataFrame(table, kind).coalesce(1).write.parquet(path)
