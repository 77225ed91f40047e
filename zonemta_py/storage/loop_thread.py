"""An event loop in a thread of its own: a store's calls are plain, its client's are awaited."""

import asyncio
from collections.abc import Awaitable, Coroutine
from concurrent.futures import CancelledError
from threading import Thread
from typing import TypeVar

from zonemta_py.core.errors import LocalError

T = TypeVar("T")


async def _wait(work: Awaitable[T]) -> T:
    return await work


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class LoopThread:
    """Runs coroutines for callers in other threads, until ``close``."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        """The result of ``work``; whatever it raises. LocalError when the thread is closed meanwhile."""
        waiting = _wait(work)
        try:
            return asyncio.run_coroutine_threadsafe(waiting, self._loop).result()
        except (CancelledError, RuntimeError) as exc:
            if isinstance(exc, RuntimeError) and not self._loop.is_closed():
                raise
            waiting.close()
            if isinstance(work, Coroutine):
                work.close()
            raise LocalError("the store is closed") from exc

    def close(self) -> None:
        """End the thread, and what is still under way in it; closed already, it is nothing."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
