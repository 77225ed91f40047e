"""Reads recipient lists: CSV, JSON lines or Parquet files by their suffix, or a JDBC table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.pipeline.spark.exceptions import analysed, error_line
from zonemta_py.submit.recipients import ADDRESS_COLUMNS

CELL_MAX = 1 << 20  # characters of a CSV cell
PARTITIONS = 64  # of a list that one task had to read
POSITION = "#position"  # an added column: orders the rows as the list does


def read_list(spark: SparkSession, source: str, options: Mapping[str, str]) -> DataFrame:
    """The rows of ``source``, with POSITION: a file, a directory of files, or ``jdbc:…`` with the option ``dbtable``.

    Raises LocalError when Spark cannot read it, ConfigError for an unknown suffix.
    """
    reader = spark.read.options(**options)
    position = F.monotonically_increasing_id().alias(POSITION)
    if source.startswith("jdbc:"):
        return reader.format("jdbc").option("url", source).load().select("*", position)
    name = source.rstrip("/").lower()
    try:
        if name.endswith(".parquet"):
            return analysed(reader.parquet(source).select("*", position))
        if name.endswith((".jsonl", ".json", ".ndjson", ".jsonl.gz", ".jsonl.zst")):
            return analysed(reader.json(source, primitivesAsString=True).select("*", position))
        if name.endswith((".csv", ".csv.gz", ".csv.zst", ".txt")):
            quoted = _has_quotes(spark, source)
            rows = reader.csv(
                source, header=True, multiLine=quoted, escape='"', maxCharsPerColumn=CELL_MAX,
                ignoreLeadingWhiteSpace=True, ignoreTrailingWhiteSpace=True,
            )  # fmt: skip
            numbered = analysed(rows.select("*", position))
            # One task reads such a file; the work after it is spread over all tasks.
            return numbered.repartition(PARTITIONS) if quoted else numbered
    except AnalysisException as exc:
        raise LocalError(f"{source}: {error_line(str(exc))}") from exc
    raise ConfigError(
        f"{source}: found '{Path(name).suffix or name}', expected .csv, .jsonl, .parquet or jdbc:"
    )


def _has_quotes(spark: SparkSession, source: str) -> bool:
    """Whether a cell may contain a line end: only then must one task read a whole file."""
    if Path(source).is_file() and source.lower().endswith((".csv", ".txt")):
        with Path(source).open("rb") as file:  # Spark takes two seconds longer
            return any(b'"' in block for block in iter(lambda: file.read(1 << 20), b""))
    return not spark.read.text(source).where(F.contains("value", F.lit('"'))).isEmpty()


def address_column(columns: Sequence[str], wanted: str | None, source: str) -> str:
    """The name of the address column. Raises LocalError, which names the existing columns."""
    if not columns:
        raise LocalError(f"{source}: the list is empty")
    found = wanted if wanted in columns else None
    if wanted is None:
        found = next((name for name in ADDRESS_COLUMNS if name in columns), None)
    if found is None:
        names = wanted or " or ".join(ADDRESS_COLUMNS)
        raise LocalError(f"{source}: no column {names}; columns: {', '.join(columns)}")
    return found
