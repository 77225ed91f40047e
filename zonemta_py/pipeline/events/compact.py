"""Converts sealed event segments to Parquet by the hour of the event, or appends them to a table of a catalog.

    OUTPUT/events/date=…/hour=…/RUN-…parquet      the Parquet files
    OUTPUT/table.json                             instead of them: the table, and what names its runs
    OUTPUT/read                                   what has been read (``ReadState``)
    OUTPUT/quarantine                             what is damaged or missing in it, also when nothing is
    OUTPUT/staging/RUN                            what a run writes; moved, or appended, when it is complete
    OUTPUT/moving.json                            the run whose files are being moved or appended, and their rows

A run that is killed before ``moving.json`` is there has written nothing that is read, and is done again; one that is killed later is
finished by the next. So no event is there twice, and no file of half a run. The column ``run`` of a table names the run: the next
one sees whether the rows of one that was killed are there. Iceberg and Delta commit all rows of a run or none; Spark's own Parquet
tables show the files of the tasks that had ended.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.events.coverage import Range
from zonemta_py.pipeline.events.log import (
    EVENTS,
    READ,
    STATE,
    EventLog,
    lines_in,
    open_unread,
    read_state,
    write_names,
    write_state,
)
from zonemta_py.pipeline.events.rows import (
    HOUR_MS,
    EventDecoder,
    event_schema,
    read_events,
    with_columns_of,
)
from zonemta_py.pipeline.spark.arrow import GROUP_ROWS, arrow_codec, compression_level
from zonemta_py.pipeline.spark.files import (
    TABLE,
    is_url,
    local_path,
    make_directory,
    move,
    names_in,
    read_text,
    remove,
    write_text,
)
from zonemta_py.pipeline.spark.output import QUARANTINE, locks_output, read_quarantine, write_quarantine
from zonemta_py.pipeline.spark.session import repeat_until_interrupted, spark_errors
from zonemta_py.pipeline.spark.tables import Progress, record_batch

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
        """The place of the events, as the jobs that read them take it."""
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


def with_hour_of_event(events: DataFrame) -> DataFrame:
    """Events with ``date`` and ``hour`` of their own time instead of the segment's."""
    time = F.timestamp_millis("time_ms")
    own = [F.col(name) for name in events.columns if name not in ("date", "hour")]
    return events.select(*own, F.to_date(time).alias("date"), F.hour(time).alias("hour"))


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
    for events in decoder.tables(lines for _, lines in lines_in(batches, parts)):
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


# ---- A table of a catalog, to which each run appends its rows once.

RUN = "run"


def run_table_schema() -> StructType:
    """The columns of a table of events: those of ``event_schema``, and ``run``."""
    return StructType([*event_schema().fields, StructField(RUN, StringType())])


def prepare_table(spark: SparkSession, table: str) -> None:
    """Create ``table``, by ``date``, unless it exists. Raises LocalError for one that lacks a column, or has it with another type.

    Without ``USING`` the catalog chooses the format; Spark's own takes that of spark.sql.sources.default.
    """
    columns = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in run_table_schema())
    with spark_errors(f"table {table}"):
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) PARTITIONED BY (date)")
        spark.catalog.refreshTable(table)  # a job that failed may have written files
        present = {each.name: each.dataType.simpleString() for each in spark.table(table).schema}
    for each in run_table_schema():
        kind = each.dataType.simpleString()
        if each.name not in present:
            raise LocalError(
                f"table {table}: has no column {each.name}; if it is a table of events, add it: "
                f"ALTER TABLE {table} ADD COLUMNS (`{each.name}` {kind})"
            )
        if present[each.name] != kind:
            raise LocalError(
                f"table {table}: the column {each.name} is {present[each.name]}, expected {kind}"
            )


def append_once(
    spark: SparkSession, table: str, run: str, rows: DataFrame, *, count: int, is_first_try: bool
) -> None:
    """Append the ``count`` ``rows`` of ``run`` to a table that is prepared, in one commit, unless they are there.

    Columns of the table that are not in ``run_table_schema`` are null. Raises LocalError when some of the rows are there.
    """
    with spark_errors(f"table {table}"):
        found = 0 if is_first_try else _rows_of(spark, table, run)
        if found == count:
            return
        if found:
            raise LocalError(
                f"table {table}: has {found:,} rows of the run {run}, which are {count:,}: the commit was interrupted, and the table "
                f"shows a part of it; delete the rows with {RUN} = '{run}', then run this again"
            )
        tagged = rows.withColumn(RUN, F.lit(run))
        # By position: to append by name Spark would need the format of a table of its own.
        with_columns_of(tagged, spark.table(table).schema).write.insertInto(table)


