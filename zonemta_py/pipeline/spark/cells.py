"""Whether the cells of CSV files contain line ends, for files that Spark has to open: compressed ones, directories, URLs.

A task reads the lines of whole files, in their order; so no file needs to fit into memory.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.quotes import CsvForm, UnclosedQuote, cell_spans_lines
from zonemta_py.pipeline.spark.storage import as_read
from zonemta_py.pipeline.spark.tables import record_batch

WHOLE = str(1 << 44)  # bytes, more than a file has: then each file is a partition of its own
SPLITS = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
OF_TEXT = ("pathglobfilter", "recursivefilelookup")  # options that concern lines, too

_FOUND = StructType(
    [StructField(name, StringType()) for name in ("path", "problem")]
    + [StructField("spans", BooleanType())]
)


def files_span_lines(
    spark: SparkSession, source: str, options: Mapping[str, str], form: CsvForm
) -> bool:
    """Whether a cell of the files in ``source`` contains a line end.

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
