"""Reads recipient lists: CSV, JSON lines, Parquet or ORC files by their suffix, or a table.

The addresses of the most common kind of list, a local CSV without quotes (``plain_list``), are read by Arrow in the tasks. Spark's
reader gives the same rows at several times the cost: it parses each cell in Java, and copies it to Python.
"""

import codecs
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.pipeline.plan.csv import (
    UnclosedQuote,
    cell_spans_lines,
    files_span_lines,
    form_of_options,
)
from zonemta_py.pipeline.spark.files import (
    TABLE,
    as_read,
    check_zstd_files,
    is_here,
    is_url,
    local_size_bytes,
    names_in,
)
from zonemta_py.pipeline.spark.session import analysed, error_line, spark_errors
from zonemta_py.submit.recipients import ADDRESS_COLUMNS, BLANKS, address_column_in

CELL_MAX = 1 << 20  # characters of a CSV cell
PARTITIONS_MAX, PARTITION_BYTES = (
    64,
    256 << 10,
)  # of a list that one task had to read, which may be compressed
JSON = ("jsonl", "json", "ndjson")
KINDS = frozenset((*JSON, "parquet", "orc", "csv", "tsv", "txt"))
COMPRESSIONS = ("gz", "bz2", "zst")
JDBC = "jdbc:"
OF_PLAN = frozenset(("envelopes", "manifest"))  # directories that only a plan has
POSITION = "#position"  # an added column: orders the rows as the list does
PART_BYTES = 1 << 20  # of the file, read together
PARTS_OF_TASK = 16
READ_BYTES = 1 << 18
PARSED_BYTES = 2 << 20  # at once, by Arrow; more than a part and its last line
LINE_MAX = 1 << 18  # bytes; a file with longer lines is left to Spark, which limits cells
TRIMMED = "".join(map(chr, range(0x21)))  # what Spark's reader removes around a cell
PART_SHIFT = 33  # a position has the number of its part above that of its row, as those of Spark


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
    """True if the last suffix of a name is that of a compression."""
    return name.lower().rpartition(".")[2] in COMPRESSIONS


