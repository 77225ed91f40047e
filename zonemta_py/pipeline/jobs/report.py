"""From the event log to what a deliverability manager reads: Parquet tables and one HTML page.

Whole, from segments or from what ``compact`` made of them; or kept up to date: then OUTPUT/lake has
every record so far, and only new segments are read.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.jobs import compact
from zonemta_py.pipeline.jobs.report_page import page
from zonemta_py.pipeline.jobs.send import read_ledger
from zonemta_py.pipeline.rules.warmup import Warmup
from zonemta_py.pipeline.spark.errors import told
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.transforms import rates
from zonemta_py.pipeline.transforms.anomalies import Sensitivity, anomalies
from zonemta_py.pipeline.transforms.replies import replies
from zonemta_py.pipeline.transforms.warmup_compliance import ALLOWANCE, warmed

NEXT = "_next"  # what is being made, beside what there is

Step = Callable[[str], None]


class NoAttempts(LocalError):
    """The events tell of no attempt to deliver."""


@dataclass(frozen=True, slots=True)
class Request:
    """Which events, told apart by the campaigns of which plans, into which folder."""

    events: str
    plans: Sequence[str]
    output: str
    warmups: Sequence[Warmup] = ()
    sensitivity: Sensitivity = Sensitivity()


def make_report(spark: SparkSession, request: Request, step: Step) -> dict[str, Any]:
    """Write tables and page; returns the sums. Raises LocalError."""
    if Path(request.output).exists():
        raise LocalError(f"{request.output}: there is something already; choose another folder")
    return _write(spark, request, request.events, Path(request.output), step)


def update_report(
    spark: SparkSession, request: Request, every_s: float | None, step: Step
) -> dict[str, Any]:
    """Bring tables and page up to date with new segments; with ``every_s`` until it is interrupted.

    Returns the last sums. Raises LocalError.
    """
    output = Path(request.output)
    stream = compact.Request(request.events, f"{request.output}/lake", every_s)
    sums: dict[str, Any] = {}

    def render() -> None:
        try:
            sums.update(_write(spark, request, stream.lake, output / NEXT, step))
        except NoAttempts:
            return
        for new in sorted((output / NEXT).iterdir()):
            old = output / new.name
            if old.is_dir():
                shutil.rmtree(old)
            new.replace(old)
        (output / NEXT).rmdir()

    compact.compact(spark, stream, step, render)
    if not sums:
        # Nothing new; or the last run ended between its records and its page.
        render()
    if not sums:
        raise NoAttempts(f"{request.events}: no delivery was attempted in these events")
    return sums


def _write(
    spark: SparkSession, request: Request, events: str, output: Path, step: Step
) -> dict[str, Any]:
    step("reading the event log")
    shutil.rmtree(output, ignore_errors=True)
    with told(events):
        rows = read_events(spark, events).transform(rates.attempts(campaigns_of(spark, request.plans)))
        rows.write.parquet(f"{output}/attempts")
        rows = spark.read.parquet(f"{output}/attempts")
        tables = {
            "rates": rows.transform(rates.rates()),
            "hours": rows.transform(rates.by_hour()),
            "days": rows.transform(rates.by_day_and_address()),
            "replies": rows.transform(replies()),
            "anomalies": rows.transform(anomalies(request.sensitivity)),
        }
        if request.warmups:
            tables["warmup"] = rows.transform(warmed(_allowances(spark, request.warmups)))
        for name, table in tables.items():
            step(f"computing {name}")
            table.coalesce(1).write.parquet(f"{output}/{name}")
    step("drawing the page")
    sums = _sums(spark, output, request)
    written = {name: spark.read.parquet(f"{output}/{name}") for name in tables}
    everything = written["rates"].where("dimension = 'all'").collect()[0]
    (output / "report.html").write_text(page(request.events, everything, written), encoding="utf-8")
    return sums


def _sums(spark: SparkSession, output: Path, request: Request) -> dict[str, Any]:
    row = spark.read.parquet(f"{output}/rates").where("dimension = 'all'").first()
    if row is None:
        raise NoAttempts(f"{request.events}: no delivery was attempted in these events")
    return {name: value for name, value in row.asDict().items() if name not in ("dimension", "value")}


def _allowances(spark: SparkSession, warmups: Sequence[Warmup]) -> DataFrame:
    rows = [
        (day, each.address, each.provider, allowed) for each in warmups for day, allowed in each.days()
    ]
    return spark.createDataFrame(rows, ALLOWANCE)


def campaigns_of(spark: SparkSession, plans: Sequence[str]) -> DataFrame | None:
    """``message`` and ``campaign`` from the ledgers of ``plans``, None without any."""
    found = None
    for plan in plans:
        ledger = read_ledger(spark, plan)
        if ledger is None:
            raise LocalError(f"{plan}: nothing was sent yet")
        here = ledger.select(F.explode("messages").alias("message"), "campaign").distinct()
        found = here if found is None else found.union(here)
    return found
