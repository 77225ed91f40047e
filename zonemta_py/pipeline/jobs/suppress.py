"""From events to a suppression file, as ``zonemta pipeline plan --suppress`` reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from zonemta_py import clock
from zonemta_py.pipeline.events import read_events
from zonemta_py.pipeline.failures import told
from zonemta_py.pipeline.transforms.bounces import HARD, hard_bounces

DAY_MS = 86_400_000

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """Whose hard bounces count: those of the last ``days``, from ``times`` on."""

    events: str
    output: Path
    days: int = 180
    times: int = 1


def make_suppression(spark: SparkSession, request: Request, step: Step) -> int:
    """Write the file; how many entries it has. Raises LocalError."""
    step("looking for hard bounces")
    since_ms = clock.now_ms() - request.days * DAY_MS
    found = read_events(spark, request.events).transform(hard_bounces(HARD, since_ms, request.times))
    count = 0
    temporary = request.output.with_name(f".{request.output.name}.part")
    try:
        with told(request.events), temporary.open("w", encoding="utf-8") as file:
            file.write(
                f"# made by zonemta pipeline suppress, {clock.utc(clock.now_ms()):%Y-%m-%d %H:%M} UTC\n"
            )
            for row in found.orderBy("entry").toLocalIterator():
                file.write(f"{row['entry']}, {row['reason']}\n")
                count += 1
        temporary.replace(request.output)
    finally:
        temporary.unlink(missing_ok=True)
    return count
