"""Messages as they were received, as Spark reads them: mbox files, trees of maildirs, tables of raw messages.

A table is Parquet or JSON lines (``.jsonl``, ``.jsonl.zst``) with a column ``octets``: binary, or base64
text. It is by far the fastest of the three: a file for each message is what file systems are worst at.
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
from zonemta_py.pipeline.spark.arrow import batch_of
from zonemta_py.pipeline.spark.errors import analysed, line_of

TABLES = (".parquet", ".jsonl", ".jsonl.zst", ".jsonl.gz")
FILES_PER_TASK = 5000

MAIL = StructType([StructField("source", StringType()), StructField("octets", BinaryType())])


def read_mail(spark: SparkSession, place: str) -> DataFrame:
    """``source`` and ``octets`` of every message in ``place``; null octets for a file that cannot be read.

    A folder with tables in it is a table, any other folder a tree of maildirs, a file an mbox.
    Raises LocalError when there is nothing.
    """
    try:
        if place.endswith(TABLES) or ("://" in place and not place.endswith(".mbox")):
            return analysed(_table(spark, place))
        path = Path(place)
        if path.is_dir():
            has_tables = any(each.name.endswith(TABLES) for each in path.rglob("*"))
            return analysed(_table(spark, place) if has_tables else _maildirs(spark, path))
        return analysed(_mbox(spark, place))
    except AnalysisException as exc:
        raise LocalError(f"{place}: no mail here: {line_of(str(exc))}") from exc


def _table(spark: SparkSession, place: str) -> DataFrame:
    parquet = place.endswith(".parquet") or ("://" not in place and any(Path(place).rglob("*.parquet")))
    if parquet:
        rows = spark.read.parquet(place)
        if dict(rows.dtypes).get("octets") not in ("binary", "string"):
            raise LocalError(f"{place}: no column octets; columns: {', '.join(rows.columns)}")
    else:
        rows = spark.read.schema("octets string").json(place)
    octets = F.col("octets")
    if dict(rows.dtypes)["octets"] == "string":
        octets = F.try_to_binary("octets", F.lit("base64"))
    return rows.select(F.lit(place).alias("source"), octets.alias("octets"))


def _mbox(spark: SparkSession, place: str) -> DataFrame:
    """Each message without its From_ line; what an mbox quotes (``>From ``) is unquoted by one."""
    text = spark.read.option("lineSep", "\nFrom ").text(place)
    return text.where(F.trim("value") != "").select(
        F.input_file_name().alias("source"), F.col("value").cast("binary").alias("octets")
    ).mapInArrow(_unquoted, MAIL)  # fmt: skip


def _unquoted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = []
        for source, octets in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            _, _, message = octets.partition(b"\n")
            rows.append(
                (source, message.replace(b"\n>From ", b"\nFrom ").replace(b"\n>>From ", b"\n>From "))
            )
        yield batch_of(rows, MAIL)


def _maildirs(spark: SparkSession, tree: Path) -> DataFrame:
    """Every file in a ``cur`` or ``new`` below ``tree``; its folders may begin with a dot."""
    paths = [
        (str(Path(folder) / name),)
        for folder, _, names in os.walk(tree)
        if Path(folder).name in ("cur", "new")
        for name in names
    ]
    if not paths:
        raise LocalError(f"{tree}: no mail here: neither a table nor a maildir (cur, new)")
    tasks = 1 + len(paths) // FILES_PER_TASK
    return spark.createDataFrame(paths, "source string").repartition(tasks).mapInArrow(_loaded, MAIL)


def _loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch_of([(path, _octets_of(path)) for path in batch.column("source").to_pylist()], MAIL)


def _octets_of(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:  # it was moved or is not ours to read: counted, and nothing else
        return None
