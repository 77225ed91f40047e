"""What is damaged or missing in the segments of an event log, found by Spark's tasks.

Spark's own reader ends at a cut frame without an error, and fails at a frame with a wrong checksum. So ``read_events`` leaves
the segments that are damaged to ``readable_lines``, which reads every whole frame, also behind the damage.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.events.log import missing_between
from zonemta_py.events.segments import Trailer, verify_segment, whole_frames
from zonemta_py.pipeline.spark.exceptions import analysed, spark_errors
from zonemta_py.pipeline.spark.storage import remove, write_text
from zonemta_py.pipeline.spark.tables import record_batch

QUARANTINE = "quarantine"  # in the output of a job: which segments are damaged, and where

_SEGMENT = StructType(
    [StructField(name, StringType()) for name in ("path", "problem")]
    + [
        StructField(name, LongType())
        for name in ("at", "readable", "records", "previous", "first", "last")
    ]
)
_LINE = StructType([StructField(name, StringType()) for name in ("path", "line")])


class Damage(NamedTuple):
    """A damaged segment, or a place where segments are missing: then ``path`` is empty.

    ``offset``: the byte at which the damage begins. ``readable``: the records that are in the sums all the same.
    """

    reason: str
    path: str = ""
    offset: int = 0
    readable: int = 0

    def __str__(self) -> str:
        return f"{self.reason}; {self.readable:,} of its records are read" if self.path else self.reason


def damage_counts(damage: Sequence[Damage]) -> dict[str, int]:
    """What the ``--json`` of a job says: the number of damaged segments, and of gaps between segments."""
    damaged = sum(bool(each.path) for each in damage)
    return {"damaged_segments": damaged, "gaps": len(damage) - damaged}


def write_quarantine(spark: SparkSession, output: str, damage: Sequence[Damage]) -> None:
    """Write OUTPUT/quarantine/segments.jsonl, a line for each of ``damage``; without any, remove it."""
    if not damage:
        remove(spark, f"{output}/{QUARANTINE}")
        return
    lines = (
        json.dumps(
            {
                "file": each.path or None,
                "offset": each.offset,
                "reason": each.reason,
                "readable": each.readable,
            }
        )
        for each in damage
    )
    write_text(spark, f"{output}/{QUARANTINE}/segments.jsonl", "".join(f"{line}\n" for line in lines))


def log_damage(spark: SparkSession, path: str) -> list[Damage]:
    """Each damaged segment below ``path``, and each place where segments are missing.

    Empty for the Parquet files of ``compact``, and for a directory without segments. Raises LocalError.
    """
    files = spark.read.format("binaryFile").option("pathGlobFilter", "*.jsonl.zst")
    problems: list[Damage] = []
    nodes: defaultdict[str, list[tuple[Trailer, Path]]] = defaultdict(list)
    with spark_errors(path):
        try:
            segments = analysed(files.load(path)).select("path", "content")
        except AnalysisException:
            return []  # the job that reads it says what is wrong
        for row in segments.mapInArrow(_verified, _SEGMENT).orderBy("path").collect():
            if row["problem"]:
                problems.append(Damage(row["problem"], row["path"], row["at"], row["readable"]))
                continue
            segment = Path(row["path"])
            trailer = Trailer(row["records"], row["previous"], row["first"], row["last"])
            nodes[segment.name.partition("-")[0]].append((trailer, segment))
    for node, found in sorted(nodes.items()):
        problems += map(Damage, missing_between(node, found))
    return problems


def _verified(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        files = zip(batch.column("path"), batch.column("content"), strict=True)
        yield record_batch([_row(path.as_py(), content.as_py()) for path, content in files], _SEGMENT)


def _row(path: str, content: bytes) -> tuple[object, ...]:
    try:
        trailer = verify_segment(content, Path(path))
    except SegmentDamaged as exc:
        readable = sum(frame.lines.count(b"\n") for frame in whole_frames(content, Path(path)))
        return path, str(exc), exc.at, readable, 0, 0, 0, 0
    return path, "", 0, trailer.records, trailer.records, trailer.previous, trailer.first, trailer.last


def readable_lines(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """``path`` and ``line`` of every record in the whole frames of damaged segments."""
    segments = spark.read.format("binaryFile").load(list(paths)).select("path", "content")
    return segments.mapInArrow(_lines, _LINE)


def _lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            name = path.as_py()
            for frame in whole_frames(content.as_py(), Path(name)):
                lines = frame.lines.decode(errors="replace").splitlines()
                yield record_batch([(name, line) for line in lines], _LINE)
