"""Receiver and sender processes as tasks of the simulation's loop, with a real socket pair as their link.

``install`` replaces the way in which ``processes.supervisor`` starts one. What belongs to a process is found by ``OWNER``, a
variable of the context that its tasks, and the protocols of its connections, run in. A process ends when its link does, and when it
is killed: then its tasks are cancelled, its connections end for their other side, and it gets no byte more.

Processes share what a module has once: the log level, traces and caches of files.

Example: ``running(loop)[0].kill()`` kills the oldest process.
"""

import asyncio
import os
import socket
import subprocess
from collections.abc import Sequence
from contextvars import copy_context
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

from tests.simulation.virtual import OWNER, VirtualLoop
from zonemta_py.processes import supervisor

BEAT_S = 60.0
SILENT_S = 600.0
FIRST_PID = 1_000_000  # greater than any of Linux


class SimulatedProcess:
    """``subprocess.Popen`` of a child process, as far as the supervisor uses it."""

    def __init__(self, command: Sequence[str], *, pass_fds: Sequence[int], **_: Any) -> None:
        self._loop = cast(VirtualLoop, asyncio.get_running_loop())
        self.pid = FIRST_PID + next(self._loop.pids)
        self._is_dead = False
        self._link = socket.socket(fileno=os.dup(pass_fds[0]))
        descriptors = [os.dup(each) for each in pass_fds]
        run = import_module(command[command.index("-m") + 1]).run
        context = copy_context()
        context.run(OWNER.set, self)
        self._loop.processes.append(self)
        self._loop.create_task(run(BEAT_S, *descriptors), context=context)

    def kill(self) -> None:
        """End it at once."""
        if self._is_dead:
            return
        self._is_dead = True
        self._loop.processes.remove(self)
        self._loop.network.kill(self)
        self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()
        for task in self._loop.tasks_of(self):
            task.cancel()

    def wait(self, timeout: float | None = None) -> int:
        """Its link has ended, and so it ends."""
        self.kill()
        return 0


def install() -> None:
    """Start processes as tasks from now on."""
    used = SimpleNamespace(
        Popen=SimulatedProcess, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    vars(supervisor)["subprocess"] = used
    supervisor.ChildProcess.beat_s = BEAT_S
    supervisor.ChildProcess.silent_s = SILENT_S


def running(loop: VirtualLoop) -> list[SimulatedProcess]:
    """The processes that run, the oldest first."""
    return list(loop.processes)
