"""Child processes of one kind: how many there are, and a new one for each that ends or hangs.

States of a slot: started ─ its first configuration is used ─▶ ready ─ its link ends ─▶ gone ─ pause ─▶ started. A child that is not ready in
READY_TIMEOUT_S, or silent for ``silent_s`` at two checks, is ended.

Invariants:

- The link is the life of a child: it ends when its link does, and its link ends when it does. ``on_lost`` is called once.
- A child that does not end within EXIT_TIMEOUT_S of its link is killed. On Linux the kernel kills it with the queue's process, too.
- Children ignore signals: the queue's process gets them, and decides.
- ``children`` has ready processes only; ``available`` is set while there is one.
- The pause before a restart doubles from BACK_OFF_S to BACK_OFF_MAX_S; an uptime of STEADY_S resets it for the restart after this one.
- A child reads the text of the configuration. So there are none for one that a program has changed (``process_counts``).

Callers: ``ReceiverPool`` and ``SenderPool`` have a ``ProcessSupervisor``; ``ReceiverChild`` and ``SenderChild`` are its children;
``child_main`` runs in them. The relay asks ``process_counts``.

Example: receiver 1 is killed. Its link ends, its work is abandoned, the log says "receiver 1 (pid 4711) ended; another starts in 0.1 s".

Source: prctl(2), PR_SET_PDEATHSIG.
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
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.config.values import AUTO
from zonemta_py.core import clock, faults, runtime
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.core.logs import configure_logs, parse_target
from zonemta_py.core.runtime import loop_factory
from zonemta_py.processes.link import Link

log = logging.getLogger(__name__)


# ---- A child process: how it is started and watched here, and what runs in it first.
#
# Its arguments are ``LEVEL BEAT_S FD…``: the log level, the seconds between two beats, its end of the
# link, then inherited sockets.

READY_TIMEOUT_S = 30.0  # from the start of a process to its Ready or Configured
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
EXIT_TIMEOUT_S = 5.0  # from the end of the link to the end of the process


class ChildProcess(ABC):
    """The parent's side of one process. A subclass handles its frames.

    ``slot`` is its 0-based number among the processes of its kind. ``on_lost`` is called once with the
    child when the link has ended. ``ready``: true if it could use its configuration.
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
                with runtime.blocked():
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
        for number in runtime.HANDLED:
            loop.add_signal_handler(number, lambda: None)
        runtime.unblock()
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


# ---- supervisor

BACK_OFF_S = 0.1
BACK_OFF_MAX_S = 30.0
STEADY_S = 60.0  # after this uptime the next start is not delayed
AUTO_MAX = 4  # processes of a kind: one queue does not occupy more


def cores() -> int:
    """The number of processors this process may use."""
    return len(os.sched_getaffinity(0))


def process_counts(config: Config, cores_here: int, hooks: Hooks = NO_HOOKS) -> tuple[int, int]:
    """The numbers of receivers and senders; ``auto`` depends on the processors.

    On two or three cores there is one receiver. From four on, each kind gets a
    quarter of them; the remaining ones are for the queue, LevelDB's thread and the system. No receivers
    where there are policies: their functions may keep a state. No other process where the configuration
    is not what its text says, which the others read; ConfigError if they were asked for by number.
    """
    receivers, senders = int(config.processes.receivers), int(config.processes.senders)
    quarter = min(cores_here // 4, AUTO_MAX)
    if receivers == AUTO:
        fewest = min((listener.max_sessions for listener in config.listeners), default=0)
        alone = cores_here == 1 or config.policies or hooks.policies
        receivers = 0 if alone else min(fewest, max(quarter, 1))
    if senders == AUTO:
        senders = quarter
    if (receivers or senders) and not _is_as_written(config):
        if max(config.processes.receivers, config.processes.senders) > 0:
            raise ConfigError(
                "processes: the receivers and senders read the text of the configuration, and this one was "
                "changed by the program: write its text again (zonemta_py.parse_config), or use 0 of both"
            )
        return 0, 0
    return receivers, senders


_parsed = lru_cache(maxsize=1)(parse_config)


def _is_as_written(config: Config) -> bool:
    """True if ``config`` equals what its text says, except for keys that only the queue's process uses."""
    written = replace(
        _parsed(config.text, Path(config.path), config.included),
        queue=config.queue,
        events=config.events,
        admin=config.admin,
        processes=config.processes,
    )
    return written == config


C = TypeVar("C", bound=ChildProcess)


class ProcessSupervisor(Generic[C]):
    """Keeps ``size`` processes running.

    ``children`` are the running ones; ``available`` is set while there is one. ``launch`` starts the
    process for a slot, or raises OSError; a child reports its end to ``on_lost``.
    """

    def __init__(self, kind: str, size: int, launch: Callable[[int], Awaitable[C]]) -> None:
        self.children: list[C] = []
        self.available = asyncio.Event()
        self._kind = kind
        self._launch = launch
        self._back_off_s = [BACK_OFF_S] * size
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._restarts: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start all of them. Raises LocalError when one cannot be started."""
        slots = range(len(self._back_off_s))
        for result in await asyncio.gather(*map(self._start_one, slots), return_exceptions=True):
            if isinstance(result, OSError):
                raise LocalError(f"a {self._kind} process cannot be started: {result}") from result
            if result is not None:
                raise result
        self._spawn(self._watch(), self._tasks)

    def missing(self) -> str:
        """Names of the processes that do not run, for an operator; empty when all do."""
        there = {child.slot for child in self.children}
        gone = [f"{self._kind} {slot}" for slot in range(len(self._back_off_s)) if slot not in there]
        return " and ".join(gone)

    def stop_restarting(self) -> None:
        """Start no process any more; one that is being started is ended."""
        self._closing = True
        for task in self._restarts:
            task.cancel()

    async def close(self) -> None:
        """End all processes, and wait for them; none is started again."""
        self.stop_restarting()
        for task in self._tasks:
            task.cancel()
        if self._tasks or self._restarts:
            await asyncio.wait(self._tasks | self._restarts)
        await asyncio.gather(*(child.close() for child in list(self.children)))

    def on_lost(self, child: C) -> None:
        """``child`` has ended: start another in its slot."""
        if child in self.children:
            self.children.remove(child)
            if not self.children:
                self.available.clear()
            self._replace(child)

    async def _start_one(self, slot: int) -> None:
        child = await self._launch(slot)
        if child.gone:  # it ended before it was in ``children``, so ``on_lost`` did nothing
            self._replace(child)
            return
        self.children.append(child)
        self.available.set()

    def _replace(self, child: C) -> None:
        if self._closing:
            return
        slot = child.slot
        wait_s = self._back_off_s[slot]
        steady = clock.monotonic_s() - child.started_s >= STEADY_S
        self._back_off_s[slot] = BACK_OFF_S if steady else min(2 * wait_s, BACK_OFF_MAX_S)
        log.error("%s %d (pid %d) ended; another starts in %.1f s", self._kind, slot, child.pid, wait_s)
        self._spawn(self._start_after(slot, wait_s), self._restarts)

    async def _start_after(self, slot: int, wait_s: float) -> None:
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self._start_one(slot)
            except Exception as exc:
                log.critical("%s %d cannot be started: %s", self._kind, slot, exc)
                wait_s = min(2 * wait_s, BACK_OFF_MAX_S)
            else:
                return

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(ChildProcess.beat_s)
            for child in self.children:
                child.check_alive()

    def _spawn(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
