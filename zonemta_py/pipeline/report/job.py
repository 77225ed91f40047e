"""Writes a delivery report from the event log: Parquet tables and one HTML page.

A report is made from segments or from the output of ``compact``. Spark's tasks make the sums of what they read; the rest is done here, by
Arrow. A report that is kept up to date stores the sums of what it has read (``spark.report_sums``), and adds those of new segments.
"""

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.core import clock
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
from zonemta_py.pipeline.events.quarantine import QUARANTINE, write_quarantine
from zonemta_py.pipeline.feedback.bounces import complaint_counts
from zonemta_py.pipeline.feedback.reports import read_matched_reports
from zonemta_py.pipeline.plan.request import read_ledger
from zonemta_py.pipeline.report.anomalies import AnomalyThresholds, explained, hours_of, unusual_hours
from zonemta_py.pipeline.report.attempts import ATTEMPTS, part_of, providers_of
from zonemta_py.pipeline.report.page import (
    COMPLAINED,
    ROWS_MAX,
    PageHeader,
    PageRows,
    busiest_providers,
    page_content,
    render,
)
from zonemta_py.pipeline.report.sums import ReportSums, attempt_sums
from zonemta_py.pipeline.report.tables import (
    days_table,
    hours_table,
    rates_table,
    replies_table,
    warmup_table,
)
from zonemta_py.pipeline.spark.arrow import write_table
from zonemta_py.pipeline.spark.files import move, names_in, prepare_output, remove, write_text
from zonemta_py.pipeline.spark.output import locks_output, replace_tables
from zonemta_py.pipeline.spark.session import spark_errors
from zonemta_py.pipeline.spark.tables import Progress

# ---- The HTML page of a report, from its tables: the rows that are shown.

__all__ = ["PageHeader", "page"]

Rows = list[dict[str, Any]]

_TEMPLATE = ("template", "reason", "provider", "event", "code", "status")


def page(about: PageHeader, tables: Mapping[str, pa.Table]) -> str:
    """The complete file, from ``rates``, ``hours``, ``days``, ``replies``, ``anomalies``; ``warmup`` and ``complaints`` if there."""
    complaints = _complaints(tables["complaints"]) if "complaints" in tables else None
    rates_shown = _rates(tables["rates"], complaints or ())
    rows = PageRows(
        rates=rates_shown,
        hours=_by_time(tables["hours"], "hour"),
        days=_days(tables["days"], busiest_providers(rates_shown)),
        reasons=_most(tables["replies"], ("reason", "event")),
        templates=_most(tables["replies"], _TEMPLATE, ROWS_MAX),
        anomalies=_anomalies(tables["anomalies"]),
        warmup=tables["warmup"].to_pylist() if "warmup" in tables else None,
        complaints=complaints,
    )
    return render(page_content(about, rows))


def _complaints(table: pa.Table) -> Rows:
    """The sum of all, and those of the providers and campaigns with most, the most first."""
    found = [("all", Counter({"": pc.sum(table.column("complaints")).as_py() or 0}))]
    for name in COMPLAINED:
        summed = table.group_by(name).aggregate([("complaints", "sum")])
        by: Counter[str] = Counter()
        for row in summed.to_pylist():
            by[row[name] or ""] += row["complaints_sum"]
        found.append((name, by))
    return [
        {"dimension": dimension, "value": value, "complaints": count}
        for dimension, by in found
        for value, count in sorted(by.items(), key=lambda item: (-item[1], item[0]))[:ROWS_MAX]
    ]


def _rates(table: pa.Table, complaints: Sequence[Mapping[str, Any]]) -> Rows:
    """The row of all, the busiest of each dimension, and those with complaints: these are few and need ``delivered``."""
    found: Rows = []
    for dimension in pc.unique(table.column("dimension")).to_pylist():
        rows = table.filter(pc.equal(table.column("dimension"), dimension))
        if dimension == "all":
            found += rows.to_pylist()
            continue
        wanted = pa.array(
            [row["value"] for row in complaints if row["dimension"] == dimension], pa.string()
        )
        complained = rows.filter(pc.is_in(rows.column("value"), wanted))
        named = rows.filter(pc.not_equal(rows.column("value"), ""))
        order = [("attempts", "descending"), ("value", "ascending")]
        shown = pa.concat_tables([named.sort_by(order).slice(0, ROWS_MAX), complained])
        found += {row["value"]: row for row in shown.to_pylist()}.values()
    return found


def _days(table: pa.Table, providers: Sequence[str]) -> Rows:
    wanted = pa.array(list(providers), pa.string())
    return _by_time(table.filter(pc.is_in(table.column("provider"), wanted)), "day", "provider")


def _by_time(table: pa.Table, time: str, *keys: str) -> Rows:
    """The sums of each hour or day, with ``begins``."""
    seconds = table.column(time).cast(pa.timestamp("s", "UTC")).cast(pa.int64())
    columns = {"seconds": seconds, **{name: table.column(name) for name in (*keys, *ATTEMPTS)}}
    summed = (
        pa.table(columns).group_by(["seconds", *keys]).aggregate([(name, "sum") for name in ATTEMPTS])
    )
    names = [name.removesuffix("_sum") for name in summed.column_names]
    rows = summed.rename_columns(names).to_pylist()
    return [{**row, "begins": datetime.fromtimestamp(row["seconds"], UTC)} for row in rows]


def _most(replies: pa.Table, keys: Sequence[str], limit: int | None = None) -> Rows:
    """Sums by ``keys``, the most first."""
    summed = replies.group_by(list(keys)).aggregate([("count", "sum")])
    rows: Rows = summed.rename_columns([*keys, "count"]).to_pylist()
    rows.sort(key=lambda row: (-row["count"], *(str(row[name] or "") for name in keys)))
    return rows[:limit]


def _anomalies(table: pa.Table) -> Rows:
    rows = table.to_pylist()
    return sorted(rows, key=lambda row: (-abs(row["score"]), row["hour"]))[:ROWS_MAX]


# ---- Runs a job again and again, until SIGINT.


def repeat_until_interrupted(run: Callable[[], None], every_s: float | None) -> None:
    """Call ``run`` once; with ``every_s`` at this interval, until SIGINT, and then finish the current call."""
    with _interrupted() as interrupted:
        while True:
            began_s = clock.monotonic_s()
            try:
                run()
            except KeyboardInterrupt:
                return
            if every_s is None or interrupted.wait(max(0.0, began_s + every_s - clock.monotonic_s())):
                return


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that SIGINT sets; a second SIGINT raises KeyboardInterrupt.

    Spark's own handler calls into Java in the middle of another call to it, and both fail.
    """
    interrupted = threading.Event()

    def on_signal(*_: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


# ---- report

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
