"""A driver is killed at a named moment; the same command, run again, completes the work."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.deadlines import until
from tests.pipeline.campaigns import LETTER, PERSONAL, relay_and_sinks, write_list
from zonemta_py.bench.process import CommandProcess, process_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 12_000  # more than the recipients of the first round
DONE_S = 180.0
FAST = ("--master", "local[2]", "--heap", "512m", "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # fmt: skip


class Job:
    """``zonemta pipeline`` in a process of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.child = CommandProcess(
            ["pipeline", *arguments, *FAST, "--json"],
            directory / "job.log",
            environment={"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )

    async def kill_when(self, holds: Callable[[], bool], what: str) -> None:
        """Kill the driver and its Java at once. The test fails if the job ends before."""
        process = self.child.process
        try:
            await until(lambda: holds() or process.poll() is not None, what, DONE_S)
            assert process.poll() is None, (
                f"it ended before {what}: {self.child.log.read_text()[-3000:]}"
            )
        finally:
            for pid in process_tree(process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            await asyncio.to_thread(self.child.kill)

    async def result(self) -> dict[str, Any]:
        """Wait for the end; returns what it printed."""
        process = self.child.process
        await until(lambda: process.poll() is not None, "the end of the job", DONE_S)
        text = await asyncio.to_thread(self.child.output)
        assert process.returncode == 0, f"{text} {self.child.log.read_text()[-3000:]}"
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found


def plan_arguments(directory: Path, letter: bytes) -> list[str]:
    rows = [[f"u{n:05d}@d{n % 3}.example", "x"] for n in range(COUNT)]
    write_list(directory / "list.csv", rows)
    (directory / "letter.eml").write_bytes(letter)
    return [
        "plan", str(directory / "list.csv"), "--message", str(directory / "letter.eml"), "--from", "n@example.com",
        "--campaign", "june", "--output", str(directory / "plan"),
    ]  # fmt: skip


@pytest.mark.parametrize("moment", ["envelopes", "message"])
async def test_a_plan(spark: "SparkSession", directory: Path, moment: str) -> None:
    arguments = plan_arguments(directory, LETTER)
    await Job(directory, *arguments).kill_when((directory / "plan" / moment).exists, moment)
    found = await Job(directory, *arguments).result()
    assert (found["planned"], found["input"]) == (COUNT, COUNT)
    assert spark.read.parquet(f"{directory}/plan/envelopes").count() == found["envelopes"]


@pytest.mark.parametrize("moment", [1, COUNT - 1000])
async def test_a_run(spark: "SparkSession", directory: Path, moment: int) -> None:
    """Killed after the first message, before there is a row, and in the second round."""
    await Job(directory, *plan_arguments(directory, PERSONAL)).result()
    async with relay_and_sinks(directory) as here:
        arguments = ["send", str(directory / "plan"), "--relay", here.target]
        await Job(directory, *arguments).kill_when(lambda: len(here.delivered()) >= moment, "deliveries")
        found = await Job(directory, *arguments).result()
        assert (found["accepted"], found["unsent"], found["earlier"]) == (COUNT, 0, 0)
        await until(lambda: len(here.delivered()) >= COUNT, "every delivery", DONE_S)
        delivered = here.delivered()
        assert (len(delivered), len(set(delivered))) == (COUNT, COUNT)