def _rows_of(spark: SparkSession, table: str, run: str) -> int:
    # A kill after the files of a new partition, and before the Hive metastore knew it: the next append would show them.
    with suppress(AnalysisException):  # tables without partitions, and all others than Spark's own
        spark.sql(f"MSCK REPAIR TABLE {table}")
    return spark.table(table).where(F.col(RUN) == run).count()


# ---- Parquet files by the hour of the event, as Spark names the directories of a partitioned table.

WAITING_ROWS = 1_000_000  # in memory, of all hours
OPEN_MAX = 200  # files
RISING = ("seq", "time_ms", "created_ms")
UNIQUE = frozenset(
    (*RISING, "message", "recipient", "reply")
)  # a dictionary makes the file half as large again
NO_TIME_MS = -(1 << 62)
YEARS_MS = range(-62_135_596_800_000, 253_402_300_800_000)  # from 1 to 9999
NO_HOUR = "date=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__"


class HourFiles:
    """The files of one task below ``directory``. ``compression``: of Parquet."""

    def __init__(self, directory: Path, schema: pa.Schema, compression: str) -> None:
        self._directory, self._schema, self._compression = directory, schema, compression
        self._name = f"part-{uuid4()}"
        self._waiting: dict[str, list[pa.Table]] = {}
        self._rows: dict[str, int] = {}
        self._writers: dict[str, pq.ParquetWriter] = {}
        self.written: dict[str, int] = {}  # rows of each file, by its path below the directory

    def add(self, events: pa.Table) -> None:
        """Write ``events``, or keep them until there are enough for the hour."""
        times_ms = events.column("time_ms")
        hours = times_ms.fill_null(NO_TIME_MS).to_numpy() // HOUR_MS
        order = np.argsort(hours, kind="stable")
        if (hours[1:] < hours[:-1]).any():
            events = events.take(pa.array(order))
        found, begins = np.unique(hours[order], return_index=True)
        for hour, begin, end in zip(found, begins, [*begins[1:], len(order)], strict=True):
            self._keep(_directory_of(int(hour)), events.slice(begin, end - begin))
        if sum(self._rows.values()) >= WAITING_ROWS:
            self._write_all()

    def _keep(self, hour: str, events: pa.Table) -> None:
        self._waiting.setdefault(hour, []).append(events)
        self._rows[hour] = self._rows.get(hour, 0) + events.num_rows
        if self._rows[hour] >= GROUP_ROWS:
            self._write(hour)

    def _write(self, hour: str) -> None:
        rows = pa.concat_tables(self._waiting.pop(hour)).combine_chunks()
        del self._rows[hour]
        if hour not in self._writers:
            if len(self._writers) >= OPEN_MAX:
                self._close_writers()
            self._writers[hour] = self._opened(hour)
        self._writers[hour].write_table(rows, row_group_size=rows.num_rows)
        self.written[self._path(hour)] += rows.num_rows

    def _opened(self, hour: str) -> pq.ParquetWriter:
        path = self._path(hour)
        self.written[path] = 0
        file = self._directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        names = self._schema.names
        return pq.ParquetWriter(
            file,
            self._schema,
            compression=self._compression,
            compression_level=compression_level(self._compression),
            use_dictionary=[name for name in names if name not in UNIQUE],
            column_encoding=dict.fromkeys(RISING, "DELTA_BINARY_PACKED"),
            store_schema=False,
        )

    def _path(self, hour: str) -> str:
        return f"{hour}/{self._name}.parquet"

    def _write_all(self) -> None:
        for hour in list(self._waiting):
            self._write(hour)

    def _close_writers(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        self._name = f"part-{uuid4()}"  # no file is written again

    def close(self) -> None:
        """Write what waits. After an exception it is left out: the files are of no use then."""
        self._write_all()
        self._close_writers()


def _directory_of(hour: int) -> str:
    if hour * HOUR_MS not in YEARS_MS:
        return NO_HOUR
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
    return f"date={time:%Y-%m-%d}/hour={time.hour}"
