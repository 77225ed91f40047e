"""A child process: how it is started and watched here, and what runs in it first.

Its arguments are ``LEVEL BEAT_S FD…``: the log level, the seconds between two beats, its end of the
link, then inherited sockets.
"""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from zonemta_py.core import clock, faults, signals
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import LocalError
from zonemta_py.core.logs import configure_logs, parse_target
from zonemta_py.core.loop import loop_factory
from zonemta_py.processes.link import Link

READY_TIMEOUT_S = 30.0  # from the start of a process to its Ready or Configured
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
EXIT_TIMEOUT_S = 5.0  # from the end of the link to the end of the process

log = logging.getLogger(__name__)


class ChildProcess(ABC):
    """The parent's side of one process. A subclass handles its frames.

    ``slot`` is its 0-based number among the processes of its kind. ``on_lost`` is called once with the
    child when the link has ended. ``ready``: whether it could use its configuration.
    """

    kind = "child"  # in log lines
    module = ""  # what the process runs
    beat_s = 5.0  # between two beats of the process
    silent_s = 60.0  # without a frame or beat for this time, it hangs

    def __init__(
        self, slot: int, decode: Callable[[bytes | memoryview], Any], on_lost: Callable[[Any], None]
    ) -> None:
        self.slot = slot
        self.started_s = clock.monotonic_s()
        self.gone = False
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._was_silent = False
        self._on_lost = on_lost
        self._link = Link(pack, decode, self._handle, self._link_ended)

    async def start(self, log_target: str, fds: Sequence[int] = ()) -> None:
        """Start the process with its end of the link, and ``fds``. Raises OSError.

        -P: a file in the current directory must not replace a module.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            numbers = [str(fd) for fd in (theirs.fileno(), *fds)]
            try:
                with signals.blocked():
                    self._process = subprocess.Popen(  # noqa: ASYNC220 - short, and waited for in a thread
                        [
                            sys.executable,
                            "-P",
                            "-m",
                            self.module,
                            log_target,
                            str(self.beat_s),
                            *numbers,
                        ],
                        pass_fds=[theirs.fileno(), *fds],
                        stdin=subprocess.DEVNULL,
                    )
            except BaseException:
                ours.close()
                raise
        self.pid = self._process.pid
        ours.setblocking(False)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=ours)
        except BaseException:
            self._process.kill()
            raise

    async def wait_ready(self) -> None:
        """Return when it is ready. Raises OSError when it is not in time, or ends."""
        try:
            await asyncio.wait([self.ready], timeout=READY_TIMEOUT_S)
        except BaseException:
            self.end()
            raise
        if not self.ready.done() or not self.ready.result():
            await self.close()
            raise OSError(f"process {self.pid} did not become ready")

    def is_ready(self) -> None:
        """The process has its configuration."""
        if not self.ready.done():
            self.ready.set_result(True)

    def send(self, frame: Any) -> None:
        """Send a frame; without effect once the process is gone."""
        self._link.send(frame)

    def send_now(self, frame: Any) -> None:
        """Send a frame before anything else happens: a client that connects after this sees its effect."""
        self._link.send(frame)
        self._link.flush()

    @abstractmethod
    def _handle(self, frame: Any) -> None:
        """A frame from the process."""

    @abstractmethod
    def _abandon_work(self) -> None:
        """The process is gone: end what it had not finished."""

    def check_alive(self) -> None:
        """Kill the process if it was silent for ``silent_s``, at this check and at the one before.

        Two checks: when this process itself was paused, the beats of that time are still unread.
        """
        silent_s = clock.monotonic_s() - self._link.heard_s
        if silent_s < self.silent_s:
            self._was_silent = False
        elif not self._was_silent:
            self._was_silent = True
        else:
            log.error(
                "%s %d (pid %d) has sent nothing for %.0f s: killed",
                self.kind, self.slot, self.pid, silent_s,
            )  # fmt: skip
            self._process.kill()

    def _link_ended(self) -> None:
        self.gone = True
        if not self.ready.done():
            self.ready.set_result(False)
        self._abandon_work()
        asyncio.get_running_loop().run_in_executor(None, self._reap)
        self._on_lost(self)

    def _reap(self) -> None:
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            log.error("%s %d (pid %d) does not end: killed", self.kind, self.slot, self.pid)
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """End the link, and with it the process, without waiting."""
        self._link.close()

    async def close(self) -> None:
        """End the process, and wait for it."""
        self.end()
        await asyncio.get_running_loop().run_in_executor(None, self._reap)


# ---- in the child


def not_configured(link: Link, exc: Exception, *, has_other: bool) -> None:
    """A configuration cannot be used. Without another one this process ends: the queue's process starts one that reads it again."""
    what = "the one before stays in use" if has_other else "this process ends"
    is_defect = not isinstance(exc, LocalError | OSError)
    log.critical(
        "the configuration cannot be used, %s: %s", what, exc, exc_info=exc if is_defect else None
    )
    if not has_other:
        link.close()


def child_main(serve: Callable[..., Awaitable[None]]) -> None:
    """Run ``serve(beat_s, *fds)`` until it returns, then end at once.

    A child ignores signals: the queue's process receives them too, and decides. It ends when its link does.
    """
    _die_with_parent()
    configure_logs(parse_target(sys.argv[1]))
    if faults.VARIABLE in os.environ:
        faults.arm(os.environ[faults.VARIABLE])
    beat_s, fds = float(sys.argv[2]), [int(text) for text in sys.argv[3:]]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in signals.HANDLED:
            loop.add_signal_handler(number, lambda: None)
        signals.unblock()
        gc.collect()
        gc.freeze()  # the objects of start-up are never garbage
        gc.set_threshold(50_000, 20, 100)
        try:
            await serve(beat_s, *fds)
        except Exception:
            log.exception("this process failed")
            os._exit(1)
        # At once: cancelling running tasks, and waiting for them, may take forever.
        os._exit(0)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run())


def _die_with_parent() -> None:
    """Also a process that hangs, or is stopped, is killed with the thread that started it: the loop of the queue's process.

    It would keep the port of its listeners. Only Linux has this; elsewhere the end of the link must do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
