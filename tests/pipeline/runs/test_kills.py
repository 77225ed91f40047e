"""A driver is killed at a named moment; the same command, run again in this process, completes the work."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from tests.kit.deadlines import until
from tests.pipeline.campaigns import LETTER, PERSONAL, relay_and_sinks, write_list
from tests.pipeline.drivers import DONE_S, Job, run
from tests.pipeline.rounds import FIRST_ROUND
from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS, delivered, write_segment
from zonemta_py.bench.process import process_tree

pytest.importorskip("pyspark")
from zonemta_py.pipeline.spark.session import INTERRUPTED, MESSAGE

SMALL_ROUNDS = "tests.pipeline.rounds"

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("kept_session")
COUNT = 12_000
SENT = FIRST_ROUND + 200
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.stream.error.file=/dev/null"


def plan_arguments(directory: Path, letter: bytes, count: int = COUNT) -> list[str]:
    rows = [[f"u{n:05d}@d{n % 3}.example", "x"] for n in range(count)]
    write_list(directory / "list.csv", rows)
    (directory / "letter.eml").write_bytes(letter)
    return [
        "plan", str(directory / "list.csv"), "--message", str(directory / "letter.eml"), "--from", "n@example.com",
        "--campaign", "june", "--output", str(directory / "plan"),
    ]  # fmt: skip


async def test_a_plan(spark: "SparkSession", directory: Path) -> None:
    """Other moments: ``tests/pipeline/kills``."""
    arguments = plan_arguments(directory, LETTER)
    await Job(directory, *arguments).kill_when((directory / "plan" / "message").exists, "a message")
    found = await run(*arguments)
    assert (found["planned"], found["input"]) == (COUNT, COUNT)
    assert spark.read.parquet(f"{directory}/plan/envelopes").count() == found["envelopes"]


async def test_ctrl_c(directory: Path) -> None:
    """One line, no stack of Java or Python, an exit code of its own; the same command completes the work."""
    arguments = plan_arguments(directory, LETTER)
    job = Job(directory, *arguments)
    await until((directory / "plan").exists, "the output", DONE_S)
    job.interrupt()
    await until(job.ended, "the end of the job", DONE_S)
    assert job.child.process.returncode == INTERRUPTED
    lines = [line for line in job.said().splitlines() if "incubator modules" not in line]
    assert lines == [MESSAGE.decode().strip()]
    await job.kill()
    assert (await run(*arguments))["planned"] == COUNT


async def test_java_ends(directory: Path) -> None:
    """As after an OutOfMemoryError: one line, and the same command completes the work."""
    arguments = plan_arguments(directory, LETTER)
    job = Job(directory, *arguments)
    await until((directory / "plan").exists, "the output", DONE_S)
    for pid in process_tree(job.child.pid)[1:]:
        with suppress(OSError):  # a worker that has ended
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                os.kill(pid, signal.SIGKILL)
    await until(job.ended, "the end of the job", DONE_S)
    assert job.child.process.returncode == 1
    assert "Traceback" not in job.said()
    assert job.said().splitlines()[-1].startswith("error: ")
    assert "Java has ended" in job.said()
    await job.kill()
    assert (await run(*arguments))["planned"] == COUNT


@pytest.mark.parametrize("moment", [0, FIRST_ROUND + 100])
async def test_a_run(spark: "SparkSession", directory: Path, moment: int) -> None:
    """Killed before there is a ledger, and in the second round; at other moments by ``tests/pipeline/kills``."""
    await run(*plan_arguments(directory, PERSONAL, SENT))
    async with relay_and_sinks(directory) as here:
        arguments = [str(directory / "plan"), "--relay", here.target]
        await Job(directory, "send", *arguments, module=SMALL_ROUNDS).kill_when(
            lambda: len(here.delivered()) >= moment, "deliveries"
        )
        assert (directory / "plan" / "ledger").exists() == (moment > 0)
        found = await run("send", *arguments)
        assert (found["accepted"], found["unsent"], found["earlier"]) == (SENT, 0, 0)
        await until(lambda: len(here.delivered()) >= SENT, "every delivery", DONE_S)
        delivered = here.delivered()
        assert (len(delivered), len(set(delivered))) == (SENT, SENT)


def write_events(directory: Path, first: int, count: int) -> None:
    """A segment of ``count`` deliveries, spread over hours of their own."""
    records = [
        delivered(n, time_ms=HOUR_BEGINS_MS + n % 5 * HOUR_MS, domain=f"d{n % 50}.example")
        for n in range(first, first + count)
    ]
    write_segment(directory, f"s{first}", records)


@pytest.mark.parametrize("moment", ["staging", "read"])
async def test_compact(spark: "SparkSession", directory: Path, moment: str) -> None:
    """Killed while it writes, and when it begins to move files: each event is in the table once, after the next run."""
    write_events(directory / "log", 1, 20_000)
    output = directory / "lake"
    arguments = ["compact", str(directory / "log"), "--output", str(output)]
    await Job(directory, *arguments).kill_when((output / moment).exists, moment)
    await run(*arguments)
    write_events(directory / "log", 20_001, 100)
    assert (await run(*arguments))["records"] == 100
    table = spark.read.parquet(str(output / "events"))
    assert table.count() == table.select("seq").distinct().count() == 20_100
    assert not (output / "staging").exists()


def hive_settings(directory: Path) -> list[str]:
    """Those of a catalog that is there for the next process; one task writes one file, so that a commit is atomic."""
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory}/metastore;create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.sql.files.minPartitionNum": "1",
        "spark.driver.extraJavaOptions": JAVA,
    }
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


async def test_compact_into_a_table(spark: object, directory: Path) -> None:
    """Killed when its file is in a partition that the metastore may not know yet: the next run finds it all the same."""
    write_events(directory / "log", 1, 20_000)
    output, table = directory / "state", directory / "warehouse" / "events"
    arguments = ["compact", str(directory / "log"), "--output", str(output), "--table", "events"]
    arguments += hive_settings(directory)
    await Job(directory, *arguments).kill_when(lambda: any(table.glob("date=*/*.parquet")), "a file")
    assert (output / "moving.json").exists()
    assert (await Job(directory, *arguments).result())["records"] == 0, (
        "the run is finished, not done again"
    )
    assert not (output / "moving.json").exists()
    found = ds.dataset(table, format="parquet").to_table(columns=["seq"]).column("seq")
    assert sorted(found.to_pylist()) == list(range(1, 20_001))


@pytest.mark.parametrize("moment", ["sums", "_next/rates"])
async def test_a_report_that_is_kept_up_to_date(directory: Path, moment: str) -> None:
    """Killed while it writes sums, and before its tables are in place: each event counts once, after the next run."""
    write_events(directory / "log", 1, 20_000)
    output = directory / "report"
    arguments = ["report", str(directory / "log"), "--output", str(output), "--update"]
    await Job(directory, *arguments).kill_when((output / moment).exists, moment)
    assert (await run(*arguments))["delivered"] == 20_000
    write_events(directory / "log", 20_001, 100)
    assert (await run(*arguments))["delivered"] == 20_100
    assert not (output / "_next").exists()


async def test_compact_that_goes_on(directory: Path) -> None:
    """A stream, killed in the middle of its second batch: the next one finishes it, and ends in order when it is interrupted."""
    write_events(directory / "log", 1, 2000)
    output = directory / "lake"
    arguments = ["compact", str(directory / "log"), "--output", str(output), "--interval", "1s"]
    stream = Job(directory, *arguments)
    await until(lambda: compacted(output) == list(range(1, 2001)), "the first batch", DONE_S)
    await until(lambda: not (output / "staging").exists(), "its end", DONE_S)
    before = set(output.glob("read/*"))
    write_events(directory / "log", 2001, 20_000)

    def is_near() -> bool:
        """It writes, or it has written and begins to move."""
        return set(output.glob("read/*")) != before or (output / "staging").exists()

    await stream.kill_when(is_near, "a batch")
    stream = Job(directory, *arguments)
    write_events(directory / "log", 22_001, 100)
    await until(lambda: compacted(output) == list(range(1, 22_101)), "everything", DONE_S)
    stream.interrupt()
    await stream.result()
    assert compacted(output) == list(range(1, 22_101))
    assert not (output / "staging").exists()
    assert not (output / "moving.json").exists()


def compacted(output: Path) -> list[int]:
    """The sequence numbers in the table, in order; those of files that are there now."""
    try:
        found = ds.dataset(output / "events", format="parquet").to_table(columns=["seq"]).column("seq")
    except OSError:  # there is no table yet, or a file has just been moved
        return []
    return sorted(found.to_pylist())
