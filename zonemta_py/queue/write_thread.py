"""The thread that writes: one item after the other, with as few hand-overs as can be.

A ThreadPoolExecutor does it with a future, a condition and two locks for each item. Beside a busy
loop each of them is a fight for the interpreter lock, which costs both threads: with them a fifth
of the time of small mail went into switching.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

Done = Callable[[Exception | None], None]


class WriteThread:
    """Calls ``write(item)`` in a thread of its own and ``done(failure)`` on the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, write: Callable[[Any], None], done: Done
    ) -> None:
        self._loop = loop
        self._write = write
        self._done = done
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._thread = Thread(target=self._run, name="queue-writer", daemon=True)
        self._thread.start()

    def put(self, item: Any) -> None:
        """Write ``item``, which is not None, behind those put before."""
        self._items.put(item)

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            failure = None
            try:
                self._write(item)
            except Exception as exc:
                failure = exc
            self._loop.call_soon_threadsafe(self._done, failure)

    def close(self) -> None:
        """Write what was put, then end the thread."""
        self._items.put(None)
        self._thread.join()
