"""Quotes in a CSV file: true if a cell spans lines, and the line of a quote that is not closed.

A file may be divided between tasks only if no cell contains a line end; else one task must read all of it. Steps::

    options of Spark's reader ─▶ CsvForm ─▶ _plain: the form that Python's reader knows ─▶ csv.reader over _Lines ─▶ spans, or UnclosedQuote

States of ``_Lines``: between rows (``begin`` is 0) ─ a line that is no comment ─▶ in a row, from line ``begin`` ─▶ between rows ─▶ ended.

Invariants:

- Where the lines of a file with quotes cannot be examined, as in UTF-16, the answer is True.
- ``_plain`` changes cells; the quotes around them, separators and line ends stay in their order.
- A quote inside a cell that ends in its line is left to the reader of the rows.
- No file needs to fit into memory: here its lines are read one after the other, and a task gets the lines of whole files in their order.
- The settings of the session that keep files whole (SPLITS) are restored after the job.

Callers: ``plan.list.spans_lines``. It examines lines of a local file here; others (compressed ones, directories, URLs) are opened by Spark.

Example::

    cell_spans_lines(["a,b\\n", '"x\\n', 'y",z\\n'], CsvForm())  # True
    cell_spans_lines(["a,b\\n", '"x\\n'], CsvForm())  # UnclosedQuote: line 2: a quote is not closed
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.files import as_read
from zonemta_py.pipeline.spark.tables import record_batch

ONE_CHARACTER = "\x1f"  # a separator, for Python's reader, which knows those of one character only
ESCAPES = {"t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\", "u0000": "\0"}
NO_QUOTE = ("", "\0")
WHOLE = str(1 << 44)  # bytes, more than a file has: then each file is a partition of its own
SPLITS = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
OF_TEXT = ("pathglobfilter", "recursivefilelookup")  # options that concern lines, too
_FOUND = StructType(
    [StructField(name, StringType()) for name in ("path", "problem")]
    + [StructField("spans", BooleanType())]
)


class CsvForm(NamedTuple):
    """How a CSV file is written: ``quote`` begins and ends a cell, ``escape`` stands before a quote in it.

    ``comment``: what lines begin with that are no rows, or nothing. ``line_end``: of rows, or nothing for the usual ones.
    ``cell_max``: characters of a cell.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = '"'
    comment: str = ""
    line_end: str = ""
    encoding: str = "utf-8"
    cell_max: int = 1 << 20

    @property
    def has_quotes(self) -> bool:
        """True if a cell may contain a separator."""
        return self.quote not in NO_QUOTE

    @property
    def has_lines_of_bytes(self) -> bool:
        """True if the byte of a line end is always one: not in UTF-16 and UTF-32."""
        return not self.encoding.lower().startswith(("utf-16", "utf-32"))


def form_of_options(options: Mapping[str, str], cell_max: int) -> CsvForm:
    """The form that ``options`` of Spark's reader describe; their names may be in any case."""
    lower = {name.lower(): value for name, value in options.items()}
    separator = lower.get("sep", lower.get("delimiter", ","))
    separator = re.sub(r"\\(u0000|[trbf\"'\\])", lambda found: ESCAPES[found[1]], separator)
    return CsvForm(
        separator=separator, quote=lower.get("quote", '"'), escape=lower.get("escape", '"'), comment=lower.get("comment", ""),
        line_end=lower.get("linesep", ""), encoding=lower.get("encoding", lower.get("charset", "utf-8")), cell_max=cell_max,
    )  # fmt: skip


