"""Writes a delivery report from the event log: Parquet tables and one HTML page.

A report is made from segments or from the output of ``compact``. Spark's tasks make the sums of what they read; the rest is done here, by
Arrow. A report that is kept up to date stores the sums of what it has read (``ReportSums``), and adds those of new segments. Its tables
and its page are written to OUTPUT/_next, and put in place when all of them are there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.events.log import (
    READ,
    STATE,
    EventLog,
    open_unread,
    read_state,
    write_names,
    write_state,
)
from zonemta_py.pipeline.feedback.bounces import complaint_counts
from zonemta_py.pipeline.feedback.reports import read_matched_reports
from zonemta_py.pipeline.report.anomalies import AnomalyThresholds, explained, hours_of, unusual_hours
from zonemta_py.pipeline.report.attempts import part_of, providers_of
from zonemta_py.pipeline.report.page import (
    PageHeader,
    page_content,
    render,
)
from zonemta_py.pipeline.report.sums import ReportSums, attempt_sums
from zonemta_py.pipeline.report.tables import (
    days_table,
    hours_table,
    page_rows,
    rates_table,
    replies_table,
    warmup_table,
)
from zonemta_py.pipeline.send.ledger import read_ledger
from zonemta_py.pipeline.spark.arrow import write_table
from zonemta_py.pipeline.spark.files import move, names_in, prepare_output, remove, write_text
from zonemta_py.pipeline.spark.output import QUARANTINE, locks_output, replace_tables, write_quarantine
from zonemta_py.pipeline.spark.session import repeat_until_interrupted, spark_errors
from zonemta_py.pipeline.spark.tables import Progress

__all__ = ["PageHeader", "page"]
PAGE = "report.html"  # written last
TABLES = ("rates", "hours", "days", "replies", "anomalies", "warmup", "complaints")
SUMS, NEXT = "sums", "_next"
PARTS = (
    *TABLES,
    QUARANTINE,
    SUMS,
    NEXT,
    READ,
    STATE,
    PAGE,
    "attempts",
    "lake",
)  # the last two of earlier versions
FILE = "rows.parquet"  # of each table


class NoAttempts(LocalError):
    """The events contain no attempt to deliver. ``log``: as it was read."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(f"{log.path}: no delivery was attempted in these events")
        self.log = log


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """``plans``: those whose campaigns are distinguished. ``output``: a directory. ``reports``: what ``dsn`` wrote.

    ``tables``: a schema of the session's catalogs that gets the tables, too, or None.
    """

    events: str
    plans: Sequence[str]
    output: str
    warmups: Sequence[WarmupSchedule] = ()
    thresholds: AnomalyThresholds = AnomalyThresholds()
    overwrite: bool = False
    reports: Sequence[str] = ()
    tables: str | None = None


@locks_output
def make_report(
    spark: SparkSession, request: ReportRequest, log: EventLog, progress: Progress
) -> dict[str, Any]:
    """Write tables and page; returns the row of ``rates`` for all attempts. Raises LocalError."""
    prepare_output(spark, request.output, PARTS, PAGE, overwrite=request.overwrite)
    progress("reading the event log")
    with spark_errors(log.path):
        held = attempt_sums(spark, log, campaigns_of(spark, request.plans))
    sums = ReportSums(spark, f"{request.output}/{SUMS}", {}, held)
    segments = log.known if log.is_compacted else len(log.segments)
    about = PageHeader(log.path, log.records or None, segments or None, ())
    return _write(request, (sums, log, about), request.output, progress)


@locks_output
def update_report(
    spark: SparkSession, request: ReportRequest, every_s: float | None, progress: Progress
) -> tuple[dict[str, Any], EventLog]:
    """Bring tables and page up to date with new segments; with ``every_s`` at this interval until SIGINT.

    Returns the same as ``make_report``, and the log as it was read last. Raises LocalError.
    """
    found: list[tuple[dict[str, Any], EventLog]] = []
    nothing: list[NoAttempts] = []

    def update() -> None:
        try:
            found[:] = [_update(spark, request, progress)]
        except NoAttempts as exc:
            if every_s is None:
                raise
            nothing[:] = [exc]
            progress(str(exc))

    repeat_until_interrupted(update, every_s)
    if not found:
        raise nothing[-1]
    return found[-1]


