"""Converts sealed event segments to Parquet by the hour of the event.

    OUTPUT/events/date=…/hour=…/RUN-…parquet      the table
    OUTPUT/read                                   what has been read (``spark.read_state``)
    OUTPUT/staging/RUN                            what a run writes; moved into the table when it is complete
    OUTPUT/moving.json                            the run whose files are being moved

A run that is killed before ``moving.json`` is there has written nothing to the table, and is done again; one that is killed later is
finished by the next. So a file of the table is never of half a run, and none is there twice.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from zonemta_py.pipeline.rules.coverage import Range
from zonemta_py.pipeline.spark.event_log import EventLog, lines_of
from zonemta_py.pipeline.spark.events import event_schema, read_events
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.intervals import repeat_until_interrupted
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.read_state import (
    STATE,
    open_unread,
    read_state,
    write_names,
    write_state,
)
from zonemta_py.pipeline.spark.storage import (
    is_url,
    make_directory,
    move,
    names_in,
    read_text,
    remove,
    write_text,
)
from zonemta_py.pipeline.spark.tables import record_batch
from zonemta_py.pipeline.transforms.event_rows import EventDecoder
from zonemta_py.pipeline.transforms.hour_files import HourFiles

READ, MOVING, STAGING = "read", "moving.json", "staging"
CODECS = {"uncompressed": "none", "lz4raw": "lz4", "lz4_raw": "lz4"}  # of Spark, in Arrow

_FILE = StructType([StructField("path", StringType()), StructField("rows", LongType())])


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """``every_s``: the interval of the runs; None: compact the present segments, then end."""

    events: str
    output: str
    every_s: float | None = None

    @property
    def lake(self) -> str:
        """The directory of the Parquet files; ``read_events`` reads it like segments."""
        return f"{self.output}/events"


@dataclass(slots=True)
class CompactResult:
    """``records``: the events written. ``log``: the event log, as it was read last."""

    log: EventLog
    records: int = 0


def compact(
    spark: SparkSession,
    request: CompactRequest,
    progress: Progress,
    on_run: Callable[[], None] = lambda: None,
) -> CompactResult:
    """Convert what is new; ``on_run`` is called after each run that has written something.

    Of damaged segments what can be read is written; they are verified again by each run, and once they are restored the rest is
    written. With ``every_s`` it runs until SIGINT. Raises LocalError.
    """
    result = CompactResult(EventLog(request.events))

    def run() -> None:
        written = _run(spark, request, result, progress)
        if written:
            result.records += written
            progress(f"{result.records:,} events in {request.lake}")
            on_run()

    repeat_until_interrupted(run, request.every_s)
    return result


def _run(spark: SparkSession, request: CompactRequest, result: CompactResult, progress: Progress) -> int:
    output = request.output
    _finish_moving(spark, output)
    state = read_state(spark, f"{output}/{READ}")
    progress("looking for new segments")
    result.log = log = open_unread(spark, request.events, f"{output}/{READ}", state)
    if not log.segments:
        return 0
    state = state.after(log)
    run = state.run
    staged = f"{output}/{STAGING}/{run}"
    remove(spark, f"{output}/{STAGING}")  # of a run that was killed
    progress(f"converting {len(log.segments):,} new segments")
    with spark_errors(request.events):
        written = _write_by_spark(spark, log, staged) if is_url(staged) else _write(spark, log, staged)
    write_names(spark, f"{output}/{READ}", run, log)
    write_state(spark, f"{output}/{STAGING}/{STATE}", state)
    write_text(spark, f"{output}/{MOVING}", json.dumps({"run": run}) + "\n")
    _finish_moving(spark, output)
    return written


def _write_by_spark(spark: SparkSession, log: EventLog, staged: str) -> int:
    """Write the events to any file system; returns their number."""
    rows = read_events(spark, log).transform(with_hour_of_event)
    rows.write.partitionBy("date", "hour").parquet(staged)
    return spark.read.parquet(staged).count()


def _write(spark: SparkSession, log: EventLog, staged: str) -> int:
    """As ``_write_by_spark``, for a directory that tasks write to themselves: at a third of the cost."""
    directory = Path(staged).absolute()
    codec = str(spark.conf.get("spark.sql.parquet.compression.codec")).lower()
    convert = partial(_convert, log.parts or {}, directory, CODECS.get(codec, codec))
    files = {row["path"]: row["rows"] for row in log.contents(spark).mapInArrow(convert, _FILE).collect()}  # fmt: skip
    for path in directory.rglob("*.parquet"):
        if str(path.relative_to(directory)) not in files:  # of a task that failed, and ran again
            path.unlink()
    return sum(files.values())


def _convert(
    parts: Mapping[str, Sequence[Range]],
    directory: Path,
    codec: str,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    own = [each for each in event_schema() if each.name not in ("date", "hour")]
    decoder = EventDecoder(to_arrow_schema(StructType(own)))
    files = HourFiles(directory, decoder.schema, codec)
    lines = (
        block
        for batch in batches
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True)
        for block in lines_of(content.as_py(), path.as_py(), parts)
    )
    for events in decoder.tables(lines):
        files.add(events)
    files.close()
    yield record_batch(list(files.written.items()), _FILE)


def _finish_moving(spark: SparkSession, output: str) -> None:
    """Move the files of a complete run into the table, and make its state that of OUTPUT. May be done again at any point."""
    text = read_text(spark, f"{output}/{MOVING}")
    if text is None:
        return
    run = json.loads(text)["run"]
    staged, table = f"{output}/{STAGING}/{run}", f"{output}/events"
    for date in sorted(names_in(spark, staged) or ()):
        if not date.startswith("date="):
            continue
        for hour in sorted(names_in(spark, f"{staged}/{date}") or ()):
            make_directory(spark, f"{table}/{date}/{hour}")
            for name in sorted(names_in(spark, f"{staged}/{date}/{hour}") or ()):
                if name.endswith(".parquet"):
                    move(spark, f"{staged}/{date}/{hour}/{name}", f"{table}/{date}/{hour}/{run}-{name}")
    if read_text(spark, f"{output}/{STAGING}/{STATE}") is not None:
        remove(spark, f"{output}/{READ}/{STATE}")
        move(spark, f"{output}/{STAGING}/{STATE}", f"{output}/{READ}/{STATE}")
    remove(spark, f"{output}/{MOVING}")
    remove(spark, f"{output}/{STAGING}")


def with_hour_of_event(events: DataFrame) -> DataFrame:
    """Events with ``date`` and ``hour`` of their own time instead of the segment's."""
    time = F.timestamp_millis("time_ms")
    own = [F.col(name) for name in events.columns if name not in ("date", "hour")]
    return events.select(*own, F.to_date(time).alias("date"), F.hour(time).alias("hour"))
