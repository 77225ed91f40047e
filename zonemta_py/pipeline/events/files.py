"""The files of an event log: which segments are there, and what is in them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.files import as_read, is_here, is_url, local_files
from zonemta_py.pipeline.spark.session import analysed, error_line

GLOB = "*.jsonl.zst"
SUFFIXES = (".zst", ".parquet")  # of a single file that is an event log
# Directories are no columns: the logs of several relays may be beside each other, each with dates and hours.
OF_SEGMENTS = {"pathGlobFilter": GLOB, "recursiveFileLookup": "true"}


def segment_lengths(spark: SparkSession, path: str) -> dict[str, int] | None:
    """The length of each segment, by its path; None for an event log that is Parquet. Raises LocalError."""
    files = local_files(spark, path)
    if files is not None:
        if any(each.endswith(".parquet") for each in files):
            return None
        return {each: length for each, length in files.items() if each.endswith(GLOB[1:])}
    suffix = Path(path).suffix
    if not is_url(path) and is_here(spark) and Path(path).is_file() and suffix not in SUFFIXES:
        raise LocalError(f"{path}: no event log here: found a file, expected a directory")
    try:
        if is_parquet(spark, path):
            return None
        segments = analysed(spark.read.format("binaryFile").options(**OF_SEGMENTS).load(as_read(path)))
        return {row["path"]: row["length"] for row in segments.select("path", "length").collect()}
    except AnalysisException as exc:
        raise LocalError(f"{path}: no event log here: {error_line(str(exc))}") from exc


def is_parquet(spark: SparkSession, path: str) -> bool:
    """Whether there is a Parquet file in ``path``; reads one footer."""
    try:
        analysed(
            spark.read.options(**{**OF_SEGMENTS, "pathGlobFilter": "*.parquet"}).parquet(as_read(path))
        )
    except AnalysisException:
        return False
    return True


def read_here(segments: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """``path`` and ``content`` of each segment of this machine. Raises LocalError."""
    for path in segments:
        try:
            content = Path(path.removeprefix("file:")).read_bytes()
        except OSError as exc:
            raise LocalError(f"{path}: {exc.strerror}") from exc
        yield pa.RecordBatch.from_pydict({"path": [path], "content": [content]})


def name_of(path: str, length: int) -> str:
    """What distinguishes a segment from others, and from itself before it was restored."""
    return f"{path.rpartition('/')[2]} {length}"