def _update(
    spark: SparkSession, request: ReportRequest, progress: Progress
) -> tuple[dict[str, Any], EventLog]:
    output, read = request.output, f"{request.output}/{READ}"
    state = read_state(spark, read)
    if not state.run:
        prepare_output(spark, output, PARTS, PAGE, overwrite=request.overwrite)
    elif str(state.run) in (names_in(spark, f"{output}/{SUMS}") or ()):
        raise LocalError(
            f"{output}/{SUMS}: written by another version; begin again in another directory"
        )
    _finish_replacing(spark, output)
    progress("looking for new segments")
    log = open_unread(spark, request.events, read, state)
    sums = ReportSums(spark, f"{output}/{SUMS}", state.sums)
    if log.segments or log.names or not state.run:
        progress(f"reading {len(log.segments):,} new segments")
        with spark_errors(request.events):
            new = attempt_sums(spark, log, campaigns_of(spark, request.plans))
        sums = sums.added(new, state.run + 1)
        state = state.after(log, sums.files)
        write_names(spark, read, state.run, log)
        write_state(spark, f"{read}/{STATE}", state)
    sums.remove_others()
    about = PageHeader(request.events, state.records, state.segments, ())
    remove(spark, f"{output}/{NEXT}")
    found = _write(request, (sums, log, about), f"{output}/{NEXT}", progress)
    _finish_replacing(spark, output)
    return found, log


def _finish_replacing(spark: SparkSession, output: str) -> None:
    """Put the tables and the page of OUTPUT/_next in place, if all of them are there: the page is written last, and moved last."""
    names = names_in(spark, f"{output}/{NEXT}") or set()
    if PAGE not in names:
        return
    for name in sorted(names, key=lambda each: each == PAGE):
        remove(spark, f"{output}/{name}")
        move(spark, f"{output}/{NEXT}/{name}", f"{output}/{name}")
    if QUARANTINE not in names:
        remove(spark, f"{output}/{QUARANTINE}")
    remove(spark, f"{output}/{NEXT}")


def _write(
    request: ReportRequest,
    read: tuple[ReportSums, EventLog, PageHeader],
    output: str,
    progress: Progress,
) -> dict[str, Any]:
    """Write tables and page from the sums of ``read``, the log, and what the page says of it."""
    sums, log, about = read
    spark = sums.spark
    progress("computing the tables")
    tables = _tables(request, sums)
    rates = tables["rates"]
    every = rates.filter(pc.equal(rates.column("dimension"), "all")).to_pylist()
    if not every:
        if log.damage:
            write_quarantine(spark, request.output, log.damage)
        raise NoAttempts(log)
    progress("writing tables and page")
    for name, table in tables.items():
        write_table(spark, f"{output}/{name}/{FILE}", table)
    if request.tables:
        progress(f"writing the tables of {request.tables}")
        parts = {name: spark.createDataFrame(table) for name, table in tables.items()}
        replace_tables(spark, request.tables, {**dict.fromkeys(TABLES), **parts})
    if log.damage:
        write_quarantine(spark, output, log.damage)
    header = replace(about, damage=list(map(str, log.damage)), is_verified=log.is_verified)
    write_text(spark, f"{output}/{PAGE}", page(header, tables))
    return {name: value for name, value in every[0].items() if name not in ("dimension", "value")}


def _tables(request: ReportRequest, sums: ReportSums) -> dict[str, pa.Table]:
    timed = sums.timed(("hours", "days", "provider_hours"))
    days = days_table(part_of(timed, "days"))
    unusual = unusual_hours(part_of(timed, "provider_hours"), request.thresholds)
    tables = {
        "rates": rates_table(sums.totals("rates")),
        "hours": hours_table(part_of(timed, "hours")),
        "days": days,
        "replies": replies_table(sums.totals("replies")),
        "anomalies": explained(unusual, sums.timed(("replies",), hours_of(unusual))),
    }
    if request.warmups:
        tables["warmup"] = warmup_table(days, request.warmups)
    if request.reports:
        mail = [read_matched_reports(sums.spark, path) for path in request.reports]
        found = mail[0]
        for each in mail[1:]:
            found = found.unionByName(each)
        with spark_errors(", ".join(request.reports)):
            providers = sums.spark.createDataFrame(
                providers_of(sums.totals("domains")), "domain string, provider string"
            )
            tables["complaints"] = found.transform(complaint_counts(providers)).toArrow()
    return tables


def page(about: PageHeader, tables: Mapping[str, pa.Table]) -> str:
    """The complete file, from ``rates``, ``hours``, ``days``, ``replies``, ``anomalies``; ``warmup`` and ``complaints`` if there."""
    return render(page_content(about, page_rows(tables)))


def campaigns_of(spark: SparkSession, plans: Sequence[str]) -> DataFrame | None:
    """``message`` and ``campaign`` from the ledgers of ``plans``, a row for each message; None without plans.

    Of a message in several ledgers, with other campaigns, the first one counts. Raises LocalError for a plan without a ledger.
    """
    found = None
    for plan in plans:
        ledger = read_ledger(spark, plan)
        if ledger is None:
            raise LocalError(f"{plan}: nothing has been sent yet")
        messages = ledger.select(F.explode("messages").alias("message"), "campaign")
        found = messages if found is None else found.union(messages)
    return (
        found.groupBy("message").agg(F.min("campaign").alias("campaign")) if found is not None else None
    )
