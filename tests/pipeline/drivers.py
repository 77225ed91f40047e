"""``zonemta pipeline`` as a process of its own that a test may kill at any time."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.kit.deadlines import until
from zonemta_py.bench.process import CommandProcess, process_tree
from zonemta_py.cli.main import main

DONE_S = 180.0
COMPLETE = "exists; choose another directory, or replace it with --overwrite"  # of an output
FAST = ("--master", "local[2]", "--heap", "512m")


async def run(*arguments: str) -> dict[str, Any]:
    """Run ``zonemta pipeline`` in this process, in the session of all tests (``kept_session``); returns what it printed.

    It takes a fifth of the time of one that starts its own Java.
    """
    done = await asyncio.to_thread(CliRunner().invoke, main, ["pipeline", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Job:
    """``zonemta pipeline`` in a process of its own. ``module``: that which runs the command."""

    def __init__(self, directory: Path, *arguments: str, module: str = "zonemta_py") -> None:
        self.child = CommandProcess(
            ["pipeline", *arguments, *FAST, "--json"],
            directory / "job.log",
            module,
            environment={"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )

    def ended(self) -> bool:
        """Whether the driver has ended."""
        return self.child.process.poll() is not None

    async def kill_when(self, holds: Callable[[], bool], what: str) -> None:
        """Kill the driver and its Java at once. The test fails if the job ends before."""
        process = self.child.process
        try:
            await until(lambda: holds() or process.poll() is not None, what, DONE_S)
            assert process.poll() is None, (
                f"it ended before {what}: {self.child.log.read_text()[-3000:]}"
            )
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Kill the driver, its Java and their workers."""
        for pid in process_tree(self.child.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        await asyncio.to_thread(self.child.kill)

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        self.child.process.send_signal(signal.SIGINT)

    async def result(self) -> dict[str, Any]:
        """Wait for the end; returns what it printed."""
        process = self.child.process
        await until(lambda: process.poll() is not None, "the end of the job", DONE_S)
        text = await asyncio.to_thread(self.child.output)
        assert process.returncode == 0, f"{text} {self.said()}"
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    async def result_if_new(self) -> dict[str, Any] | None:
        """As ``result``; None when the job says that its output is complete already."""
        process = self.child.process
        await until(lambda: process.poll() is not None, "the end of the job", DONE_S)
        if process.returncode == 1 and self.said().rstrip().endswith(COMPLETE):
            await asyncio.to_thread(self.child.kill)
            return None
        return await self.result()

    def said(self) -> str:
        """The end of its log."""
        return self.child.log.read_text()[-3000:]
