"""Writes a delivery report from the event log: Parquet tables and one HTML page.

A report is made from segments or from the output of ``compact``. A report that is kept up to date stores
the events so far in OUTPUT/lake and reads only new segments.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.jobs import compact
from zonemta_py.pipeline.jobs.report_page import PageHeader, page
from zonemta_py.pipeline.jobs.send import read_ledger
from zonemta_py.pipeline.rules.warmup import WarmupSchedule
from zonemta_py.pipeline.spark.damage import QUARANTINE, Damage, write_quarantine
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.storage import is_url, prepare_output, remove, write_text
from zonemta_py.pipeline.transforms import rates
from zonemta_py.pipeline.transforms.anomalies import AnomalyThresholds, anomalies
from zonemta_py.pipeline.transforms.replies import failure_replies

PAGE = "report.html"  # written last
PARTS = ("attempts", "rates", "hours", "days", "replies", "anomalies", "warmup", QUARANTINE, PAGE)
NEXT = "_next"  # the tables and page that will replace those of OUTPUT


class NoAttempts(LocalError):
    """The events contain no attempt to deliver."""


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """``plans``: those whose campaigns are distinguished. ``output``: a directory."""

    events: str
    plans: Sequence[str]
    output: str
    warmups: Sequence[WarmupSchedule] = ()
    thresholds: AnomalyThresholds = AnomalyThresholds()
    overwrite: bool = False
    damage: Sequence[Damage] = ()


def make_report(spark: SparkSession, request: ReportRequest, progress: Progress) -> dict[str, Any]:
    """Write tables and page; returns the row of ``rates`` for all attempts. Raises LocalError."""
    prepare_output(spark, request.output, PARTS, PAGE, overwrite=request.overwrite)
    return _write(spark, request, request.events, request.output, progress)


def update_report(
    spark: SparkSession, request: ReportRequest, every_s: float | None, progress: Progress
) -> dict[str, Any]:
    """Bring tables and page up to date with new segments; with ``every_s`` at this interval until SIGINT.

    Returns the same as ``make_report``. Raises LocalError.
    """
    if is_url(request.output):
        raise LocalError(f"{request.output}: a report that is kept up to date is in a local directory")
    output = Path(request.output)
    stream = compact.CompactRequest(request.events, f"{request.output}/lake", every_s, request.damage)
    sums: dict[str, Any] = {}

    def render() -> None:
        remove(spark, str(output / NEXT))
        try:
            sums.update(_write(spark, request, stream.lake, str(output / NEXT), progress))
        except NoAttempts:
            return
        for new in sorted((output / NEXT).iterdir()):
            old = output / new.name
            if old.is_dir():
                shutil.rmtree(old)
            new.replace(old)
        (output / NEXT).rmdir()
        if not request.damage:
            remove(spark, str(output / QUARANTINE))

    compact.compact(spark, stream, progress, render)
    if not sums:
        # There were no new events, or the last run ended after writing events and before the page.
        render()
    if not sums:
        raise NoAttempts(f"{request.events}: no delivery was attempted in these events")
    return sums


def _write(
    spark: SparkSession, request: ReportRequest, events: str, output: str, progress: Progress
) -> dict[str, Any]:
    progress("reading the event log")
    with spark_errors(events):
        rows = read_events(spark, events, request.damage).transform(
            rates.attempt_rows(campaigns_of(spark, request.plans))
        )
        rows.write.parquet(f"{output}/attempts")
        rows = spark.read.parquet(f"{output}/attempts")
        tables = {
            "rates": rows.transform(rates.rates_by_dimension()),
            "hours": rows.transform(rates.counts_by_hour()),
            "days": rows.transform(rates.counts_by_day()),
            "replies": rows.transform(failure_replies()),
            "anomalies": rows.transform(anomalies(request.thresholds)),
        }
        if request.warmups:
            tables["warmup"] = rows.transform(
                rates.warmup_compliance(_allowances(spark, request.warmups))
            )
        for name, table in tables.items():
            progress(f"computing {name}")
            table.coalesce(1).write.parquet(f"{output}/{name}")
    progress("writing the page")
    sums = _sums(spark, output, request)
    written = {name: spark.read.parquet(f"{output}/{name}") for name in tables}
    write_quarantine(spark, output, request.damage)
    about = PageHeader(request.events, None, None, list(map(str, request.damage)))
    text = page(about, written)
    write_text(spark, f"{output}/{PAGE}", text)
    return sums


def _sums(spark: SparkSession, output: str, request: ReportRequest) -> dict[str, Any]:
    row = spark.read.parquet(f"{output}/rates").where("dimension = 'all'").first()
    if row is None:
        raise NoAttempts(f"{request.events}: no delivery was attempted in these events")
    return {name: value for name, value in row.asDict().items() if name not in ("dimension", "value")}


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
