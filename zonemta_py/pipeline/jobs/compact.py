"""Converts sealed event segments to Parquet by the hour of the event, or appends them to a table of a catalog.

    OUTPUT/events/date=…/hour=…/RUN-…parquet      the Parquet files
    OUTPUT/table.json                             instead of them: the table, and what names its runs
    OUTPUT/read                                   what has been read (``spark.read_state``)
    OUTPUT/quarantine                             what is damaged or missing in it (``spark.quarantine``), also when nothing is
    OUTPUT/staging/RUN                            what a run writes; moved, or appended, when it is complete
    OUTPUT/moving.json                            the run whose files are being moved or appended, and their rows

A run that is killed before ``moving.json`` is there has written nothing that is read, and is done again; one that is killed later is
finished by the next. So no event is there twice, and no file of half a run. Of a table ``append_once`` finds out what it has.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.coverage import Range
from zonemta_py.pipeline.spark.arrow_files import arrow_codec
from zonemta_py.pipeline.spark.event_log import EVENTS, READ, EventLog, lines_of, open_unread
from zonemta_py.pipeline.spark.events import event_schema, read_events
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.intervals import repeat_until_interrupted
from zonemta_py.pipeline.spark.lists import TABLE
from zonemta_py.pipeline.spark.output_lock import locks_output
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.quarantine import QUARANTINE, read_quarantine, write_quarantine
from zonemta_py.pipeline.spark.read_state import STATE, read_state, write_names, write_state
from zonemta_py.pipeline.spark.run_table import append_once, prepare_table
from zonemta_py.pipeline.spark.storage import (
    is_url,
    local_path,
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

MOVING, STAGING = "moving.json", "staging"
TABLE_FILE = "table.json"

_FILE = StructType([StructField("path", StringType()), StructField("rows", LongType())])


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """``every_s``: the interval of the runs; None: compact the present segments, then end.

    ``table``: that of a catalog of the session that gets the events; None: Parquet files do.
    """

    events: str
    output: str
    every_s: float | None = None
    table: str | None = None

    @property
    def lake(self) -> str:
        """The directory of the Parquet files; ``read_events`` reads it like segments."""
        return f"{self.output}/{EVENTS}"

    @property
    def target(self) -> str:
        """Where the events are, as the jobs that read them take it."""
        return f"{TABLE}{self.table}" if self.table else self.lake


@dataclass(frozen=True, slots=True)
class _RunTable:
    """The table of OUTPUT/table.json; ``writer``, a random text, begins the names of the runs."""

    table: str
    writer: str


@dataclass(slots=True)
class CompactResult:
    """``records``: the events written. ``log``: the event log, as it was read last."""

    log: EventLog
    records: int = 0


@locks_output
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
            progress(f"{result.records:,} events in {request.target}")
            on_run()

    repeat_until_interrupted(run, request.every_s)
    return result


def _run(spark: SparkSession, request: CompactRequest, result: CompactResult, progress: Progress) -> int:
    output = request.output
    to = _run_table(spark, request)
    _finish_moving(spark, output, to, is_first_try=False)
    state = read_state(spark, f"{output}/{READ}")
    progress("looking for new segments")
    result.log = log = open_unread(spark, request.events, f"{output}/{READ}", state)
    if not log.segments:
        write_quarantine(spark, output, log.damage)
        return 0
    state = state.after(log)
    run = state.run
    staged = f"{output}/{STAGING}/{run}"
    remove(spark, f"{output}/{STAGING}")  # of a run that was killed
    progress(f"converting {len(log.segments):,} new segments")
    with spark_errors(request.events):
        written = _write_by_spark(spark, log, staged) if is_url(staged) else _write(spark, log, staged)
    write_names(spark, f"{output}/{READ}", run, log)
    write_quarantine(spark, f"{output}/{STAGING}", log.damage)
    write_state(spark, f"{output}/{STAGING}/{STATE}", state)
    write_text(spark, f"{output}/{MOVING}", json.dumps({"run": run, "rows": written}) + "\n")
    _finish_moving(spark, output, to, is_first_try=True)
    return written


def _run_table(spark: SparkSession, request: CompactRequest) -> _RunTable | None:
    """The table to append to; None: the events are Parquet files. Raises LocalError where the runs before wrote elsewhere."""
    output = request.output
    path = f"{output}/{TABLE_FILE}"
    text = read_text(spark, path)
    if text is None:
        if request.table is None:
            return None
        if read_state(spark, f"{output}/{READ}").run or read_text(spark, f"{output}/{MOVING}"):
            raise LocalError(
                f"{output}: its events are Parquet files; use another directory for the table {request.table}"
            )
        prepare_table(spark, request.table)
        to = _RunTable(request.table, uuid4().hex)
        write_text(spark, path, json.dumps({"table": to.table, "writer": to.writer}) + "\n")
        return to
    try:
        to = _RunTable(**json.loads(text))
    except (ValueError, TypeError) as exc:
        raise LocalError(f"{path}: not a file of the pipeline: {exc}") from exc
    if request.table != to.table:
        raise LocalError(
            f"{output}: its events are in the table {to.table}; use --table {to.table}, or another directory"
        )
    prepare_table(spark, to.table)
    return to


def _write_by_spark(spark: SparkSession, log: EventLog, staged: str) -> int:
    """Write the events to any file system; returns their number."""
    rows = read_events(spark, log).transform(with_hour_of_event)
    rows.write.partitionBy("date", "hour").parquet(staged)
    return spark.read.parquet(staged).count()


def _write(spark: SparkSession, log: EventLog, staged: str) -> int:
    """As ``_write_by_spark``, for a directory that tasks write to themselves: at a third of the cost.

    Raises LocalError when the machines of a cluster do not share it.
    """
    directory = local_path(staged)
    convert = partial(_convert, log.parts or {}, directory, arrow_codec(spark))
    files = {row["path"]: row["rows"] for row in log.rows_of(spark, convert, _FILE)}
    missing = [path for path in files if not (directory / path).is_file()]
    if missing:
        raise LocalError(
            f"{directory}: {len(missing)} of {len(files)} files are not here: tasks of other machines wrote them to their own disks; "
            "choose a directory of a file system that all machines share, by its URL (s3a://, hdfs://, file:///shared)"
        )
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


def _finish_moving(
    spark: SparkSession, output: str, to: _RunTable | None, *, is_first_try: bool
) -> None:
    """Move or append the files of a complete run, and make its state that of OUTPUT. May be done again at any point."""
    text = read_text(spark, f"{output}/{MOVING}")
    if text is None:
        return
    moving = json.loads(text)
    run = moving["run"]
    if to is None:
        _move_files(spark, output, run)
    elif moving["rows"]:
        rows = spark.read.schema(event_schema()).parquet(f"{output}/{STAGING}/{run}")
        name = f"{to.writer}-{run}"
        append_once(spark, to.table, name, rows, count=moving["rows"], is_first_try=is_first_try)
    if read_quarantine(spark, f"{output}/{STAGING}") is not None:
        remove(spark, f"{output}/{QUARANTINE}")
        move(spark, f"{output}/{STAGING}/{QUARANTINE}", f"{output}/{QUARANTINE}")
    if read_text(spark, f"{output}/{STAGING}/{STATE}") is not None:
        remove(spark, f"{output}/{READ}/{STATE}")
        move(spark, f"{output}/{STAGING}/{STATE}", f"{output}/{READ}/{STATE}")
    remove(spark, f"{output}/{MOVING}")
    remove(spark, f"{output}/{STAGING}")


def _move_files(spark: SparkSession, output: str, run: int) -> None:
    staged, lake = f"{output}/{STAGING}/{run}", f"{output}/{EVENTS}"
    for date in sorted(names_in(spark, staged) or ()):
        if not date.startswith("date="):
            continue
        for hour in sorted(names_in(spark, f"{staged}/{date}") or ()):
            make_directory(spark, f"{lake}/{date}/{hour}")
            for name in sorted(names_in(spark, f"{staged}/{date}/{hour}") or ()):
                if name.endswith(".parquet"):
                    move(spark, f"{staged}/{date}/{hour}/{name}", f"{lake}/{date}/{hour}/{run}-{name}")


def with_hour_of_event(events: DataFrame) -> DataFrame:
    """Events with ``date`` and ``hour`` of their own time instead of the segment's."""
    time = F.timestamp_millis("time_ms")
    own = [F.col(name) for name in events.columns if name not in ("date", "hour")]
    return events.select(*own, F.to_date(time).alias("date"), F.hour(time).alias("hour"))
