"""Opens an event log for a job: which segments are there, which are damaged, and what of each is to be read.

Spark's own reader ends at a cut frame without an error, and fails at a frame with a wrong checksum. So each segment is verified
first, by tasks, and the damaged ones are read frame by frame, also behind the damage. ``open_log`` opens the whole log,
``open_unread`` what the runs before have not read. The directory of such a job has

    state.json             the number of complete runs, the ranges of SEQ (``Coverage``), and counts; replaced by each run
    segments-N.txt         the segments that run N has read; without meaning if state.json has a lower number
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError, SegmentDamaged
from zonemta_py.events.log import UNKNOWN, Extent, extents, missing_of
from zonemta_py.events.schema import number_before
from zonemta_py.events.segment_reading import is_gap, verify_segment, whole_frames
from zonemta_py.events.segments import Trailer
from zonemta_py.pipeline.events.coverage import Coverage, Range, whole_groups, whole_lines
from zonemta_py.pipeline.spark.files import (
    TABLE,
    as_read,
    is_here,
    is_url,
    local_files,
    names_in,
    read_text,
    write_text,
)
from zonemta_py.pipeline.spark.output import Damage, read_quarantine
from zonemta_py.pipeline.spark.session import analysed, error_line, is_deferred, is_local, spark_errors
from zonemta_py.pipeline.spark.tables import record_batch

EVENTS, READ = (
    "events",
    "read",
)  # in the output of ``compact``: the Parquet files, and what has been read
LOCAL = ("/", "file:")  # what paths of this machine begin with
SMALL_BYTES = 16 << 20  # of segments that are read in this process, before a session has started
PATHS_MAX = 1000  # that are named to Spark one by one; else it lists the directory and filters
Mapper = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]  # of ``mapInArrow``
_NAME = re.compile(r"([^-.]+)-([0-9a-f]{16})(?=[-.])")
_NUMBERS = ("at", "records", "unread", "previous", "first", "last")
_SEGMENT = StructType(
    [StructField(name, StringType()) for name in ("path", "problem", "node")]
    + [StructField(name, LongType()) for name in _NUMBERS]
    + [StructField("runs", ArrayType(LongType()))]  # of a damaged segment: SEQs of whole frames
)
_LINE = StructType([StructField(name, StringType()) for name in ("path", "line")])
GLOB = "*.jsonl.zst"
SUFFIXES = (".zst", ".parquet")  # of a single file that is an event log
# Directories are no columns: the logs of several relays may be next to each other, each with dates and hours.
OF_SEGMENTS = {"pathGlobFilter": GLOB, "recursiveFileLookup": "true"}


@dataclass(frozen=True, slots=True)
class EventLog:
    """The events that a job reads. ``segments``: the paths of those with new events. ``parts``: for those of which not all is read, the ranges.

    ``read``: what is read when this is. ``records`` are new; of ``first_read`` segments nothing was read before. ``known``: how many other segments there are, with nothing new. ``names``: those that were
    verified now (``name_of``), but for the damaged ones. ``is_compacted``: the output of ``compact``, Parquet files or a table; then there are
    no segments, and what ``compact`` found in them is known if ``is_verified``. ``is_small``: the segments are read in this process.
    """

    path: str
    segments: Sequence[str] = ()
    parts: Mapping[str, Sequence[Range]] | None = None
    read: Coverage | None = None
    damage: Sequence[Damage] = ()
    records: int = 0
    first_read: int = 0
    known: int = 0
    names: Sequence[str] = ()
    is_compacted: bool = False
    is_verified: bool = True
    is_small: bool = False

    @property
    def damaged(self) -> list[str]:
        """The paths of the damaged segments."""
        return [each.path for each in self.damage if each.path]

    def rows_of(
        self, spark: SparkSession, function: Mapper, schema: StructType
    ) -> list[Mapping[str, Any]]:
        """Rows that ``function`` makes of batches of ``path`` and ``content`` (bytes) of the segments. Raises LocalError."""
        if self.is_small:
            try:
                return [row for batch in function(read_here(self.segments)) for row in batch.to_pylist()]
            except (pa.ArrowException, ValueError, KeyError, TypeError) as exc:
                raise LocalError(f"{self.path}: {exc}") from exc
        segments = self.contents(spark)
        if is_here(spark) and is_local(spark) and all(each.startswith(LOCAL) for each in self.segments):
            segments, function = segments.select("path"), partial(_opened, function)
        return [row.asDict() for row in segments.mapInArrow(function, schema).collect()]

    def contents(self, spark: SparkSession) -> DataFrame:
        """``path`` and ``content`` of the segments."""
        reader = spark.read.format("binaryFile").options(**OF_SEGMENTS)
        if len(self.segments) <= PATHS_MAX and self.known:
            return reader.load(list(map(as_read, self.segments))).select("path", "content")
        return self.listed(reader.load(as_read(self.path))).select("path", "content")

    def listed(self, rows: DataFrame) -> DataFrame:
        """Those of ``rows`` whose ``path`` is of a segment of this log: others were sealed since it was listed, and are not verified.

        Raises LocalError when one was removed since then: it would be missing without a word.
        """
        names = sorted({path.rpartition("/")[2] for path in self.segments})
        gone = set(names).difference(path.rpartition("/")[2] for path in rows.inputFiles())
        if gone:
            raise LocalError(
                f"{self.path}: {min(gone)} was removed while it was read; run the job again"
            )
        name = F.element_at(F.split("path", "/"), -1)
        if len(names) <= PATHS_MAX:
            return rows.where(name.isin(names))
        wanted = rows.sparkSession.createDataFrame([(each,) for each in names], "segment_name string")
        return rows.join(F.broadcast(wanted), name == F.col("segment_name"), "left_semi")


def _opened(function: Mapper, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``function`` of the segments at paths of this machine. Java would have each several times in its heap."""
    paths = (path for batch in batches for path in batch.column("path").to_pylist())
    yield from function(read_here(paths))


