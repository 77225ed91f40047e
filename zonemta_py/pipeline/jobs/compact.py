"""Converts sealed event segments to Parquet by the hour of the event, with Structured Streaming.

Each segment is read once; OUTPUT/checkpoint has the progress. An event that is in two segments is written
once. The watermark is on the time when an event is *read*, not on its own time: events of a node that was
disconnected for days must not be dropped as late (decision 43).
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.damage import Damage
from zonemta_py.pipeline.spark.events import IDENTITY, event_schema
from zonemta_py.pipeline.spark.exceptions import error_line, spark_errors
from zonemta_py.pipeline.spark.progress import Progress

FILES_PER_BATCH = 2000
REPEATS_KNOWN_FOR = "7 days"  # a later repeat of an event is written again
POLL_S = 1


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """``every_s``: the interval of the batches; None: compact the present segments, then end.

    ``damage``: what ``log_damage`` found.
    """

    events: str
    output: str
    every_s: float | None = None
    damage: Sequence[Damage] = ()

    @property
    def lake(self) -> str:
        """The directory of the Parquet files; ``read_events`` reads it like segments."""
        return f"{self.output}/events"


def compact(
    spark: SparkSession,
    request: CompactRequest,
    progress: Progress,
    on_batch: Callable[[], None] = lambda: None,
) -> int:
    """The number of events written. ``on_batch`` is called after each batch with events.

    With ``every_s`` it runs until SIGINT. Raises LocalError, also when a segment is damaged: the stream would count it as read,
    and the records behind the damage would be missing for good.
    """
    damaged = next((each for each in request.damage if each.path), None)
    if damaged is not None:
        raise LocalError(
            f"{damaged.reason}; nothing was written: restore the file, or move it out of {request.events} until it is restored"
        )
    progress("reading new segments")
    written, last_batch = 0, -1
    with spark_errors(request.events), _interrupted() as interrupted:
        query = _start(spark, request)
        try:
            while not interrupted.is_set():
                ended = query.awaitTermination(POLL_S)
                for batch in query.recentProgress:
                    if batch.batchId <= last_batch or not batch.numInputRows:
                        continue
                    last_batch = batch.batchId
                    written += _events_of(batch)
                    progress(f"{written:,} events in {request.lake}")
                    on_batch()
                if ended:
                    break
        except KeyboardInterrupt:
            return written
        finally:
            _stop(query)
    return written


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that SIGINT sets; a second SIGINT raises KeyboardInterrupt.

    Spark's own handler calls into Java in the middle of another call to it, and both fail.
    """
    interrupted = threading.Event()

    def on_signal(*_: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _start(spark: SparkSession, request: CompactRequest) -> StreamingQuery:
    try:
        segments = (
            spark.readStream.schema(event_schema())
            .option("pathGlobFilter", "*.jsonl.zst")
            .option("recursiveFileLookup", "false")
            .option("maxFilesPerTrigger", FILES_PER_BATCH)
            .option("maxFileAge", "36500d")  # a segment that arrives late must be read, too
            .json(request.events)
        )
    except AnalysisException as exc:
        raise LocalError(f"{request.events}: no event log here: {error_line(str(exc))}") from exc
    writer = (
        segments.transform(without_repeats)
        .transform(with_hour_of_event)
        .writeStream.format("parquet")
        .partitionBy("date", "hour")
        .option("checkpointLocation", f"{request.output}/checkpoint")
        .option("path", request.lake)
    )
    if request.every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{request.every_s} seconds").start()


def without_repeats(events: DataFrame) -> DataFrame:
    """A stream of events, each once, by the columns IDENTITY."""
    columns = [F.col(name) for name in events.columns]
    return (
        events.select("*", F.current_timestamp().alias("seen"))
        .withWatermark("seen", REPEATS_KNOWN_FOR)
        .dropDuplicatesWithinWatermark(list(IDENTITY))
        .select(*columns)
    )


def with_hour_of_event(events: DataFrame) -> DataFrame:
    """Events with ``date`` and ``hour`` of their own time instead of the segment's; one partition for each hour."""
    time = F.timestamp_millis("time_ms")
    own = [F.col(name) for name in events.columns if name not in ("date", "hour")]
    dated = events.select(*own, F.to_date(time).alias("date"), F.hour(time).alias("hour"))
    return dated.repartition("date", "hour")


def _events_of(batch: StreamingQueryProgress) -> int:
    """The number of rows that a batch has written: those read, without repeats."""
    return sum(operator.numRowsUpdated for operator in batch.stateOperators)


def _stop(query: StreamingQuery) -> None:
    """Stop after the current batch: interrupting it makes Spark's thread fail."""
    if query.isActive:
        with contextlib.suppress(PySparkException):
            query.processAllAvailable()
        query.stop()
