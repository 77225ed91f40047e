"""Reads reports out of mail, and matches each to a recipient of a campaign.

Mail is an mbox, a tree of maildirs, or a table of raw messages: Parquet or JSON lines (``.jsonl``, also compressed) with a column
``octets``: binary, or base64 text. A table is by far the fastest of the three, because file systems are slow with one file for each message.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.events.replies import class_of
from zonemta_py.pipeline.plan.list import kinds_of, suffix_of
from zonemta_py.pipeline.plan.request import read_manifest
from zonemta_py.pipeline.send.ledger import read_ledger
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.files import (
    SUCCESS,
    TABLE,
    as_read,
    check_zstd_files,
    is_url,
    names_in,
    prepare_output,
    remove,
)
from zonemta_py.pipeline.spark.output import RowsOutput, locks_output
from zonemta_py.pipeline.spark.session import analysed, error_line, spark_errors
from zonemta_py.pipeline.spark.tables import Progress, Transform, record_batch
from zonemta_py.smtp.address import AddressError, normalise
from zonemta_py.smtp.reports.reader import read_notices

NO_REPORT, UNREADABLE = "no report", "unreadable"
BY_KEY, BY_ONLY, BY_VERP, BY_ADDRESS, UNMATCHED = (
    "envelope id", "envelope id, its only recipient", "verp", "address", "",
)  # fmt: skip
METHODS = (BY_KEY, BY_ONLY, BY_VERP, BY_ADDRESS)  # the most reliable first
TABLES = ("parquet", "jsonl")  # suffixes
FILES_PER_TASK = 5000
REPORTS = "reports"
NOTICES = "_read"  # deleted at the end, where OUTPUT is a local directory
_TEXTS = ("source", "kind", "recipient", "by_verp", "key", "status", "diagnostic", "reporter", "reason")
NOTICE = StructType(
    [StructField(name, StringType()) for name in _TEXTS]
    + [StructField("code", IntegerType()), StructField("time_ms", LongType())]
)
MAIL = StructType([StructField("source", StringType()), StructField("octets", BinaryType())])


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


def extract_notices(senders: Sequence[str]) -> Transform:
    """NOTICE rows, with ``notice_id``, from messages (``source``, ``octets``): one for each recipient in a report.

    A message that is not a report, or cannot be read, is one row with a kind of its own. A second
    evaluation may assign other ids: store the rows before they are matched.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            messages = zip(
                batch.column("source").to_pylist(), batch.column("octets").to_pylist(), strict=True
            )
            yield record_batch(
                [row for source, message in messages for row in _rows(source, message, senders)], NOTICE
            )

    def transform(mail: DataFrame) -> DataFrame:
        found = mail.mapInArrow(read, NOTICE)
        # A report without a date gets the current time, or rules with a date would never select it.
        dated = F.coalesce(F.nullif(F.col("time_ms"), F.lit(0)), F.unix_millis(F.current_timestamp()))
        return found.select(
            *_TEXTS, "code", dated.alias("time_ms"), F.monotonically_increasing_id().alias("notice_id")
        )

    return transform


def _rows(source: str, message: bytes | None, senders: Sequence[str]) -> Iterator[tuple[object, ...]]:
    try:
        found = read_notices(message, senders) if message is not None else None
    except Exception:  # strangers write these: one that the parser cannot take must not stop the others
        found = None
    if found is None:
        yield source, UNREADABLE, "", "", "", "", "", "", "", 0, 0
        return
    if not found:
        yield source, NO_REPORT, "", "", "", "", "", "", "", 0, 0
    for each in found:
        reason = (
            class_of(None, "", each.code or 500, each.status, each.diagnostic) if each.status else ""
        )
        yield (
            source, each.kind, _normal(each.recipient), _normal(each.by_verp), each.key, each.status,
            each.diagnostic, each.reporter, reason, each.code, each.time_ms,
        )  # fmt: skip


def _normal(address: str) -> str:
    try:
        return normalise(address)
    except AddressError:
        return address


def match_reports(ledger: DataFrame) -> Transform:
    """The rows of ``extract_notices`` with ``address``, ``campaign`` and ``key`` of the ledger's recipient.

    ``matched`` is the method: by envelope id and recipient; by envelope id alone, when the message had one
    recipient; by the address that the report was sent to; by the recipient's address in its latest campaign.
    Addresses match in any case, as many systems report them; one in the same spelling is preferred.
    """

    def transform(found: DataFrame) -> DataFrame:
        sent = ledger.groupBy("key", "address", "campaign").agg(F.max("time_ms").alias("sent_ms"))
        known = sent.select("*", F.count("*").over(Window.partitionBy("key")).alias("recipients"))
        last = sent.groupBy("address").agg(
            F.max_by(F.struct("key", "campaign", "sent_ms"), F.struct("sent_ms", "key")).alias("last")
        )
        by_key = found.join(known, "key").select(
            "notice_id", "address", "campaign", "key", _is_spelled("recipient"), "sent_ms",
            F.when(_is_same("recipient"), BY_KEY).when(F.col("recipients") == 1, BY_ONLY).alias("matched"),
        ).where("matched IS NOT NULL")  # fmt: skip
        candidates = by_key
        for column, method in (("by_verp", BY_VERP), ("recipient", BY_ADDRESS)):
            candidates = candidates.unionByName(
                found.where(F.col(column) != "")
                .drop("key")
                .join(last, _is_same(column))
                .select(
                    "notice_id", "address", "last.campaign", "last.key", _is_spelled(column), "last.sent_ms",
                    F.lit(method).alias("matched"),
                )
            )  # fmt: skip
        order = F.array_position(F.array(*map(F.lit, METHODS)), F.col("matched"))
        best = candidates.groupBy("notice_id").agg(
            F.min_by(
                F.struct("address", "campaign", "key", "matched"),
                F.struct(order, ~F.col("is_spelled"), -F.col("sent_ms"), "address"),
            ).alias("best")
        )
        return found.drop("key").join(best, "notice_id", "left").select(
            "source", "kind",
            *(F.coalesce(f"best.{name}", F.lit(UNMATCHED)).alias(name) for name in ("address", "campaign", "key", "matched")),
            "recipient", "status", "code", "reason", "diagnostic", "reporter", "time_ms",
        )  # fmt: skip

    return transform