def open_log(
    spark: SparkSession, path: str, known: Coverage | None = None, names: Collection[str] = ()
) -> EventLog:
    """Verify the segments below ``path`` but for those in ``names``. ``known``: the events that were read before.

    The output of ``compact`` is not verified again. Raises LocalError when there is no event log.
    """
    known = known or Coverage()
    read = Coverage(known.ranges)
    if path.startswith(TABLE):
        return EventLog(path, is_compacted=True, is_verified=False)
    must = _extents(path)  # before the segments are listed: it grows
    with spark_errors(path):
        lengths = segment_lengths(spark, path)
        if lengths is None:
            return _compacted(spark, path)
        found = {each: name_of(each, length) for each, length in lengths.items()}
        new = [each for each, name in found.items() if name not in names]
        is_small = is_deferred(spark) and sum(lengths[each] for each in new) <= SMALL_BYTES
        listed = EventLog(path, new, known=len(found) - len(new), is_small=is_small)
        rows = listed.rows_of(spark, _verified, _SEGMENT) if new else []
    damage: list[Damage] = []
    parts: dict[str, Sequence[Range]] = {}
    records = first_read = 0
    for row in sorted(rows, key=lambda row: (row["first"], row["path"])):
        node = row["node"]
        if row["problem"]:
            damage.append(Damage(row["problem"], row["path"], row["at"], row["records"], row["unread"]))
            ranges = list(zip(row["runs"][::2], row["runs"][1::2], strict=True))
        else:
            ranges = [(row["first"], row["last"])]
        missing = [part for first, last in ranges for part in read.missing(node, first, last)]
        if missing != ranges or row["problem"]:
            parts[row["path"]] = missing
        if ranges and missing == ranges:
            records += row["records"]
            first_read += 1
        else:  # a part was read before, from a copy or before it was restored
            records += min(row["records"], sum(last - first + 1 for first, last in missing))
        for first, last in ranges:
            # There are no events between the segment before and this one.
            previous = number_before(first, row["previous"]) if row["previous"] else first
            read.add(node, min(first, previous + 1), last)
    damage.sort(key=lambda each: each.path)
    damage += map(Damage, _gaps(path, found, _with_damaged(read, rows), must))
    segments = [row["path"] for row in rows if parts.get(row["path"], True)]
    whole = [found[row["path"]] for row in rows if not row["problem"] and row["path"] in found]
    return replace(
        listed, segments=segments, parts=parts, read=read, damage=damage, records=records,
        first_read=first_read, known=len(found) - len(segments), names=whole,
    )  # fmt: skip


