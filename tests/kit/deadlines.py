"""Deadlines that fit the machine: every wait of a test has one, and a slow machine is given more time.

A deadline is written for a usual machine without other work. ``scaled`` multiplies it by the slowness
of this machine, measured once per run, and by the load of the moment. Time limits of the product that
a test sets tight go through ``scaled`` or ``time_limit`` as well, or a slow machine would trip over them.
"""

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

DEADLINE_S = 30.0
MOST = 10.0  # deadlines grow by no more than this factor
SLOWNESS = "ZONEMTA_TEST_SLOWNESS"  # measured once, for the processes that a test starts as well

LOOPS = 400_000
LOOP_S = 0.035  # seconds of CPU that LOOPS take on a usual machine
START_S = 0.1  # seconds of CPU that an interpreter with asyncio takes to start
SYNCS = 10
SYNC_S = 0.005  # seconds that one fsync of a small file takes

_given = 1.0  # the greatest factor that ``scaled`` has used


@cache
def slowness() -> float:
    """How many times slower than the usual machine this one is: at least 1."""
    if SLOWNESS not in os.environ:
        measured = max(_loop_s() / LOOP_S, _start_s() / START_S, _sync_s() / SYNC_S, 1.0)
        os.environ[SLOWNESS] = f"{min(measured, MOST):.2f}"
    return float(os.environ[SLOWNESS])


def _loop_s() -> float:
    began_s = time.process_time()
    value = 0
    for number in range(LOOPS):
        value = (value * 31 + number) & 0xFFFF
    return time.process_time() - began_s


def _start_s() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-S", "-c", "import asyncio, json"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _sync_s() -> float:
    with tempfile.TemporaryFile() as file:
        began_s = time.monotonic()
        for _ in range(SYNCS):
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        return (time.monotonic() - began_s) / SYNCS


def load() -> float:
    """Processes that want a processor, for each processor: at least 1.

    The average of the last minute follows a burst too late, so the number of the moment counts too.
    """
    waiting = 0.0
    try:
        waiting = os.getloadavg()[0]
        waiting = max(waiting, float(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]))
    except (OSError, ValueError, IndexError):
        pass  # a system without it: the average alone
    return max(1.0, waiting / (os.cpu_count() or 1))


def scale() -> float:
    """The factor by which deadlines are longer now, 1 to MOST."""
    return min(MOST, slowness() * load())


def scaled(seconds: float) -> float:
    """``seconds`` of a usual machine, on this one, now. Deadlines that follow grow by that factor at least: they may wait for it."""
    global _given
    factor = scale()
    _given = max(_given, factor)
    return seconds * factor


def time_limit(seconds: float) -> str:
    """``scaled`` as a duration of a configuration file."""
    return f"{round(scaled(seconds) * 1000)}ms"


class Deadline:
    """A deadline that moves when the load rises after it was set."""

    def __init__(self, seconds: float = DEADLINE_S) -> None:
        self._seconds = seconds
        self._began_s = time.monotonic()
        self._scale = 1.0

    def passed(self) -> bool:
        """Whether the time is over."""
        elapsed_s = time.monotonic() - self._began_s
        if elapsed_s < self._seconds * self._scale:
            return False
        self._scale = max(self._scale, scale(), _given)
        return elapsed_s >= self._seconds * self._scale


async def until(condition: Callable[[], object], what: str = "", deadline_s: float = DEADLINE_S) -> None:
    """Return once ``condition()`` holds; fail when it does not in time."""
    deadline = Deadline(deadline_s)
    while not condition():
        assert not deadline.passed(), f"timed out waiting for {what or condition}"
        await asyncio.sleep(0.01)


async def eventually(
    ask: Callable[[], Awaitable[bool]], what: str, deadline_s: float = DEADLINE_S
) -> None:
    """As ``until``, for a condition that is itself awaited."""
    deadline = Deadline(deadline_s)
    while not await ask():
        assert not deadline.passed(), f"timed out waiting for {what}"


def until_blocking(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """As ``until``, outside an event loop."""
    deadline = Deadline(deadline_s)
    while not condition():
        assert not deadline.passed(), f"timed out waiting for {what}"
        time.sleep(0.02)
