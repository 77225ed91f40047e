"""Writes a delivery report from the event log: Parquet tables and one HTML page.

A report is made from segments or from the output of ``compact``. A report that is kept up to date stores the sums of what it has
read (OUTPUT/sums), and adds those of new segments.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.jobs.dsn import read_matched_reports
from zonemta_py.pipeline.jobs.report_page import PageHeader, page
from zonemta_py.pipeline.jobs.send import read_ledger
from zonemta_py.pipeline.spark.attempts import (
    SUMS_SCHEMA,
    added,
    added_rates,
    attempt_sums,
    part_of,
)
from zonemta_py.pipeline.spark.event_log import QUARANTINE, EventLog, write_quarantine
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.intervals import repeat_until_interrupted
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.read_state import (
    STATE,
    ReadState,
    open_unread,
    read_state,
    write_names,
    write_state,
)
from zonemta_py.pipeline.spark.storage import move, names_in, prepare_output, remove, write_text
from zonemta_py.pipeline.transforms import rates
from zonemta_py.pipeline.transforms.anomalies import AnomalyThresholds, anomalies
from zonemta_py.pipeline.transforms.bounces import complaint_counts
from zonemta_py.pipeline.transforms.replies import failure_replies

PAGE = "report.html"  # written last
TABLES = ("rates", "hours", "days", "replies", "anomalies", "warmup", "complaints")
SUMS, NEXT, READ = "sums", "_next", "read"
PARTS = (
    *TABLES,
    QUARANTINE,
    SUMS,
    NEXT,
    STATE,
    PAGE,
    "attempts",
    "lake",
)  # the last two of earlier versions
JOBS = 3  # tables that are computed at the same time
FILE_ROWS = 1_000_000  # of a table, in one file


class NoAttempts(LocalError):
    """The events contain no attempt to deliver."""


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """``plans``: those whose campaigns are distinguished. ``output``: a directory. ``reports``: directories that ``dsn`` wrote.

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


def make_report(
    spark: SparkSession, request: ReportRequest, log: EventLog, progress: Progress
) -> dict[str, Any]:
    """Write tables and page; returns the row of ``rates`` for all attempts. Raises LocalError."""
    prepare_output(spark, request.output, PARTS, PAGE, overwrite=request.overwrite)
    progress("reading the event log")
    with spark_errors(log.path):
        sums = attempt_sums(spark, log, campaigns_of(spark, request.plans))
        stored = sums.persist(StorageLevel.DISK_ONLY)
        about = PageHeader(log.path, log.records or None, len(log.segments) or None, ())
        found = _write(spark, request, (stored, log, about), request.output, progress)
        stored.unpersist()
    return found


def update_report(
    spark: SparkSession, request: ReportRequest, every_s: float | None, progress: Progress
) -> tuple[dict[str, Any], EventLog]:
    """Bring tables and page up to date with new segments; with ``every_s`` at this interval until SIGINT.

    Returns the same as ``make_report``, and the log as it was read last. Raises LocalError.
    """
    found: list[tuple[dict[str, Any], EventLog]] = []

    def update() -> None:
        try:
            found[:] = [_update(spark, request, progress)]
        except NoAttempts as exc:
            if every_s is None:
                raise
            progress(str(exc))

    repeat_until_interrupted(update, every_s)
    if not found:
        raise NoAttempts(f"{request.events}: no delivery was attempted in these events")
    return found[-1]


def _update(
    spark: SparkSession, request: ReportRequest, progress: Progress
) -> tuple[dict[str, Any], EventLog]:
    output, read = request.output, f"{request.output}/{READ}"
    state = read_state(spark, read)
    if not state.run:
        prepare_output(spark, output, PARTS, PAGE, overwrite=request.overwrite)
    _finish_replacing(spark, output)
    progress("looking for new segments")
    log = open_unread(spark, request.events, read, state)
    with spark_errors(request.events):
        if log.segments or log.names or not state.run:
            progress(f"reading {len(log.segments):,} new segments")
            new = attempt_sums(spark, log, campaigns_of(spark, request.plans))
            if state.run:
                new = new.unionByName(_stored(spark, output, state))
            state = state.after(log)
            remove(spark, f"{output}/{SUMS}/{state.run}")  # of a run that was killed
            new = new.persist(StorageLevel.DISK_ONLY)
            new.transform(added).write.parquet(f"{output}/{SUMS}/{state.run}")
            new.unpersist()
            write_names(spark, read, state.run, log)
            write_state(spark, f"{read}/{STATE}", state)
        for name in names_in(spark, f"{output}/{SUMS}") or ():
            if name != str(state.run):
                remove(spark, f"{output}/{SUMS}/{name}")
        about = PageHeader(request.events, state.records, state.segments, ())
        remove(spark, f"{output}/{NEXT}")
        sums = _stored(spark, output, state).persist(StorageLevel.DISK_ONLY)
        found = _write(spark, request, (sums, log, about), f"{output}/{NEXT}", progress)
        sums.unpersist()
    _finish_replacing(spark, output)
    return found, log