def open_unread(spark: SparkSession, events: str, directory: str, state: "ReadState") -> EventLog:
    """The event log with what the runs before have not read; damaged segments are verified again. Raises LocalError."""
    log = open_log(spark, events, state.coverage, names_read(spark, directory, state.run))
    if log.is_compacted:
        raise LocalError(
            f"{events}: the output of compact does not say what is new; name the directory of the segments"
        )
    return log


def _with_damaged(read: Coverage, rows: Sequence[Mapping[str, Any]]) -> Coverage:
    """``read``, and all between the ends of each damaged segment: what is missing there is no gap besides."""
    found = Coverage(read.ranges)
    for row in rows:
        if row["problem"] and row["runs"]:
            found.add(row["node"], row["first"], row["last"])
    return found


def _compacted(spark: SparkSession, path: str) -> EventLog:
    """The Parquet files of ``compact``, with what it found in the segments. Raises LocalError."""
    parent, _, name = path.rstrip("/").rpartition("/")
    output = parent or "."
    damage = read_quarantine(spark, output) if name == EVENTS else None
    if damage is None:
        return EventLog(path, is_compacted=True, is_verified=False)
    state = read_state(spark, f"{output}/{READ}")
    return EventLog(path, damage=damage, records=state.records, known=state.segments, is_compacted=True)


def _extents(path: str) -> dict[str, Extent]:
    """The SEQs that the log must have of each node, where that can be read: on this machine."""
    return (
        extents(Path(path.removeprefix("file:"))) if path.startswith("file:") or ":" not in path else {}
    )


def _gaps(
    path: str, segments: Iterable[str], read: Coverage, must: Mapping[str, Extent]
) -> Iterator[str]:
    """A text for each place where events are missing between those that were read, now or before, and at both ends."""
    named = sorted(
        (name[1], int(name[2], 16), each)
        for each in segments
        if (name := _NAME.match(each.rpartition("/")[2]))
    )
    for node in sorted({*read.ranges, *must}):
        listed = []
        for first, last in read.ranges.get(node, ()):
            at = bisect_left(named, (node, first, ""))  # the segment behind the gap may be removed
            behind = named[at][2] if at < len(named) and named[at][:2] <= (node, last) else path
            listed.append((Trailer(0, 0, first, last), behind))
        yield from missing_of(node, listed, must.get(node, Extent(UNKNOWN, 0)), path)


