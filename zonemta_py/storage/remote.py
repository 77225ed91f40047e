"""Base of the stores on a server: keys and small values in memory, chunks of bodies remote.

Life of a store: lease acquired ─▶ loaded ─▶ open ─▶ lease lost, or failed, or closed. The last three are final.

Invariants:

- The partition is leased, so this process is its only writer: once loaded, the copy in memory is complete.
- A batch is written to the server first, then to memory. No read but that of a chunk asks the server.
- After a failed write or read nothing is written any more: memory may lack what the server has.
- The client runs on the loop of a ``LoopThread``; callers block (``run``) or wait on their own loop (``wait``).

Callers: ``RedisStore`` and ``S3Store`` implement ``_load``, ``_read_chunk``, ``_commit`` and ``_disconnect``.

Example: ``await store.fetch_chunk(key)`` reads a chunk without blocking the loop of the relay; ``store.get(key)`` blocks.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any, TypeVar

from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Op
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.shared import MAIL_PREFIXES, PartitionLease

log = logging.getLogger(__name__)


# ---- An event loop in a thread of its own, for the asynchronous clients behind the blocking calls of a store.

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


# ---- The store.

_had: dict[
    str, tuple[bytes, int]
] = {}  # node and boot of partitions that this process had open, by place


class RemoteBodyStore(MemoryStore, ABC):
    """One partition, leased from ``_open`` until ``close``. Memory holds a reference for each chunk.

    A write raises QueueUnavailable once the lease is lost, or any write or read has failed: a decision
    taken without the answer could lose mail.
    """

    def __init__(
        self, name: str, label: str, thread: LoopThread, lease: PartitionLease, place: str
    ) -> None:
        """``place``: the server, and where on it the partitions are."""
        super().__init__()
        self.name = name
        self._place = f"{place} {name}"
        self._label = label
        self._thread = thread  # where the client runs
        self._lease = lease
        self._failure = ""  # why nothing is written any more
        self._closed = False

    # ---- for each server

    @abstractmethod
    def _load(self) -> None:
        """Read keys and small values into memory. Raises LocalError, QueueCorrupt."""

    @abstractmethod
    async def _read_chunk(self, key: bytes, reference: bytes) -> bytes | None:
        """Read a chunk, on the client's loop. None when the server does not have it."""

    @abstractmethod
    def _commit(self, batch: list[Op]) -> None:
        """Write ``batch`` to the server, then to memory (``_apply``). Raises LocalError."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the client."""

    # ---- opening

    def _open(self) -> None:
        """Acquire the lease and load; the last step of a constructor. Raises QueueLocked, LocalError."""
        try:
            self._lease.acquire()
        except BaseException:
            self._disconnect()
            raise
        try:
            self._load()
        except BaseException:
            self._leave(mail=True)
            raise
        had = _had.get(self._place)
        if had is not None and self._opening()[0] != had[0]:
            log.critical(
                "%s: the server has lost the queue %s, which this process had open: the mail that was queued is "
                "gone. The event log has what was accepted: zonemta audit", self._label, had[0].decode(),
            )  # fmt: skip
        elif had is not None and self._opening()[1] < had[1]:
            log.critical(
                "%s: the server has lost the last changes of the queue, its boot is %d and was %d: mail may be gone, "
                "or be sent again", self._label, self._opening()[1], had[1],
            )  # fmt: skip

    def _opening(self) -> tuple[bytes, int]:
        """The node and the boot of the queue."""
        return super().get(keys.META_NODE) or b"", int(super().get(keys.META_BOOT) or b"0")

    # ---- reading

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        """Return the value of ``key``, or None. Blocks for a chunk. Raises QueueCorrupt."""
        value = super().get(key)
        if value is None or not keys.is_chunk(key):
            return value
        try:
            return self._thread.run(self._read_chunk(key, value))
        except LocalError as exc:
            raise self._unreadable(key, exc) from exc

    async def fetch_chunk(self, key: bytes) -> bytes | None:
        reference = super().get(key)
        if reference is None or not keys.is_chunk(key):
            return reference
        try:
            return await self._thread.wait(self._read_chunk(key, reference))
        except LocalError as exc:
            raise self._unreadable(key, exc) from exc

    def _unreadable(self, key: bytes, exc: LocalError) -> QueueCorrupt:
        """A read that failed is not damage, so nothing may be written because of it."""
        self._failure = f"{self._label}: {key.decode()} cannot be read: {exc}"
        return QueueCorrupt(self._failure)

    # ---- writing

    def batch(self, ops: Iterable[Op], *, sync: bool) -> Any:
        """Return the last operation on each key."""
        return list(dict(ops).items())

    def write(self, batch: Any) -> None:
        """Write ``batch``. Raises QueueUnavailable, also for every later batch."""
        self._lease.check()
        if self._failure:
            raise QueueUnavailable(self._failure)
        try:
            self._commit(batch)
        except LocalError as exc:
            self._failure = str(exc)
            raise QueueUnavailable(self._failure) from exc

    def _apply(self, batch: Iterable[Op], reference: bytes) -> None:
        """Write ``batch`` to memory."""
        super().write(self._with_reference(batch, reference))

    @staticmethod
    def _with_reference(batch: Iterable[Op], reference: bytes) -> Iterator[Op]:
        """``batch`` with ``reference`` in place of the values of chunks."""
        for key, value in batch:
            yield key, reference if value is not None and keys.is_chunk(key) else value

    def _size_of(self, key: bytes, value: bytes) -> int:
        return keys.CHUNK_BYTES if keys.is_chunk(key) else len(value)

    def is_remote(self) -> bool:
        """Return True: chunks are on the server."""
        return True

    # ---- closing

    def close(self) -> None:
        """Release the lease, with a notification when mail is left. A second call does nothing."""
        if self._closed:
            return
        # After a failed write memory may lack what the server has.
        mail = bool(self._failure) or any(
            next(self.keys(prefix, keys.end_of(prefix)), None) for prefix in MAIL_PREFIXES
        )
        self._leave(mail=mail)

    def _leave(self, *, mail: bool) -> None:
        self._closed = True
        if self._opening()[0]:
            _had[self._place] = self._opening()
        self._lease.release(mail=mail)
        self._disconnect()
