"""From events and reports to a suppression file, as ``zonemta pipeline plan --suppress`` reads it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from zonemta_py.core import clock
from zonemta_py.pipeline.jobs.dsn import read_matched
from zonemta_py.pipeline.spark.errors import told
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.transforms.bounces import complaints, failures_in, hard_bounces, outcomes_of

DAY_MS = 86_400_000

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """Whose hard bounces count: those of the last ``days``, from ``times`` on; and complaints of so many.

    ``reports`` are folders that ``zonemta pipeline dsn`` wrote.
    """

    events: str
    output: Path
    days: int = 180
    times: int = 1
    reports: Sequence[str] = ()
    complaint_days: int = 3650


def make_suppression(spark: SparkSession, request: Request, step: Step) -> int:
    """Write the file; how many entries it has. Raises LocalError."""
    step("looking for hard bounces and complaints")
    now_ms = clock.now_ms()
    since_ms = now_ms - request.days * DAY_MS
    outcomes = outcomes_of(read_events(spark, request.events))
    mail = None
    for place in request.reports:
        reports = read_matched(spark, place)
        outcomes = outcomes.unionByName(failures_in(reports))
        mail = reports if mail is None else mail.unionByName(reports)
    found = outcomes.transform(hard_bounces(since_ms, request.times, request.days))
    if mail is not None:
        since_ms = now_ms - request.complaint_days * DAY_MS
        found = found.unionByName(mail.transform(complaints(since_ms, request.complaint_days)))
        # Who did both has one line: the one that holds longer.
        found = found.groupBy("entry").agg(
            F.max_by("reason", "until").alias("reason"), F.max("until").alias("until")
        )
    count = 0
    temporary = request.output.with_name(f".{request.output.name}.part")
    try:
        with told(request.events), temporary.open("w", encoding="utf-8") as file:
            file.write(f"# made by zonemta pipeline suppress, {clock.utc(now_ms):%Y-%m-%d %H:%M} UTC\n")
            for row in found.orderBy("entry").toLocalIterator():
                file.write(f"{row['entry']}, {row['reason']}, until {row['until']}\n")
                count += 1
        temporary.replace(request.output)
    finally:
        temporary.unlink(missing_ok=True)
    return count
