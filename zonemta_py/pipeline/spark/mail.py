"""Reads received messages: mbox files, trees of maildirs, tables of raw messages.

A table is Parquet or JSON lines (``.jsonl``, also compressed) with a column ``octets``: binary, or base64
text. It is by far the fastest of the three, because file systems are slow with one file for each message.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.exceptions import analysed, error_line
from zonemta_py.pipeline.spark.lists import TABLE, kinds_of, suffix_of
from zonemta_py.pipeline.spark.storage import as_read, is_url, names_in
from zonemta_py.pipeline.spark.tables import record_batch
from zonemta_py.pipeline.spark.zstd_files import check_zstd_files

TABLES = ("parquet", "jsonl")  # suffixes
FILES_PER_TASK = 5000

MAIL = StructType([StructField("source", StringType()), StructField("octets", BinaryType())])


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
    """Whether this is a directory; False also when nothing can be seen there."""
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
