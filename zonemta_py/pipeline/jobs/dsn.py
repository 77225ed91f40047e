"""From the mail that came back to a table: which recipient of which campaign each report is about."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.jobs.plan import read_manifest
from zonemta_py.pipeline.jobs.send import read_ledger
from zonemta_py.pipeline.spark import schema
from zonemta_py.pipeline.spark.errors import analysed, told
from zonemta_py.pipeline.spark.mail import read_mail
from zonemta_py.pipeline.transforms.match_reports import NO_REPORT, UNREADABLE, matched, notices

REPORTS = "reports"
WORK = "_read"  # deleted when the reports are there, where that is a plain folder

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """Which mail, matched to which plans, into which folder. ``senders`` besides those of the plans."""

    places: Sequence[str]
    plans: Sequence[str]
    output: str
    senders: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Sums: messages read, and recipients that reports name by kind and by how they were matched."""

    messages: int
    no_report: int
    unreadable: int
    kinds: dict[str, int]
    matched: dict[str, int]


def read_reports(spark: SparkSession, request: Request, step: Step) -> Found:
    """Write OUTPUT and return its sums. Raises LocalError."""
    if Path(request.output).exists():
        raise LocalError(f"{request.output}: there is something already; choose another folder")
    senders = [*request.senders, *(read_manifest(spark, plan).sender for plan in request.plans)]
    step("reading mail")
    mail = read_mail(spark, request.places[0])
    for place in request.places[1:]:
        mail = mail.unionByName(read_mail(spark, place))
    ledger = spark.createDataFrame([], schema.LEDGER_RUNS)
    for plan in request.plans:
        of_plan = read_ledger(spark, plan)
        ledger = ledger if of_plan is None else ledger.unionByName(of_plan)
    seen = Observation("mail")
    work, reports = f"{request.output}/{WORK}", f"{request.output}/{REPORTS}"
    with told(", ".join(request.places)):
        (
            mail.observe(seen, F.count(F.lit(1)).alias("messages"))
            .transform(notices(senders))
            .write.parquet(work)
        )
        step("matching")
        spark.read.parquet(work).transform(matched(ledger)).write.parquet(reports)
        step("counting")
        found = _count(spark.read.parquet(reports), int(seen.get["messages"]))
    if "://" not in request.output:
        shutil.rmtree(work)
    return found


def read_matched(spark: SparkSession, place: str) -> DataFrame:
    """What ``read_reports`` wrote. Raises LocalError when there is nothing."""
    try:
        return analysed(spark.read.parquet(f"{place}/{REPORTS}"))
    except AnalysisException as exc:
        raise LocalError(f"{place}: no reports here; make them with: zonemta pipeline dsn") from exc


def _count(rows: DataFrame, messages: int) -> Found:
    counted = rows.groupBy("kind", "matched").agg(F.count("*").alias("count")).collect()
    kinds: dict[str, int] = {}
    ways: dict[str, int] = {}
    for row in counted:
        kinds[row["kind"]] = kinds.get(row["kind"], 0) + row["count"]
        if row["kind"] not in (NO_REPORT, UNREADABLE):
            way = row["matched"] or "not matched"
            ways[way] = ways.get(way, 0) + row["count"]
    no_report, unreadable = kinds.pop(NO_REPORT, 0), kinds.pop(UNREADABLE, 0)
    return Found(messages, no_report, unreadable, kinds, ways)
