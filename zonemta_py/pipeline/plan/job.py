"""Makes a plan from a list: the recipients of a message, packed into envelopes, in the order of sending."""

import secrets
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.plan.files import ENVELOPES, LEFT_OUT, WRITING, RecipientList, write_tables
from zonemta_py.pipeline.plan.list import (
    POSITION,
    address_column,
    begins_with_rows,
    read_list,
    refuse_repeated,
)
from zonemta_py.pipeline.plan.request import CAMPAIGN, VERSION, PlanManifest, PlanRequest, read_manifest
from zonemta_py.pipeline.plan.rows import POSTPONED
from zonemta_py.pipeline.plan.suppression import Suppression, read_suppression
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.files import TABLE, names_in, prepare_output
from zonemta_py.pipeline.spark.output import locks_output, replace_tables
from zonemta_py.pipeline.spark.session import spark_errors
from zonemta_py.pipeline.spark.tables import Progress
from zonemta_py.submit.merge import Template

ID_BYTES = 16
ROWS = (ENVELOPES, LEFT_OUT, POSTPONED)  # the last only with caps
PARTS = frozenset((WRITING, *ROWS, "message", "manifest", "begun", "ledger"))


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A plan that was made. ``suppression``: what was read of the suppression lists, or None without."""

    manifest: PlanManifest
    suppression: Suppression | None


@locks_output
def make_plan(spark: SparkSession, request: PlanRequest, progress: Progress) -> PlanResult:
    """Make the plan and write it. Raises LocalError; there is no plan then."""
    _prepare(spark, request)
    template = Template(request.message)
    template.require_reachable()
    listed = _open_list(spark, request, template)
    if request.suppress:
        progress("reading the suppression lists")
    today = clock.utc(clock.now_ms()).date()
    suppression = read_suppression(
        spark, request.suppress, request.scopes, today, request.suppress_options
    )
    progress("reading, checking and packing the list")
    id_ = secrets.token_hex(ID_BYTES)
    scope = request.campaign if request.once_per == CAMPAIGN else id_
    written = write_tables(
        request, listed, suppression, progress, scope=scope, personal=template.personal
    )
    if not written.rows_read and not _is_postponed(request):
        raise LocalError(f"{request.source}: the list is empty")
    manifest = PlanManifest(
        version=VERSION,
        campaign=request.campaign,
        sender=request.sender,
        personal=template.personal,
        slots=written.slots,
        made_ms=clock.now_ms(),
        input=written.rows_read,
        envelopes=written.envelopes,
        id=id_,
        once_per=request.once_per,
        **written.counts,
    )
    if suppression is not None:
        suppression.release()
    if request.tables:
        progress(f"writing the tables of {request.tables}")
        _replace_tables(spark, request, request.tables)
    _write_row(spark, f"{request.output}/message", (request.message,), tables.MESSAGE)
    values = tuple(getattr(manifest, name) for name in tables.MANIFEST.names)
    _write_row(spark, f"{request.output}/manifest", values, tables.MANIFEST)
    return PlanResult(manifest, suppression)


def _replace_tables(spark: SparkSession, request: PlanRequest, schema: str) -> None:
    names = ROWS if request.selection and request.selection.caps else ROWS[:-1]
    parts = {name: spark.read.parquet(f"{request.output}/{name}") for name in names}
    replace_tables(spark, schema, {**dict.fromkeys(ROWS), **parts})


def _prepare(spark: SparkSession, request: PlanRequest) -> None:
    """Remove what a run that was killed has left. Raises LocalError for a plan that was sent, even in part."""
    if any(names_in(spark, f"{request.output}/{name}") for name in ("ledger", "begun")):
        raise LocalError(
            f"{request.output}: mail of this plan was sent, and its ledger is here; choose another directory"
        )
    if request.tables and request.source.startswith(TABLE):
        schema = _table_name(request.tables)
        if _table_name(request.source) in [f"{schema}.{name}" for name in ROWS]:
            raise LocalError(
                f"{request.source}: --tables {request.tables} would replace this list; choose another schema"
            )
    prepare_output(spark, request.output, PARTS, "manifest/_SUCCESS", overwrite=request.overwrite)


def _open_list(spark: SparkSession, request: PlanRequest, template: Template) -> RecipientList:
    """Raises LocalError for a list without the columns that are needed, for an empty one that another plan has not postponed,
    and for one of a plan that is not complete.
    """
    if _is_postponed(request):
        _refuse_incomplete(spark, request.source)
    rows = read_list(spark, request.source, request.reader_options)
    columns = [name for name in rows.columns if name != POSITION]
    email = address_column(columns, request.email_column, request.source)
    missing = [name for name in template.fields if name not in columns]
    for name in missing:
        refuse_repeated(columns, name, request.source)
    if missing:
        raise LocalError(
            f"{request.source}: the message needs the column {', '.join(missing)}; "
            f"columns: {', '.join(columns)}"
        )
    if request.send_at_column not in (None, *columns):
        raise LocalError(
            f"{request.source}: no column {request.send_at_column}; columns: {', '.join(columns)}"
        )
    if not _is_postponed(request) and not begins_with_rows(request.source) and rows.isEmpty():
        raise LocalError(f"{request.source}: the list is empty")
    return RecipientList(rows, email, template.fields, template.required)


def _is_postponed(request: PlanRequest) -> bool:
    """True if another plan has written the list."""
    if request.source.startswith(TABLE):
        return _table_name(request.source).endswith(f".{POSTPONED}")
    return request.source.rstrip("/").endswith(f"/{POSTPONED}")


def _table_name(source: str) -> str:
    """Spark takes names in any case, and with backquotes."""
    return source.removeprefix(TABLE).replace("`", "").lower()


def _refuse_incomplete(spark: SparkSession, postponed: str) -> None:
    """Raise LocalError if the run that wrote the rows ``postponed`` of a plan was killed before that was complete."""
    plan = postponed.rstrip("/").rpartition("/")[0]
    if plan and "envelopes" in (names_in(spark, plan) or ()):
        read_manifest(spark, plan)


def _write_row(spark: SparkSession, path: str, row: tuple[Any, ...], kind: StructType) -> None:
    # From a table of Arrow, which needs no Python worker.
    table = pa.Table.from_batches([tables.record_batch([row], kind)])
    with spark_errors(path):
        spark.createDataFrame(table, kind).coalesce(1).write.parquet(path)
