"""What is damaged or missing in the segments of an event log, found by Spark's tasks.

Spark's own reader ends at a damaged frame without an error: the rows behind it would be missing from every sum.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.events.log import missing_between
from zonemta_py.events.segments import Trailer, verify_segment
from zonemta_py.pipeline.spark.exceptions import analysed, spark_errors
from zonemta_py.pipeline.spark.tables import record_batch

_SEGMENT = StructType(
    [StructField(name, StringType()) for name in ("path", "problem")]
    + [StructField(name, LongType()) for name in ("records", "previous", "first", "last")]
)


def log_damage(spark: SparkSession, path: str) -> list[str]:
    """A text for each damaged segment below ``path``, and for each place where segments are missing.

    Empty for the Parquet files of ``compact``, and for a directory without segments. Raises LocalError.
    """
    files = spark.read.format("binaryFile").option("pathGlobFilter", "*.jsonl.zst")
    problems: list[str] = []
    nodes: defaultdict[str, list[tuple[Trailer, Path]]] = defaultdict(list)
    with spark_errors(path):
        try:
            segments = analysed(files.load(path)).select("path", "content")
        except AnalysisException:
            return []  # the job that reads it says what is wrong
        for row in segments.mapInArrow(_verified, _SEGMENT).orderBy("path").collect():
            if row["problem"]:
                problems.append(row["problem"])
                continue
            segment = Path(row["path"])
            trailer = Trailer(row["records"], row["previous"], row["first"], row["last"])
            nodes[segment.name.partition("-")[0]].append((trailer, segment))
    for node, found in sorted(nodes.items()):
        problems += missing_between(node, found)
    return problems


def _verified(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        files = zip(batch.column("path"), batch.column("content"), strict=True)
        yield record_batch([_row(path.as_py(), content.as_py()) for path, content in files], _SEGMENT)


def _row(path: str, content: bytes) -> tuple[object, ...]:
    try:
        trailer = verify_segment(content, Path(path))
    except SegmentDamaged as exc:
        return path, str(exc), 0, 0, 0, 0
    return path, "", trailer.records, trailer.previous, trailer.first, trailer.last