class UnclosedQuote(ValueError):
    """The quote that is opened in the row that begins at ``line`` is not closed where the cell ends."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}: a quote is not closed")
        self.line = line


class _Lines:
    """Counts the lines that a reader takes. ``begin``: the number of the first one of its row, 0 before it is taken."""

    def __init__(self, lines: Iterable[str], comment: str) -> None:
        self._lines = iter(lines)
        self._comment = comment
        self.count = self.begin = 0
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        for line in self._lines:
            self.count += 1
            if self.begin or not self._comment or not line.startswith(self._comment):
                self.begin = self.begin or self.count
                return line
        self.ended = True
        raise StopIteration


def cell_spans_lines(lines: Iterable[str], form: CsvForm) -> bool:
    """True if a quoted cell contains a line end. Raises UnclosedQuote.

    A quote inside a cell that ends in its line is left to the reader of the rows.
    """
    if not form.has_quotes:
        return False
    csv.field_size_limit(form.cell_max)
    separator = form.separator if len(form.separator) == 1 else ONE_CHARACTER
    counted, found = _Lines(_plain(lines, form), form.comment), False
    while not counted.ended:
        counted.begin = 0
        try:
            for _ in csv.reader(
                counted, delimiter=separator, quotechar=form.quote, skipinitialspace=True, strict=True
            ):
                found = found or counted.count > counted.begin
                counted.begin = 0
        except csv.Error:
            if counted.count > counted.begin or counted.ended:
                raise UnclosedQuote(counted.begin) from None
    return found


def _plain(lines: Iterable[str], form: CsvForm) -> Iterator[str]:
    """The lines with quotes in the same places, in the form that Python's reader knows."""
    separator, quote, escape = map(re.escape, (form.separator, form.quote, form.escape))
    behind = re.compile(f"{quote}[ \\t]+(?={separator}|[\r\n]*$)")  # blanks after a cell
    escapes = form.escape not in (form.quote, *NO_QUOTE)
    first = re.compile(f"(^|{separator})([ \\t]*){escape}{quote}")  # no cell in quotes begins here
    escaped = re.compile(f"{escape}({escape}|{quote})")
    other = {form.quote: form.quote * 2, form.escape: "__"}
    for line in lines:
        if form.quote not in line:
            yield line if len(form.separator) == 1 else line.replace(form.separator, ONE_CHARACTER)
            continue
        if escapes:
            line = first.sub(r"\1\2__", line)
            line = escaped.sub(lambda found: other[found[1]], line)
        line = behind.sub(lambda _: form.quote, line)
        yield line if len(form.separator) == 1 else line.replace(form.separator, ONE_CHARACTER)


def files_span_lines(
    spark: SparkSession, source: str, options: Mapping[str, str], form: CsvForm
) -> bool:
    """True if a cell of the files in ``source`` contains a line end.

    Spark's reader of text leaves the bytes of a line as they are. Raises LocalError, which names the file, for a quote that is not
    closed.
    """
    lines = spark.read.options(
        **{name: value for name, value in options.items() if name.lower() in OF_TEXT}
    )
    text = lines.text(as_read(source))
    if not form.has_quotes:
        return False
    if form.quote.isascii() and text.where(F.contains("value", F.lit(form.quote))).isEmpty():
        return False
    if not form.has_lines_of_bytes:
        return True
    line = F.col("value").cast("binary").alias("line")
    rows = text.select(F.col("_metadata.file_path").alias("path"), line)
    found = _whole_files(spark, rows.mapInArrow(partial(_examine, form), _FOUND))
    problems = sorted((row["path"], row["problem"]) for row in found if row["problem"])
    if problems:
        raise LocalError("; ".join(f"{_shown(path)}: {problem}" for path, problem in problems))
    return any(row["spans"] for row in found)


def _whole_files(spark: SparkSession, rows: DataFrame) -> list[pa.Table]:
    """Collect ``rows``, for which no file was divided."""
    before = {name: spark.conf.get(name) for name in SPLITS}
    try:
        for name in SPLITS:
            spark.conf.set(name, WHOLE)
        return rows.collect()
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))


def _examine(form: CsvForm, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = (
        row
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for path, of_file in groupby(rows, itemgetter(0)):
        spans, problem = False, None
        try:
            spans = cell_spans_lines(
                (f"{line.decode(form.encoding, 'replace')}\n" for _, line in of_file), form
            )
        except (UnclosedQuote, LookupError) as exc:
            problem = str(exc)
        yield record_batch([(path, problem, spans)], _FOUND)


def _shown(path: str) -> str:
    """The path of a local file; another URL as it is."""
    return unquote(urlsplit(path).path) if path.startswith("file:") else path
