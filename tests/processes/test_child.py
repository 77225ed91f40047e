"""A child process: it ends when its work does, and its parent notices every kind of end."""

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.kit.deadlines import scaled, until
from zonemta_py.core import runtime
from zonemta_py.core.codec import unpacker
from zonemta_py.processes.supervisor import ChildProcess

STUBBORN = """
import asyncio, sys
from zonemta_py.processes.supervisor import child_main

async def stubborn():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def serve(beat_s):
    serve.task = asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)

sys.argv = ["child", "warning", "5"]
child_main(serve)
"""

FAILING = STUBBORN.replace("await asyncio.sleep(0)", "raise ValueError('a defect')")


def test_a_task_that_ignores_cancellation() -> None:
    """It once kept a sender running for hours after its relay was killed."""
    done = subprocess.run([sys.executable, "-c", STUBBORN], timeout=scaled(30), check=False)
    assert done.returncode == 0


PAUSED = STUBBORN.replace("await asyncio.sleep(0)", "os.kill(os.getpid(), signal.SIGSTOP)")
KILLED_BEFORE_IT = f"""
import os, signal, subprocess, sys
started = subprocess.Popen([sys.executable, "-c", "import os, signal" + {PAUSED!r}])
os.waitid(os.P_PID, started.pid, os.WSTOPPED)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_process_that_hangs_ends_with_its_parent() -> None:
    """A receiver would keep its port, and the next start of the relay would be refused."""
    command = [sys.executable, "-c", KILLED_BEFORE_IT]
    done = subprocess.run(command, timeout=scaled(30), check=False, stdout=subprocess.PIPE)
    # The output has ended: no process has it open.
    assert done.returncode == -signal.SIGKILL


def test_a_defect_ends_the_process_with_a_log_line() -> None:
    command = [sys.executable, "-c", FAILING]
    done = subprocess.run(command, timeout=scaled(30), check=False, capture_output=True)
    assert done.returncode == 1
    assert b"this process failed" in done.stderr
    assert b"a defect" in done.stderr


class EchoChild(ChildProcess):
    """Runs ``tests.processes.echo``, which returns every frame."""

    kind = "echo"
    module = "tests.processes.echo"

    def __init__(self, slot: int, on_lost: Any) -> None:
        super().__init__(slot, unpacker(bytes), on_lost)
        self.frames: list[bytes] = []
        self.abandoned = 0

    def _handle(self, frame: bytes) -> None:
        self.frames.append(frame)

    def _abandon_work(self) -> None:
        self.abandoned += 1


async def start(lost: list[EchoChild]) -> EchoChild:
    child = EchoChild(0, lost.append)
    await child.start("warning")
    return child


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_frames_go_both_ways_until_it_is_closed() -> None:
    lost: list[EchoChild] = []
    child = await start(lost)
    child.send(b"one")
    child.send_now(b"two")
    await until(lambda: child.frames == [b"one", b"two"], "both frames")
    await child.close()
    await until(lambda: lost == [child], "the end of the link")
    assert child.gone
    assert child.abandoned == 1
    assert not is_running(child.pid)
    child.send(b"three")  # without effect


async def test_signals_are_ignored() -> None:
    """The queue's process decides: a signal to the process group must not end its children."""
    lost: list[EchoChild] = []
    child = await start(lost)
    child.send(b"started")
    await until(lambda: child.frames, "the process to serve")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(child.pid, number)
    child.send(b"running")
    await until(lambda: child.frames[-1] == b"running", "an answer after the signals")
    await child.close()


async def test_signals_before_it_has_handlers() -> None:
    """While it imports its modules, they wait."""
    child = await start([])
    for number in runtime.HANDLED:
        os.kill(child.pid, number)
    child.send(b"started")
    await until(lambda: child.frames or child.gone, "an answer")
    assert not child.gone
    await child.close()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(runtime.HANDLED), (
        "handled here as before"
    )


async def test_a_killed_process_is_lost_once() -> None:
    lost: list[EchoChild] = []
    child = await start(lost)
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: lost, "the end of the link")
    await child.close()
    assert lost == [child]
    assert child.abandoned == 1


async def test_a_silent_process_is_killed_at_the_second_check(caplog: pytest.LogCaptureFixture) -> None:
    """One check is not enough: after a pause of the parent, beats are still unread."""
    lost: list[EchoChild] = []
    child = await start(lost)
    child.send(b"started")
    await until(lambda: child.frames, "the process to serve")
    os.kill(child.pid, signal.SIGSTOP)
    child.silent_s = 0.0
    child.check_alive()
    assert "killed" not in caplog.text
    child.check_alive()
    assert f"echo 0 (pid {child.pid}) has sent nothing for" in caplog.text
    await until(lambda: lost, "the end of the link")
    await child.close()


async def test_a_frame_resets_the_checks(caplog: pytest.LogCaptureFixture) -> None:
    child = await start([])
    child.send(b"started")
    await until(lambda: child.frames, "the process to serve")
    for silent_s in (0.0, 3600.0, 0.0):  # silent, heard, silent: never twice in a row
        child.silent_s = silent_s
        child.check_alive()
    assert "killed" not in caplog.text
    await child.close()


async def test_a_program_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(OSError, match="nonexistent"):
        await EchoChild(0, lambda child: None).start("warning")


async def test_its_end_is_awaited_in_the_loop() -> None:
    """``end`` does not wait; ``close`` does, without blocking the loop."""
    lost: list[EchoChild] = []
    child = await start(lost)
    child.end()
    assert not lost
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    await child.close()
    counting.cancel()
    assert turns > 1
    assert not is_running(child.pid)
