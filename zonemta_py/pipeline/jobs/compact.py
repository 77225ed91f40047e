"""From sealed segments to Parquet by the hour of the event, with Structured Streaming.

Each segment is read once; where the last run stopped is in OUTPUT/checkpoint. A record that stands in
two segments is written once. The watermark is on the time a record is *seen here*, not on its own: a
node that was cut off for days must not have its records dropped as late (decision 43).
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.errors import line_of, told
from zonemta_py.pipeline.spark.events import IDENTITY, event_schema

FILES_PER_BATCH = 2000
SEEN_FOR = "7 days"  # so long a record's repeat is known
POLL_S = 1

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """Which segments into which folder; ``every_s`` None: what there is now, and then end."""

    events: str
    output: str
    every_s: float | None = None

    @property
    def lake(self) -> str:
        """Where the Parquet is; ``read_events`` reads it as it does segments."""
        return f"{self.output}/events"


def compact(
    spark: SparkSession, request: Request, step: Step, grown: Callable[[], None] = lambda: None
) -> int:
    """How many records were written. ``grown`` is called after each batch that brought some.

    With ``every_s`` it goes on until it is interrupted. Raises LocalError.
    """
    step("reading new segments")
    written, last_batch = 0, -1
    with told(request.events), _interrupted() as interrupted:
        query = _start(spark, request)
        try:
            while not interrupted.is_set():
                ended = query.awaitTermination(POLL_S)
                for progress in query.recentProgress:
                    if progress.batchId <= last_batch or not progress.numInputRows:
                        continue
                    last_batch = progress.batchId
                    written += _records_of(progress)
                    step(f"{written:,} records in {request.lake}")
                    grown()
                if ended:
                    break
        except KeyboardInterrupt:
            return written
        finally:
            _stop(query)
    return written


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """Set by Ctrl-C; a second one ends everything at once.

    Spark's own handler calls into Java in the middle of whatever call is under way, which breaks both.
    """
    asked = threading.Event()

    def ask(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _start(spark: SparkSession, request: Request) -> StreamingQuery:
    try:
        segments = (
            spark.readStream.schema(event_schema())
            .option("pathGlobFilter", "*.jsonl.zst")
            .option("recursiveFileLookup", "false")
            .option("maxFilesPerTrigger", FILES_PER_BATCH)
            .option("maxFileAge", "36500d")  # a segment that comes late is not to be passed over
            .json(request.events)
        )
    except AnalysisException as exc:
        raise LocalError(f"{request.events}: no event log here: {line_of(str(exc))}") from exc
    writer = (
        segments.transform(once)
        .transform(by_hour_of_event)
        .writeStream.format("parquet")
        .partitionBy("date", "hour")
        .option("checkpointLocation", f"{request.output}/checkpoint")
        .option("path", request.lake)
    )
    if request.every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{request.every_s} seconds").start()


def once(records: DataFrame) -> DataFrame:
    """A stream of records without repeats, by what identifies a record for ever."""
    columns = [F.col(name) for name in records.columns]
    return (
        records.select("*", F.current_timestamp().alias("seen"))
        .withWatermark("seen", SEEN_FOR)
        .dropDuplicatesWithinWatermark(list(IDENTITY))
        .select(*columns)
    )


def by_hour_of_event(records: DataFrame) -> DataFrame:
    """``date`` and ``hour`` of the event instead of its segment's, and one task for each hour."""
    time = F.timestamp_millis("time_ms")
    own = [F.col(name) for name in records.columns if name not in ("date", "hour")]
    dated = records.select(*own, F.to_date(time).alias("date"), F.hour(time).alias("hour"))
    return dated.repartition("date", "hour")


def _records_of(progress: StreamingQueryProgress) -> int:
    """Rows of a batch that were written: those read, without the repeats."""
    return sum(operator.numRowsUpdated for operator in progress.stateOperators)


def _stop(query: StreamingQuery) -> None:
    """End after the batch that is under way: to interrupt one makes Spark's thread fail."""
    if query.isActive:
        with contextlib.suppress(PySparkException):
            query.processAllAvailable()
        query.stop()
