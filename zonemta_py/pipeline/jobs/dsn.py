"""Reads reports out of mail and matches each to a recipient of a campaign."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.exceptions import analysed, spark_errors
from zonemta_py.pipeline.spark.lists import TABLE
from zonemta_py.pipeline.spark.mail import read_mail
from zonemta_py.pipeline.spark.output_lock import locks_output
from zonemta_py.pipeline.spark.plan_ledger import read_ledger
from zonemta_py.pipeline.spark.plan_manifest import read_manifest
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.rows_output import RowsOutput
from zonemta_py.pipeline.spark.storage import SUCCESS, is_url, names_in, prepare_output, remove
from zonemta_py.pipeline.transforms.match_reports import (
    NO_REPORT,
    UNREADABLE,
    extract_notices,
    match_reports,
)

REPORTS = "reports"
NOTICES = "_read"  # deleted at the end, where OUTPUT is a local directory


@dataclass(frozen=True, slots=True)
class DsnRequest:
    """``mail``: paths. ``output``: a directory, or ``table:NAME``. ``senders``: envelope senders in addition to those of ``plans``."""

    mail: Sequence[str]
    plans: Sequence[str]
    output: str
    senders: Sequence[str] = ()
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class DsnCounts:
    """Messages read, and recipients named in reports by kind and by method of matching."""

    messages: int
    no_report: int
    unreadable: int
    kinds: dict[str, int]
    matched: dict[str, int]


@locks_output
def read_reports(spark: SparkSession, request: DsnRequest, progress: Progress) -> DsnCounts:
    """Write OUTPUT; returns the counts. Raises LocalError."""
    table = None
    if request.output.startswith(TABLE):
        table = RowsOutput(spark, request.output, overwrite=request.overwrite)
    else:
        last = f"{REPORTS}/_SUCCESS"
        prepare_output(spark, request.output, (NOTICES, REPORTS), last, overwrite=request.overwrite)
    senders = [*request.senders, *(read_manifest(spark, plan).sender for plan in request.plans)]
    progress("reading mail")
    mail = read_mail(spark, request.mail[0])
    for path in request.mail[1:]:
        mail = mail.unionByName(read_mail(spark, path))
    ledger = spark.createDataFrame([], tables.LEDGER_RUNS)
    for plan in request.plans:
        of_plan = read_ledger(spark, plan)
        ledger = ledger if of_plan is None else ledger.unionByName(of_plan)
    observation = Observation("mail")
    with spark_errors(", ".join(request.mail)):
        mail = mail.observe(observation, F.count(F.lit(1)).alias("messages"))
        found = mail.transform(extract_notices(senders))
        if table is not None:
            rows = _to_table(found, ledger, table, progress)
        else:
            rows = _to_directory(spark, found, ledger, request.output, progress)
        progress("counting")
        counts = _count(rows, int(observation.get["messages"]))
    if table is None and not is_url(request.output):
        remove(spark, f"{request.output}/{NOTICES}")
    return counts


def _to_table(found: DataFrame, ledger: DataFrame, table: RowsOutput, progress: Progress) -> DataFrame:
    """The rows as they were written. What was found is kept meanwhile: to match it twice would read all mail twice."""
    found = found.persist(StorageLevel.DISK_ONLY)
    try:
        found.count()
        progress("matching")
        return table.written(found.transform(match_reports(ledger)))
    finally:
        found.unpersist()


def _to_directory(
    spark: SparkSession, found: DataFrame, ledger: DataFrame, output: str, progress: Progress
) -> DataFrame:
    """The rows as they were written."""
    notices, reports = f"{output}/{NOTICES}", f"{output}/{REPORTS}"
    found.write.parquet(notices)
    progress("matching")
    spark.read.parquet(notices).transform(match_reports(ledger)).write.parquet(reports)
    return spark.read.parquet(reports)


def read_matched_reports(spark: SparkSession, path: str) -> DataFrame:
    """The rows that ``read_reports`` wrote to a directory or ``table:NAME``. Raises LocalError when there are none."""
    try:
        if path.startswith(TABLE):
            return analysed(spark.table(path.removeprefix(TABLE)))
        names = names_in(spark, f"{path}/{REPORTS}")
        if names is not None and SUCCESS not in names:
            raise LocalError(
                f"{path}: the run that wrote it did not end; run zonemta pipeline dsn again"
            )
        return analysed(spark.read.parquet(f"{path}/{REPORTS}"))
    except AnalysisException as exc:
        raise LocalError(f"{path}: no reports here; create them with: zonemta pipeline dsn") from exc


def _count(rows: DataFrame, messages: int) -> DsnCounts:
    counted = rows.groupBy("kind", "matched").agg(F.count("*").alias("count")).collect()
    kinds: dict[str, int] = {}
    methods: dict[str, int] = {}
    for row in counted:
        kinds[row["kind"]] = kinds.get(row["kind"], 0) + row["count"]
        if row["kind"] not in (NO_REPORT, UNREADABLE):
            method = row["matched"] or "not matched"
            methods[method] = methods.get(method, 0) + row["count"]
    no_report, unreadable = kinds.pop(NO_REPORT, 0), kinds.pop(UNREADABLE, 0)
    return DsnCounts(messages, no_report, unreadable, kinds, methods)
