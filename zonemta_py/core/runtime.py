"""Threads, background tasks, signals and the event loop of a process.

``Threads`` does work that releases the interpreter lock: disk writes, RSA. A ThreadPoolExecutor passes each item with a future, a
condition and two locks; while the event loop is busy, each of them contends for the interpreter lock, a fifth of the time of small
messages. Here an item is passed once each way, and results that are ready together are delivered together.

States of an item: put ─▶ running in a thread ─▶ in ``_results`` ─▶ ``done`` called on the loop.

Invariants:

- Work starts in the order of ``put``; with one thread it also ends in this order.
- ``done`` is called exactly once, on the loop, with a result or an exception; work that raises does not end its thread, and a
  ``done`` that raises does not stop the others.
- ``_lock`` protects ``_results`` and ``_scheduled``; at most one ``_deliver`` is scheduled at a time.
- A task of ``BackgroundTasks`` that fails is logged, and the others continue.
- A process of the relay starts with signals blocked, and unblocks them when its handlers are set: none ends it in between, none
  is lost.

Callers: ``queue.commit`` (one writer), ``delivery.dkim`` and ``dequeue`` have ``Threads``; the queue and the services have
``BackgroundTasks``; ``processes.supervisor`` and the commands use signals and ``loop_factory``.

Example: ``Threads(loop, "queue-writer").put(lambda: store.write(batch), done)`` calls ``done(None, None)`` on the loop.

Source: proc(5) for the use of a process, pthread_sigmask(3).
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import sysconfig
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

log = logging.getLogger(__name__)


Work = Callable[[], Any]
Done = Callable[[Any, Exception | None], None]  # the result, or the exception


class Threads:
    """``count`` threads that do work in the order of ``put``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, count: int = 1) -> None:
        self._loop = loop
        self._items: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._lock = Lock()  # of the next two
        self._results: list[tuple[Done, Any, Exception | None]] = []
        self._scheduled = False  # ``_deliver`` will run on the loop
        self._threads = [Thread(target=self._run, name=name, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def put(self, work: Work, done: Done) -> None:
        """Call ``work`` in a thread, then ``done`` on the loop."""
        self._items.put((work, done))

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            work, done = item
            result, failure = None, None
            try:
                result = work()
            except Exception as exc:
                failure = exc
            except BaseException as exc:  # sys.exit() in a user's function must not end the thread
                failure = RuntimeError(f"it raised {exc!r}")
            with self._lock:
                self._results.append((done, result, failure))
                schedule, self._scheduled = not self._scheduled, True
            if schedule:
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            results, self._results, self._scheduled = self._results, [], False
        for done, result, failure in results:
            try:
                done(result, failure)
            except Exception:
                log.exception("a callback of a thread failed")

    def end(self) -> None:
        """End the threads after the work that was put; does not wait."""
        for _ in self._threads:
            self._items.put(None)

    def close(self) -> None:
        """End the threads after the work that was put, and wait for that."""
        self.end()
        for thread in self._threads:
            thread.join()


# ---- Background tasks.


class BackgroundTasks:
    """Tasks by name. An error that ends one is logged, and the others continue."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[object]] = []

    def start(self, work: Coroutine[object, object, object], name: str) -> None:
        """Run ``work`` until it ends or ``stop`` is called."""
        task: asyncio.Task[object] = asyncio.create_task(work, name=name)
        task.add_done_callback(_log_error)
        self.tasks.append(task)

    def running(self, prefix: str) -> int:
        """The number of tasks whose name begins with ``prefix`` and that have not ended."""
        return sum(task.get_name().startswith(prefix) and not task.done() for task in self.tasks)

    async def stop(self) -> None:
        """Cancel all tasks and wait for their end."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


def _log_error(task: "asyncio.Task[object]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("the queue's %s task stopped: %s", task.get_name(), task.exception())


# ---- The build of this Python, and its garbage collection.

SYSTEM_PREFIXES = ("/usr",)  # of distributions, which all build with profiles


def slow_build() -> str:
    """A warning if this interpreter was built without profile-guided optimisation; else empty."""
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    if not arguments or "--enable-optimizations" in arguments or sys.base_prefix in SYSTEM_PREFIXES:
        return ""
    return (
        f"the Python in {sys.base_prefix} was built without --enable-optimizations, and is a sixth slower than "
        "that of a distribution"
    )


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage collection meanwhile.

    For work in a thread that makes many objects which stay: each full collection visits all of them with the
    interpreter lock held, 0.1 s for a configuration of 5,000 tenants.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# ---- Signals to the whole process group (Ctrl-C, the stop of a service manager) while a process starts.
#
# Until its handlers are set they would end it, or raise KeyboardInterrupt anywhere. Blocked, they wait.

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)


def block() -> None:
    """Let signals wait, here and in processes that are started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


def unblock() -> None:
    """Receive signals, and those that wait: the handlers are set."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


@contextmanager
def blocked() -> Iterator[None]:
    """Start a process in this context: signals to it wait until it calls ``unblock``."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- The use of a process, as the kernel counts it (proc(5)).

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_use(pid: int) -> tuple[int, float] | None:
    """Anonymous memory (bytes) and CPU time (s) of a process; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    except (OSError, ValueError, IndexError):
        return None
    return (resident - shared) * PAGE_BYTES, (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def open_descriptors() -> int | None:
    """The number of file descriptors of this process; None where it is not known."""
    try:
        with os.scandir("/proc/self/fd") as entries:
            return sum(1 for _ in entries)
    except OSError:
        return None


# ---- The event loop; the only importer of uvloop.


def loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed, else None: it halves the CPU time of sending."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop
