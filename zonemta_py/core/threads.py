"""Threads for work that leaves the interpreter lock alone: disk writes, RSA.

A ThreadPoolExecutor hands each item over with a future, a condition and two locks. Beside a busy
loop every one of them is a fight for the interpreter lock, which costs both sides: a fifth of the
time of small mail went there. Here an item is one hand-over each way, and results that come close
together share one.
"""

import asyncio
import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

Work = Callable[[], Any]
Done = Callable[[Any, Exception | None], None]  # the result, or why there is none

log = logging.getLogger(__name__)


class Threads:
    """``count`` threads that take work in the order it was put."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, count: int = 1) -> None:
        self._loop = loop
        self._items: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._lock = Lock()  # of what follows
        self._results: list[tuple[Done, Any, Exception | None]] = []
        self._told = False  # the loop will look
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
            except BaseException as exc:  # sys.exit() in somebody's function ends that, not the thread
                failure = RuntimeError(f"it raised {exc!r}")
            with self._lock:
                self._results.append((done, result, failure))
                tell, self._told = not self._told, True
            if tell:
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            results, self._results, self._told = self._results, [], False
        for done, result, failure in results:
            try:
                done(result, failure)
            except Exception:
                log.exception("what follows the work of a thread failed")

    def end(self) -> None:
        """Do what was put, then end the threads; nobody waits for that."""
        for _ in self._threads:
            self._items.put(None)

    def close(self) -> None:
        """The same, and it blocks until they have ended."""
        self.end()
        for thread in self._threads:
            thread.join()
