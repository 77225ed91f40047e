"""An event loop in a thread of its own: a store's calls are plain, its client's are awaited."""

import asyncio
from collections.abc import Awaitable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


async def _wait(work: Awaitable[T]) -> T:
    return await work


class LoopThread:
    """Runs coroutines for callers in other threads, until ``close``."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        """The result of ``work``; whatever it raises."""
        return asyncio.run_coroutine_threadsafe(_wait(work), self._loop).result()

    def close(self) -> None:
        """End the thread; nothing of it may be under way."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
