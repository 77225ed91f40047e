"""Reads recipient lists: CSV, JSON lines, Parquet or ORC files by their suffix, or a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.pipeline.rules.quotes import UnclosedQuote, cell_spans_lines, form_of_options
from zonemta_py.pipeline.spark.cells import files_span_lines
from zonemta_py.pipeline.spark.exceptions import analysed, error_line, spark_errors
from zonemta_py.pipeline.spark.listing import is_here, local_size_bytes
from zonemta_py.pipeline.spark.storage import as_read, is_url, names_in
from zonemta_py.pipeline.spark.zstd_files import check_zstd_files
from zonemta_py.submit.recipients import ADDRESS_COLUMNS, address_column_in

CELL_MAX = 1 << 20  # characters of a CSV cell
PARTITIONS_MAX, PARTITION_BYTES = (
    64,
    256 << 10,
)  # of a list that one task had to read, which may be compressed
JSON = ("jsonl", "json", "ndjson")
KINDS = frozenset((*JSON, "parquet", "orc", "csv", "tsv", "txt"))
COMPRESSIONS = ("gz", "bz2", "zst")
JDBC = "jdbc:"
TABLE = "table:"  # before the name of a table of a catalog of the session
OF_PLAN = frozenset(("envelopes", "manifest"))  # directories that only a plan has
POSITION = "#position"  # an added column: orders the rows as the list does


def read_list(spark: SparkSession, source: str, options: Mapping[str, str]) -> DataFrame:
    """The rows of ``source``, with POSITION: a file or a directory of files of one kind, ``table:NAME``, or ``jdbc:…``.

    Raises LocalError when Spark cannot open it or a quote is not closed, ConfigError for an unknown suffix. Rows are read
    later: what is wrong with them is an error of the job that reads them (``spark_errors``).
    """
    reader = spark.read.options(**options)
    try:
        if source.startswith(JDBC):
            return _numbered(source, _read_database(spark, source, options))
        if source.startswith(TABLE):
            return _numbered(source, reader.table(source.removeprefix(TABLE)))
        kind = _kind(spark, source)
        if kind == "parquet":
            return _numbered(source, reader.parquet(as_read(source)))
        if kind == "orc":
            return _numbered(source, reader.orc(as_read(source)))
        check_zstd_files(spark, source)
        if kind in JSON:
            return _numbered(source, reader.json(as_read(source), primitivesAsString=True))
        if kind == "tsv":
            options = {"sep": "\t", **options}
        spans = spans_lines(spark, source, options)
        rows = spark.read.options(**{"escape": '"', **options}).csv(
            as_read(source), header=True, multiLine=spans, maxCharsPerColumn=CELL_MAX, enforceSchema=False,
            ignoreLeadingWhiteSpace=True, ignoreTrailingWhiteSpace=True,
        )  # fmt: skip
        numbered = _numbered(source, rows)
        return _spread(spark, source, numbered) if spans else numbered
    except AnalysisException as exc:
        raise LocalError(f"{source}: {error_line(str(exc))}") from exc


def _numbered(source: str, rows: DataFrame) -> DataFrame:
    """``rows`` with POSITION. Raises LocalError for a list that has such a column, AnalysisException."""
    if POSITION in map(str.lower, rows.columns):
        raise LocalError(f"{source}: found a column '{POSITION}', which this job adds; rename it")
    return analysed(rows.select("*", F.monotonically_increasing_id().alias(POSITION)))


def _spread(spark: SparkSession, source: str, rows: DataFrame) -> DataFrame:
    """Rows of files that one task each has to read: the work after it is for more tasks, unless it is little."""
    size_bytes = local_size_bytes(spark, source)
    parts = PARTITIONS_MAX if size_bytes is None else min(PARTITIONS_MAX, size_bytes // PARTITION_BYTES)
    return rows.repartition(parts) if parts > 1 else rows


def _read_database(spark: SparkSession, url: str, options: Mapping[str, str]) -> DataFrame:
    if not {"dbtable", "query"}.intersection(map(str.lower, options)):
        raise ConfigError(
            f"{url}: name its table with dbtable=NAME or query=SELECT… "
            "(LIST: --option; a list beside it: --list-option; a suppression list: --suppress-option)"
        )
    with spark_errors(url):
        return spark.read.options(**options).format("jdbc").option("url", url).load()


def _kind(spark: SparkSession, source: str) -> str:
    """The suffix of a list without that of its compression, of a directory that of its files. Raises ConfigError."""
    kinds = kinds_of(spark, source)
    names = names_in(spark, source) if is_here(spark) or is_url(source) else None
    if names is not None and kinds >= OF_PLAN:
        raise ConfigError(f"{source}: found a plan, expected a list")
    found = only_kind(source, kinds)
    if found not in KINDS:
        if names == set():
            raise ConfigError(f"{source}: the directory is empty")
        raise ConfigError(
            f"{source}: found '{found}', expected .{', .'.join(sorted(KINDS))}, table:NAME or jdbc:"
        )
    return found


def kinds_of(spark: SparkSession, source: str) -> set[str]:
    """The suffixes of the files of a directory that has none of KINDS itself; else its own."""
    own = suffix_of(source.rstrip("/"))
    if own in KINDS:
        return {own}
    return {suffix_of(name) for name in _files_in(spark, source)} or {own}


def only_kind(source: str, kinds: set[str]) -> str:
    """The one of ``kinds``. Raises ConfigError for several."""
    if len(kinds) > 1:
        raise ConfigError(f"{source}: contains files of several kinds: {', '.join(sorted(kinds))}")
    (found,) = kinds
    return found


def _files_in(spark: SparkSession, directory: str) -> list[str]:
    """The files of a directory; of one that is partitioned (``date=2026-11-01/``) those of one partition."""
    names = [name for name in names_in(spark, directory) or () if not name.startswith(("_", "."))]
    if names and all("=" in name for name in names):
        return _files_in(spark, f"{directory.rstrip('/')}/{min(names)}") or names
    return names


def suffix_of(name: str) -> str:
    """The suffix of a name in lower case, without that of a compression."""
    parts = name.rpartition("/")[2].lower().split(".")
    if len(parts) > 2 and parts[-1] in COMPRESSIONS:
        del parts[-1]
    return parts[-1]


def is_compressed(name: str) -> bool:
    """Whether the last suffix of a name is that of a compression."""
    return name.lower().rpartition(".")[2] in COMPRESSIONS


def spans_lines(spark: SparkSession, source: str, options: Mapping[str, str]) -> bool:
    """Whether a cell may contain a line end: only then must one task read a whole file.

    ``options``: of Spark's reader of CSV. Raises LocalError, for a quote that is not closed, too.
    """
    form, path = form_of_options(options, CELL_MAX), Path(source)
    for what, value in (("quote", form.quote), ("escape", form.escape)):
        if len(value) > 1:
            raise LocalError(f"{source}: {what}={value}: expected one character")
    if form.line_end:
        return form.has_quotes
    if not path.is_file() or is_compressed(source):
        with spark_errors(source):
            return files_span_lines(spark, source, options, form)
    if form.quote.isascii() and form.has_lines_of_bytes:
        with path.open("rb") as file:  # Spark takes two seconds longer
            quote = form.quote.encode()
            if not any(quote in block for block in iter(lambda: file.read(1 << 20), b"")):
                return False
    try:
        with path.open(encoding=form.encoding, errors="replace", newline="") as text:
            return cell_spans_lines(text, form)
    except (UnclosedQuote, LookupError) as exc:
        raise LocalError(f"{source}: {exc}") from exc


def address_column(columns: Sequence[str], wanted: str | None, source: str) -> str:
    """The name of the address column. Raises LocalError, which names the existing columns."""
    if not columns:
        raise LocalError(f"{source}: the list is empty")
    found = wanted if wanted in columns else None
    if wanted is None:
        found = address_column_in(columns)
    if found is None:
        for name in (wanted,) if wanted else ADDRESS_COLUMNS:
            refuse_repeated(columns, name, source)
        names = wanted or " or ".join(ADDRESS_COLUMNS)
        raise LocalError(f"{source}: no column {names}; columns: {', '.join(columns)}")
    return found


def refuse_repeated(columns: Sequence[str], name: str, source: str) -> None:
    """Raise LocalError if the header of a CSV file has this name twice: Spark adds the number of the column to both."""
    if sum(column == f"{name}{number}" for number, column in enumerate(columns)) > 1:
        raise LocalError(f"{source}: found the column {name} twice; rename one of the two")
