"""Threads for work that releases the interpreter lock: disk writes, RSA.

A ThreadPoolExecutor passes each item with a future, a condition and two locks. While the event loop is busy,
each of them contends for the interpreter lock; that took a fifth of the time of small messages. Here an
item is passed once each way, and results that are ready together are passed together.
"""

import asyncio
import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

Work = Callable[[], Any]
Done = Callable[[Any, Exception | None], None]  # the result, or the exception

log = logging.getLogger(__name__)


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
        """See ``end``; blocks until the threads have ended."""
        self.end()
        for thread in self._threads:
            thread.join()
