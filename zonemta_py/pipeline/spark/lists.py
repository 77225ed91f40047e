"""Lists as Spark reads them: CSV, JSON lines or Parquet by their name, or a table behind JDBC."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.pipeline.spark.errors import analysed, line_of
from zonemta_py.submit.recipients import ADDRESS_COLUMNS

CELL_MAX = 1 << 20  # characters of a CSV cell
SHARES = 64  # of a list that one task reads
POSITION = "#position"  # a column beside those of the list: which row stands before which


def read_list(spark: SparkSession, place: str, options: Mapping[str, str]) -> DataFrame:
    """The rows of ``place``, with POSITION: a file, a folder of files, or ``jdbc:…`` with the option ``dbtable``.

    Raises LocalError when it is no list at all.
    """
    reader = spark.read.options(**options)
    position = F.monotonically_increasing_id().alias(POSITION)
    if place.startswith("jdbc:"):
        return reader.format("jdbc").option("url", place).load().select("*", position)
    name = place.rstrip("/").lower()
    try:
        if name.endswith(".parquet"):
            return analysed(reader.parquet(place).select("*", position))
        if name.endswith((".jsonl", ".json", ".ndjson", ".jsonl.gz", ".jsonl.zst")):
            return analysed(reader.json(place, primitivesAsString=True).select("*", position))
        if name.endswith((".csv", ".csv.gz", ".csv.zst", ".txt")):
            quoted = _has_quotes(spark, place)
            rows = reader.csv(
                place, header=True, multiLine=quoted, escape='"', maxCharsPerColumn=CELL_MAX,
                ignoreLeadingWhiteSpace=True, ignoreTrailingWhiteSpace=True,
            )  # fmt: skip
            numbered = analysed(rows.select("*", position))
            # One task reads such a file, and the others get their share of the work after it.
            return numbered.repartition(SHARES) if quoted else numbered
    except AnalysisException as exc:
        raise LocalError(f"{place}: {line_of(str(exc))}") from exc
    raise ConfigError(
        f"{place}: found '{Path(name).suffix or name}', expected .csv, .jsonl, .parquet or jdbc:"
    )


def _has_quotes(spark: SparkSession, place: str) -> bool:
    """Whether a cell may hold a line end: only then must one task read a whole file."""
    if Path(place).is_file() and place.lower().endswith((".csv", ".txt")):
        with Path(place).open("rb") as file:  # Spark takes two seconds longer for the same
            return any(b'"' in block for block in iter(lambda: file.read(1 << 20), b""))
    return not spark.read.text(place).where(F.contains("value", F.lit('"'))).isEmpty()


def address_column(columns: Sequence[str], wanted: str | None, place: str) -> str:
    """The column with the address. Raises LocalError naming the columns there are."""
    if not columns:
        raise LocalError(f"{place}: the list is empty")
    found = wanted if wanted in columns else None
    if wanted is None:
        found = next((name for name in ADDRESS_COLUMNS if name in columns), None)
    if found is None:
        names = wanted or " or ".join(ADDRESS_COLUMNS)
        raise LocalError(f"{place}: no column {names}; columns: {', '.join(columns)}")
    return found