def _verified(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        files = zip(batch.column("path"), batch.column("content"), strict=True)
        yield record_batch(
            [examine_segment(path.as_py(), content.as_py()) for path, content in files], _SEGMENT
        )


def examine_segment(path: str, content: bytes) -> tuple[object, ...]:
    """The row of _SEGMENT: what is wrong with a segment, or nothing, and which of its records can be read."""
    name = _NAME.match(path.rpartition("/")[2])
    node = name[1] if name else _node_in(content, path)
    try:
        trailer = verify_segment(content, path)
    except SegmentDamaged as exc:
        readable, lines, behind = 0, 0, -1
        ends: list[int] = []
        for frame in whole_frames(content, path, torn=True):
            runs, records = whole_groups(frame.lines)
            readable += records
            lines += frame.lines.count(b"\n")
            found = [end for run in runs for end in run]
            is_next = frame.start == behind and ends and runs and runs[0][0] == frame.first
            if is_next and not is_gap(ends[-1], frame.first):
                ends[-1:], found = found[1:2], found[2:]  # no event is missing between the two
            ends += found
            behind = frame.end if runs and runs[-1][1] == frame.last else -1
        return (
            path,
            str(exc),
            node,
            exc.at,
            readable,
            lines - readable,
            0,
            *((ends[0], ends[-1]) if ends else (0, 0)),
            ends,
        )
    return path, "", node, 0, trailer.records, 0, trailer.previous, trailer.first, trailer.last, []


def _node_in(content: bytes, path: str) -> str:
    """The node of the first record, for a segment that was renamed; empty when nothing can be read."""
    frame = next(whole_frames(content, path), None)  # its first line is an event
    return str(from_json(frame.lines.splitlines()[0])["node"]) if frame else ""


def lines_of(content: bytes, path: str, parts: Mapping[str, Sequence[Range]]) -> Iterator[bytes]:
    """The JSON lines of each whole frame of a segment, without those outside its ``parts``."""
    wanted = parts.get(path)
    for frame in whole_frames(content, path, torn=wanted is not None):
        is_torn = frame.first < 0 or frame.last < 0
        if wanted is None or (
            not is_torn and any(a <= frame.first and frame.last <= b for a, b in wanted)
        ):
            yield frame.lines
        else:
            yield whole_lines(frame.lines, wanted)


def lines_in(
    batches: Iterable[pa.RecordBatch], parts: Mapping[str, Sequence[Range]]
) -> Iterator[tuple[str, bytes]]:
    """The path of a segment and lines of it, for each segment in batches of ``path`` and ``content``."""
    for batch in batches:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            name = path.as_py()
            for block in lines_of(content.as_py(), name, parts):
                yield name, block


def part_lines(spark: SparkSession, log: EventLog) -> DataFrame:
    """``path`` and ``line`` of the events in the segments of which only parts are read."""
    parts = {path: ranges for path, ranges in (log.parts or {}).items() if ranges}
    segments = (
        spark.read.format("binaryFile").load(sorted(map(as_read, parts))).select("path", "content")
    )
    return segments.mapInArrow(partial(_part_lines, parts), _LINE)


def _part_lines(
    parts: Mapping[str, Sequence[Range]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for path, block in lines_in(batches, parts):
        lines = block.splitlines()  # a text has more line ends than JSON lines have
        yield record_batch([(path, line.decode(errors="replace")) for line in lines], _LINE)


def damage_counts(log: EventLog) -> dict[str, int | None]:
    """Fields for the ``--json`` of a job: the number of damaged segments, and of gaps between segments; None where nothing was verified."""
    if not log.is_verified:
        return {"damaged_segments": None, "gaps": None}
    return {"damaged_segments": len(log.damaged), "gaps": len(log.damage) - len(log.damaged)}


# ---- The files of a log.


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
    """True if there is a Parquet file in ``path``; reads one footer."""
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
    """A name that differs for each segment, and for one that was restored since."""
    return f"{path.rpartition('/')[2]} {length}"


# ---- What a job that is run again has read.

FORMAT = 1
STATE = "state.json"


@dataclass(frozen=True, slots=True)
class ReadState:
    """``run``: the number of the last complete run; 0: none. ``records`` and ``segments``: how many were read.

    ``sums``: the files of sums of a report, by name, with the run that wrote each.
    """

    run: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    records: int = 0
    segments: int = 0
    sums: Mapping[str, int] = field(default_factory=dict)

    def after(self, log: EventLog, sums: Mapping[str, int] | None = None) -> "ReadState":
        """The state when ``log`` is read, by the next run; ``sums``: the files with its events, too."""
        coverage = log.read or self.coverage
        records, segments = self.records + log.records, self.segments + log.first_read
        return ReadState(self.run + 1, coverage, records, segments, sums or {})


def names_read(spark: SparkSession, directory: str, run: int) -> set[str]:
    """The names of the segments that the runs up to ``run`` have read. Raises LocalError."""
    names: set[str] = set()
    for name in names_in(spark, directory) or ():
        number = name.removeprefix("segments-").removesuffix(".txt")
        if number.isdecimal() and int(number) <= run:
            names.update((read_text(spark, f"{directory}/{name}") or "").splitlines())
    return names


def read_state(spark: SparkSession, directory: str) -> ReadState:
    """The state; that before the first run if there is none. Raises LocalError for one that is not of this version."""
    path = f"{directory}/{STATE}"
    text = read_text(spark, path)
    if text is None:
        return ReadState()
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise LocalError(f"{path}: written by another version; begin again in another directory")
        coverage = Coverage(found["ranges"])
        return ReadState(
            found["run"], coverage, found["records"], found["segments"], found.get("sums", {})
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise LocalError(f"{path}: not a state of the pipeline: {exc}") from exc


def write_names(spark: SparkSession, directory: str, run: int, log: EventLog) -> None:
    """Write which segments ``run`` has read. Raises LocalError."""
    write_text(spark, f"{directory}/segments-{run}.txt", "".join(f"{name}\n" for name in log.names))


def write_state(spark: SparkSession, path: str, state: ReadState) -> None:
    """Write the file ``path``, or replace it. Raises LocalError."""
    document = {
        "format": FORMAT,
        "run": state.run,
        "records": state.records,
        "segments": state.segments,
        "ranges": state.coverage.ranges,
        "sums": state.sums,
    }
    write_text(spark, path, json.dumps(document) + "\n")