def spans_lines(spark: SparkSession, source: str, options: Mapping[str, str]) -> bool:
    """True if a cell may contain a line end: only then must one task read a whole file.

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


def begins_with_rows(source: str) -> bool:
    """True if a local CSV file seems to have a row: a second line that is not blank. It saves a look by Spark."""
    path = Path(source)
    if path.suffix.lower() not in (".csv", ".tsv", ".txt") or not path.is_file():
        return False
    with path.open("rb") as file:
        return all(file.readline(LINE_MAX).strip() for _ in range(2))


# ---- A local CSV without quotes.


class PlainList(NamedTuple):
    """A file whose lines are cells with ``separator`` between them, from byte ``begin``, behind its header, to ``end``.

    ``columns``: how many there are; ``column``: the 0-based place of the address.
    """

    path: str
    separator: str
    columns: int
    column: int
    begin: int
    end: int

    @property
    def parts(self) -> int:
        """In how many parts it is read; a line belongs to that in which it begins."""
        return max(1, -(-(self.end - self.begin) // PART_BYTES))

    @property
    def tasks(self) -> int:
        """How many tasks read it."""
        return -(-self.parts // PARTS_OF_TASK)

    def read(self, part: int) -> tuple[pa.Array, pa.Array]:
        """The positions of the lines of a part, and their cells with the address, trimmed."""
        begin = self.begin + part * PART_BYTES
        with Path(self.path).open("rb") as file:
            data = _lines(file, self.begin, begin, min(begin + PART_BYTES, self.end))
        cells = _trimmed(self._cells(data))
        return pa.array(np.arange(len(cells)) + (part << PART_SHIFT), pa.int64()), cells

    def _cells(self, data: bytes) -> pa.Array:
        if not data:
            return pa.array([], pa.string())
        ragged = _has_blank_line(data)

        def note(row: pacsv.InvalidRow) -> str:
            nonlocal ragged
            ragged = True
            return "skip"

        names = [str(number) for number in range(self.columns)]
        wanted = names[self.column]
        table = pacsv.read_csv(
            pa.py_buffer(data),
            pacsv.ReadOptions(use_threads=False, column_names=names, block_size=PARSED_BYTES),
            pacsv.ParseOptions(
                delimiter=self.separator, quote_char=False, ignore_empty_lines=False, invalid_row_handler=note
            ),
            pacsv.ConvertOptions(
                check_utf8=False, column_types={wanted: pa.string()}, strings_can_be_null=False, include_columns=[wanted]
            ),
        )  # fmt: skip
        if ragged:
            return pa.array(self._cells_of_lines(data), pa.string())
        cells = table.column(0).combine_chunks()
        if self.columns > 1:
            return cells
        return cells.filter(pc.not_equal(pc.utf8_trim(cells, characters=TRIMMED), ""))

    def _cells_of_lines(self, data: bytes) -> Iterator[str]:
        """As the reader of Arrow, where lines have more or fewer cells: absent ones are empty, further ones are ignored."""
        for line in data.decode().split("\n"):
            if line.strip(TRIMMED):
                cells = line.removesuffix("\r").split(self.separator)
                yield cells[self.column] if self.column < len(cells) else ""


def _lines(file: BinaryIO, first: int, begin: int, end: int) -> bytes:
    """The lines that begin in a range of bytes."""
    if begin > first:
        file.seek(begin - 1)
        file.readline()  # the rest of a line of the part before
    else:
        file.seek(begin)
    data = file.read(max(0, end - file.tell()))
    return data + file.readline() if data and not data.endswith(b"\n") else data


def _has_blank_line(data: bytes) -> bool:
    """True if there is a line that Spark leaves out, which Arrow does not always report."""
    values = np.frombuffer(data, np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(values[:-1] == ord("\n")) + 1))
    if (values[starts] > ord(" ")).all():
        return False
    return bool((np.add.reduceat(values > ord(" "), starts, dtype=np.int32) == 0).any())


def _trimmed(cells: pa.Array) -> pa.Array:
    return pc.utf8_trim(pc.utf8_trim(cells, characters=TRIMMED), characters=BLANKS)


def plain_list(path: Path, separator: str, names: Sequence[str], column: str) -> PlainList | None:
    """How to read ``path``, for which Spark has found the columns ``names``; None for a file that Spark has to read.

    It must be UTF-8 without quotes, zero bytes, long lines, and carriage returns within a line.
    """
    with path.open("rb") as file:
        header = file.readline(LINE_MAX)
        begin = file.tell()
        file.seek(0)
        if not header.endswith(b"\n") or not _is_plain(file):
            return None
    text = header.decode().removeprefix("\ufeff")
    found = [name.strip(TRIMMED) for name in text.split(separator)]
    if found != list(names):  # such as names that occur twice, which Spark has changed
        return None
    return PlainList(
        path=os.fspath(path.absolute()),
        separator=separator,
        columns=len(found),
        column=found.index(column),
        begin=begin,
        end=path.stat().st_size,
    )


def _is_plain(file: BinaryIO) -> bool:
    decode, unended, before = codecs.getincrementaldecoder("utf-8")().decode, 0, b""
    try:
        while block := file.read(READ_BYTES):
            if b'"' in block or b"\0" in block:
                return False
            data = before + block  # a carriage return at the end of a block may end a line
            if data.count(b"\r") != data.count(b"\r\n") + data.endswith(b"\r"):
                return False
            last_end = block.rfind(b"\n")
            unended = unended + len(block) if last_end < 0 else len(block) - last_end
            if unended > LINE_MAX:
                return False
            decode(block)
            before = block[-1:] if block.endswith(b"\r") else b""
        decode(b"", True)
    except UnicodeDecodeError:
        return False
    return not before
