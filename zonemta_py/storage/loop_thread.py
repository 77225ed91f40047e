"""An event loop in a thread of its own, for the asynchronous clients behind the blocking calls of a store."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from threading import Lock, Thread
from typing import TypeVar

from zonemta_py.core.errors import LocalError

CANCEL_AGAIN_S = 0.2

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of callers in other threads and on other loops, until ``close``.

    ``errors`` are the client's exceptions; callers get LocalError with ``label`` instead.
    """

    def __init__(self, name: str, label: str, errors: tuple[type[Exception], ...] = ()) -> None:
        self._label = label
        self._errors = errors
        self._loop = asyncio.new_event_loop()
        self._lock = Lock()  # nothing is submitted once ``_closing`` is set
        self._closing = False
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``, blocking. Raises LocalError, also when closed meanwhile."""
        return self._submit(work).result()

    def start(self, work: Awaitable[object]) -> None:
        """Run ``work`` until it ends or the thread is closed."""
        self._submit(work)

    async def wait(self, work: Awaitable[T]) -> T:
        """Like ``run``, without blocking the calling loop."""
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Awaitable[T]) -> Future[T]:
        with self._lock:
            if not self._closing:
                return asyncio.run_coroutine_threadsafe(self._guarded(work), self._loop)
        if isinstance(work, Coroutine):
            work.close()
        raise self._closed()

    async def _guarded(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except self._errors as exc:
            raise LocalError(f"{self._label}: {exc}") from exc
        except asyncio.CancelledError:
            if self._closing:
                raise self._closed() from None
            raise

    def _closed(self) -> LocalError:
        return LocalError(f"{self._label}: the store is closed")

    def close(self, disconnect: Callable[[], Awaitable[object]] | None = None) -> None:
        """Cancel what is running, then call ``disconnect`` and end the thread. A second call does nothing.

        In this order, because a request that is cancelled while it connects may leave a connection with its client.
        Raises LocalError when ``disconnect`` fails; the thread ends nevertheless.
        """
        with self._lock:
            if self._closing:
                return
            self._closing = True
        try:
            asyncio.run_coroutine_threadsafe(self._end(disconnect), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self, disconnect: Callable[[], Awaitable[object]] | None) -> None:
        await _cancel_others()
        if disconnect is not None:
            try:
                await disconnect()
            except self._errors as exc:
                raise LocalError(f"{self._label}: {exc}") from exc


async def _cancel_others() -> None:
    """End every other task. A client may lose a cancellation that comes with an answer, so it is repeated."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=CANCEL_AGAIN_S)
