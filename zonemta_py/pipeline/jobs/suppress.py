"""Writes a suppression file from events and reports; ``zonemta pipeline plan --suppress`` reads it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.jobs.dsn import read_matched_reports
from zonemta_py.pipeline.rules.suppression import suppression_lines
from zonemta_py.pipeline.spark.event_log import EventLog
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.storage import write_lines
from zonemta_py.pipeline.transforms.bounces import (
    complaints,
    delivery_outcomes,
    hard_bounces,
    reported_failures,
)

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class SuppressRequest:
    """An address is listed for at least ``times`` hard bounces in ``days``, or a complaint in ``complaint_days``.

    ``reports``: what ``zonemta pipeline dsn`` wrote.
    """

    log: EventLog
    output: str
    days: int = 180
    times: int = 1
    reports: Sequence[str] = ()
    complaint_days: int = 3650


def make_suppression(spark: SparkSession, request: SuppressRequest, progress: Progress) -> int:
    """Write the file; returns the number of its entries. Raises LocalError."""
    log = request.log
    if not (log.segments or log.damage or log.is_compacted):
        # Such as a disk that is not mounted: a file without entries would suppress nothing.
        raise LocalError(f"{log.path}: has no events")
    progress("searching for hard bounces and complaints")
    now_ms = clock.now_ms()
    since_ms = now_ms - request.days * DAY_MS
    outcomes = delivery_outcomes(read_events(spark, request.log))
    reports = [read_matched_reports(spark, path) for path in request.reports]
    mail = reduce(lambda all_, each: all_.unionByName(each), reports) if reports else None
    if mail is not None:
        outcomes = outcomes.unionByName(mail.transform(reported_failures(outcomes)))
    found = outcomes.transform(hard_bounces(since_ms, request.times, request.days))
    if mail is not None:
        since_ms = now_ms - request.complaint_days * DAY_MS
        found = found.unionByName(mail.transform(complaints(since_ms, request.complaint_days)))
        # An address with both has one line: the one that applies longer.
        found = found.groupBy("entry").agg(
            F.max_by("reason", "until").alias("reason"), F.max("until").alias("until")
        )
    count = 0

    def rows() -> Iterator[list[str]]:
        nonlocal count
        for row in found.orderBy("entry").toLocalIterator():
            count += 1
            yield [row["entry"], row["reason"], row["until"]]

    comment = f"made by zonemta pipeline suppress, {clock.utc(now_ms):%Y-%m-%d %H:%M} UTC"
    with spark_errors(request.log.path):
        write_lines(spark, request.output, suppression_lines(comment, rows()))
    return count