def _stored(spark: SparkSession, output: str, state: ReadState) -> DataFrame:
    return spark.read.schema(SUMS_SCHEMA).parquet(f"{output}/{SUMS}/{state.run}")


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
    spark: SparkSession,
    request: ReportRequest,
    read: tuple[DataFrame, EventLog, PageHeader],
    output: str,
    progress: Progress,
) -> dict[str, Any]:
    """Write tables and page from the sums of ``read``, the log, and what the page says of it."""
    sums, log, about = read
    progress("computing the tables")

    def write(named: tuple[str, DataFrame]) -> None:
        name, table = named
        table.coalesce(1).write.option("maxRecordsPerFile", FILE_ROWS).parquet(f"{output}/{name}")

    # Most of the time of these small jobs is planning, which waits for no other.
    with ThreadPoolExecutor(JOBS) as pool:
        for _ in pool.map(write, _tables(spark, request, sums).items()):
            pass
    progress("writing the page")
    names = names_in(spark, output) or set(TABLES)
    written = {name: spark.read.parquet(f"{output}/{name}") for name in TABLES if name in names}
    row = written["rates"].where("dimension = 'all'").first()
    if row is None:
        raise NoAttempts(f"{request.events}: no delivery was attempted in these events")
    if request.tables:
        progress(f"writing the tables of {request.tables}")
        for name, table in written.items():
            table.write.mode("overwrite").saveAsTable(f"{request.tables}.{name}")
    write_quarantine(spark, output, log)
    header = PageHeader(about.events, about.records, about.segments, list(map(str, log.damage)))
    write_text(spark, f"{output}/{PAGE}", page(header, written))
    return {name: value for name, value in row.asDict().items() if name not in ("dimension", "value")}


def _tables(spark: SparkSession, request: ReportRequest, sums: DataFrame) -> dict[str, DataFrame]:
    replies = part_of(sums, "replies")
    days = part_of(sums, "days").transform(rates.with_time("day"))
    tables = {
        "rates": added_rates(sums).transform(rates.rates_of),
        "hours": part_of(sums, "hours").transform(rates.with_time("hour")),
        "days": days,
        "replies": replies.transform(failure_replies),
        "anomalies": part_of(sums, "provider_hours").transform(anomalies(request.thresholds, replies)),
    }
    if request.warmups:
        tables["warmup"] = days.transform(rates.warmup_compliance(_allowances(spark, request.warmups)))
    if request.reports:
        mail = [read_matched_reports(spark, path) for path in request.reports]
        found = mail[0]
        for each in mail[1:]:
            found = found.unionByName(each)
        tables["complaints"] = found.transform(complaint_counts)
    return tables


def _allowances(spark: SparkSession, warmups: Sequence[WarmupSchedule]) -> DataFrame:
    rows = [
        (day, each.address, each.provider, allowed) for each in warmups for day, allowed in each.days()
    ]
    return spark.createDataFrame(rows, rates.ALLOWANCE)


def campaigns_of(spark: SparkSession, plans: Sequence[str]) -> DataFrame | None:
    """``message`` and ``campaign`` from the ledgers of ``plans``; None without plans.

    Raises LocalError for a plan without a ledger.
    """
    found = None
    for plan in plans:
        ledger = read_ledger(spark, plan)
        if ledger is None:
            raise LocalError(f"{plan}: nothing has been sent yet")
        messages = ledger.select(F.explode("messages").alias("message"), "campaign").distinct()
        found = messages if found is None else found.union(messages)
    return found
