"""Plans, lists and submissions that the tests of the pipeline share."""

import csv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.relay import Stage, relaying, staged
from zonemta_py.config.load import parse_config
from zonemta_py.pipeline.send.submission import SubmitOptions
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule
from zonemta_py.sink.server import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from zonemta_py.pipeline.events.log import EventLog
    from zonemta_py.pipeline.plan.request import PlanManifest
    from zonemta_py.pipeline.report.job import ReportRequest
    from zonemta_py.pipeline.send.job import SendCounts


LETTER = b"From: n@example.com\r\nSubject: hi\r\n\r\nhello\r\n"
PERSONAL = (
    b"From: n@example.com\r\nSubject: hi {{name}}\r\n\r\nhello {{ name }}\r\n"  # has a merge field
)


def no_progress(text: str) -> None:
    """Ignores the steps of a job."""


def write_list(path: Path, rows: list[list[str]], head: tuple[str, ...] = ("email", "name")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
    return path


def suppressed(text: str) -> dict[str, dict[str, str]]:
    """The rows of a suppression file that the product wrote, by entry."""
    rows = csv.DictReader(line for line in text.splitlines(True) if not line.startswith("#"))
    return {row["entry"]: row for row in rows}


def content(spark: "SparkSession", path: str) -> str:
    """The text of a file on this machine or in an object store."""
    from zonemta_py.pipeline.spark.files import read_bytes

    return read_bytes(spark, path).decode()


def sorted_rows(table: "DataFrame") -> list[str]:
    """The rows of a small table, as text in an order that does not depend on its files."""
    return sorted(str(row) for row in table.collect())


def copy(spark: "SparkSession", source: Path, target: str) -> None:
    """Copy a file, or the files below a directory, to a place on this machine or in an object store."""
    from zonemta_py.pipeline.spark.files import write_bytes

    for file in [source] if source.is_file() else sorted(source.rglob("*")):
        if file.is_file():
            name = "" if file == source else f"/{file.relative_to(source)}"
            write_bytes(spark, f"{target}{name}", file.read_bytes())


def plan(
    spark: "SparkSession", source: Path | str, output: Path | str, **changes: Any
) -> "PlanManifest":
    """Plan ``source`` with settings of the tests."""
    from zonemta_py.pipeline.plan.job import make_plan
    from zonemta_py.pipeline.plan.request import PlanRequest

    settings: dict[str, Any] = {
        "campaign": "june", "sender": "n@example.com", "message": LETTER, "slots": 4,
        "config": parse_config("{}", Path("z.yaml")), **changes,
    }  # fmt: skip
    request = PlanRequest(source=str(source), output=str(output), **settings)
    return make_plan(spark, request, no_progress).manifest


def submit_options(*targets: str, **changes: Any) -> SubmitOptions:
    settings: dict[str, Any] = {
        "sender": "n@example.com",
        "message": PERSONAL,
        "relays": targets,
        **changes,
    }
    return SubmitOptions(**settings)


def send(spark: "SparkSession", directory: Path | str, options: SubmitOptions) -> "SendCounts":
    """Submit the plan in ``directory``."""
    from zonemta_py.pipeline.send.job import send_plan

    return send_plan(spark, str(directory), options, no_progress)


def open_log(spark: "SparkSession", path: Path | str) -> "EventLog":
    """An event log, verified."""
    from zonemta_py.pipeline.events import log

    return log.open_log(spark, str(path))


def report(spark: "SparkSession", request: "ReportRequest") -> dict[str, Any]:
    """Make a report; returns the sums."""
    from zonemta_py.pipeline.report.job import make_report

    return make_report(spark, request, open_log(spark, request.events), no_progress)


def write_sent_plan(
    spark: "SparkSession", directory: Path | str, sender: str, rows: list[tuple[Any, ...]]
) -> str:
    """A plan of version 1 with a ledger of ``rows``; returns its directory."""
    from pyspark.sql.types import StructType

    from zonemta_py.pipeline.spark import tables

    count, campaign = len(rows), rows[0][0]
    manifest = (1, campaign, sender, False, 1, 0, count, count, 0, 0, 0, len({row[1] for row in rows}))
    of_version_1 = StructType(tables.MANIFEST.fields[: len(manifest)])
    spark.createDataFrame([manifest], of_version_1).write.parquet(f"{directory}/manifest")
    of_version_1 = StructType(tables.LEDGER.fields[: len(rows[0])])
    spark.createDataFrame(rows, of_version_1).write.parquet(f"{directory}/ledger/run=1")
    return str(directory)


class RelayAndSinks:
    """A relay, and the three sinks that it delivers to."""

    def __init__(self, stage: Stage, relay: Relay, sinks: list[Sink]) -> None:
        self.stage = stage
        self.relay = relay
        self.sinks = sinks

    @property
    def target(self) -> str:
        return str(self.relay.addresses[0])

    def delivered(self) -> list[str]:
        """The recipients of all deliveries, sorted."""
        return sorted(a for sink in self.sinks for m in sink.messages for a in m.recipients)


@asynccontextmanager
async def relay_and_sinks(directory: Path, *rules: Rule, **changes: Any) -> AsyncIterator[RelayAndSinks]:
    async with staged(directory) as stage:
        sinks = [await stage.receiver(f"d{n}.example", *rules) for n in range(3)]
        async with relaying(stage.config(**changes)) as relay:
            yield RelayAndSinks(stage, relay, sinks)


def addresses(count: int) -> list[str]:
    return [f"u{n:04d}@d{n % 3}.example" for n in range(count)]


def personal_plan(spark: "SparkSession", directory: Path, count: int, **changes: Any) -> Path:
    """A plan with a message of its own for each of ``addresses(count)``."""
    listed = write_list(directory / "list.csv", [[address, "x"] for address in addresses(count)])
    plan(spark, listed, directory / "plan", message=PERSONAL, **changes)
    return directory / "plan"