def _is_same(column: str) -> Column:
    return F.lower(column) == F.lower("address")


def _is_spelled(column: str) -> Column:
    return (F.col(column) == F.col("address")).alias("is_spelled")


# ---- Mail.


def read_mail(spark: SparkSession, path: str) -> DataFrame:
    """``source`` and ``octets`` of every message in ``path``; null octets for a file that cannot be read.

    ``table:NAME`` is one of a catalog of the session. A directory with tables in it is a table, any other directory a tree of maildirs, which must be local, a file an mbox.
    Raises LocalError when there is no mail.
    """
    try:
        if path.startswith(TABLE):
            return _octets(analysed(spark.table(path.removeprefix(TABLE))), path)
        kind = _kind_of_table(spark, path)
        if kind:
            return analysed(_table(spark, path, kind))
        if is_url(path):
            if _is_directory(spark, path):
                raise LocalError(
                    f"{path}: no mail here: neither an mbox nor a table; a maildir is read from a local directory only"
                )
        elif Path(path).is_dir():
            return analysed(_maildirs(spark, Path(path)))
        return analysed(_mbox(spark, path))
    except AnalysisException as exc:
        raise LocalError(f"{path}: no mail here: {error_line(str(exc))}") from exc


def _kind_of_table(spark: SparkSession, path: str) -> str | None:
    """The suffix of a table, or of those in a directory, without that of a compression; None if this is no table."""
    if suffix_of(path) in TABLES:
        return suffix_of(path)
    if is_url(path):
        found = kinds_of(spark, path)
    else:
        found = {suffix_of(each.name) for each in Path(path).rglob("*")}
    return next((kind for kind in TABLES if kind in found), None)


def _is_directory(spark: SparkSession, url: str) -> bool:
    """True if this is a directory; False also when nothing can be seen there."""
    names = names_in(spark, url)
    return names is not None and names != {url.rpartition("/")[2]}


def _table(spark: SparkSession, path: str, kind: str) -> DataFrame:
    if kind == "parquet":
        return _octets(spark.read.parquet(as_read(path)), path)
    check_zstd_files(spark, path)
    return _octets(spark.read.schema("octets string").json(as_read(path)), path)


def _octets(rows: DataFrame, path: str) -> DataFrame:
    if dict(rows.dtypes).get("octets") not in ("binary", "string"):
        raise LocalError(f"{path}: no column octets; columns: {', '.join(rows.columns)}")
    octets = F.col("octets")
    if dict(rows.dtypes)["octets"] == "string":
        octets = F.try_to_binary("octets", F.lit("base64"))
    return rows.select(F.lit(path).alias("source"), octets.alias("octets"))


def _mbox(spark: SparkSession, path: str) -> DataFrame:
    """Each message without its From_ line; one level of mbox quoting (``>From ``) is removed."""
    text = spark.read.option("lineSep", "\nFrom ").text(as_read(path))
    return text.where(F.trim("value") != "").select(
        F.input_file_name().alias("source"), F.col("value").cast("binary").alias("octets")
    ).mapInArrow(_unquoted, MAIL)  # fmt: skip


def _unquoted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = []
        for source, message in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            _, _, content = message.partition(b"\n")
            rows.append(
                (source, content.replace(b"\n>From ", b"\nFrom ").replace(b"\n>>From ", b"\n>From "))
            )
        yield record_batch(rows, MAIL)


def _maildirs(spark: SparkSession, tree: Path) -> DataFrame:
    """Every file in a ``cur`` or ``new`` below ``tree``; directories may begin with a dot."""
    paths = [
        (str(Path(directory) / name),)
        for directory, _, names in os.walk(tree)
        if Path(directory).name in ("cur", "new")
        for name in names
    ]
    if not paths:
        raise LocalError(f"{tree}: no mail here: neither a table nor a maildir (cur, new)")
    tasks = 1 + len(paths) // FILES_PER_TASK
    return spark.createDataFrame(paths, "source string").repartition(tasks).mapInArrow(_read, MAIL)


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield record_batch([(path, _content(path)) for path in batch.column("source").to_pylist()], MAIL)


def _content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:  # moved meanwhile, or without permission: counted as unreadable
        return None
