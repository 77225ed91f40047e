"""Lists as Spark reads them: CSV, JSON lines or Parquet by their name, or a table behind JDBC."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from zonemta_py.errors import ConfigError, LocalError
from zonemta_py.pipeline.failures import line_of
from zonemta_py.submit.recipients import ADDRESS_COLUMNS

CELL_MAX = 1 << 20  # characters of a CSV cell


def read_list(spark: SparkSession, place: str, options: Mapping[str, str]) -> DataFrame:
    """The rows of ``place``: a file, a folder of files, or ``jdbc:…`` with the option ``dbtable``.

    Raises LocalError when it is no list at all.
    """
    reader = spark.read.options(**options)
    if place.startswith("jdbc:"):
        return reader.format("jdbc").option("url", place).load()
    name = place.rstrip("/").lower()
    try:
        if name.endswith(".parquet"):
            return reader.parquet(place)
        if name.endswith((".jsonl", ".json", ".ndjson", ".jsonl.gz", ".jsonl.zst")):
            return reader.json(place, primitivesAsString=True)
        if name.endswith((".csv", ".csv.gz", ".csv.zst", ".txt")):
            return reader.csv(
                place, header=True, multiLine=True, escape='"', maxCharsPerColumn=CELL_MAX,
                ignoreLeadingWhiteSpace=True, ignoreTrailingWhiteSpace=True,
            )  # fmt: skip
    except AnalysisException as exc:
        raise LocalError(f"{place}: {line_of(str(exc))}") from exc
    raise ConfigError(
        f"{place}: found '{Path(name).suffix or name}', expected .csv, .jsonl, .parquet or jdbc:"
    )


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
