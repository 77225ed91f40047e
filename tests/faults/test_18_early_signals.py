"""18. A signal before the relay has its handlers waits for them: it neither ends the relay nor is it lost."""

import os
import select
import signal
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled, until_blocking
from tests.kit.relay import Stage, staged
from zonemta_py.bench.process import CommandProcess, process_tree

# Found before the installed click, which is among the first modules that the command imports.
EARLY = """
import os, signal, sys
from pathlib import Path
here = str(Path(__file__).parent)
sys.path.remove(here)
del sys.modules["click"]
{action}
import click
"""


def started(directory: Path, action: str) -> CommandProcess:
    """``zonemta serve`` in a process group of its own, which executes ``action`` while it imports its modules."""
    early = directory / "early"
    early.mkdir()
    (early / "click.py").write_text(EARLY.format(action=action))
    arguments = ["serve", "-c", str(directory / "zonemta.yaml")]
    return CommandProcess(arguments, directory / "log", environment={"PYTHONPATH": str(early)})


async def configured(stage: Stage, processes: int) -> None:
    stage.config(processes={"receivers": processes, "senders": processes})


async def test_hangup_and_alarm_while_modules_are_imported(directory: Path) -> None:
    """They wait: the configuration is read again once the relay runs."""
    async with staged(directory) as stage:
        await configured(stage, 0)
        sent = "os.kill(os.getpid(), signal.SIGHUP); os.kill(os.getpid(), signal.SIGALRM)"
        relay = started(directory, sent)
        try:
            relay.wait_ready()
            log = directory / "log"
            until_blocking(lambda: "configuration reloaded" in log.read_text(), "the reload")
            until_blocking(lambda: "flushed: 0 recipients" in log.read_text(), "the flush")
            assert relay.stop() == 0
        finally:
            relay.kill()


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
async def test_a_stop_while_modules_are_imported(directory: Path, number: str) -> None:
    """It is a stop in order."""
    async with staged(directory) as stage:
        await configured(stage, 0)
        relay = started(directory, f"os.kill(os.getpid(), signal.{number})")
        try:
            assert relay.process.wait(scaled(60)) == 0
            assert "Traceback" not in (directory / "log").read_text()
        finally:
            relay.kill()


async def test_hangups_to_all_processes_while_they_start(directory: Path) -> None:
    """As of a terminal that is closed: receivers and senders get them as well, at any moment of their start."""
    async with staged(directory) as stage:
        await configured(stage, 2)
        relay = started(directory, f"os.setsid(); Path({str(directory / 'begun')!r}).touch()")
        try:
            until_blocking((directory / "begun").exists, "the first module")
            assert relay.process.stdout is not None
            while not select.select([relay.process.stdout], [], [], 0.02)[0]:
                os.killpg(relay.pid, signal.SIGHUP)
            relay.wait_ready()
            os.killpg(relay.pid, signal.SIGHUP)
            assert len(process_tree(relay.pid)) == 5
            assert relay.stop() == 0
            log = (directory / "log").read_text()
            assert " ended; another starts" not in log, "no process had to be replaced"
            assert "Traceback" not in log
        finally:
            relay.kill()
