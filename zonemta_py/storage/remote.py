"""What the stores on a server have in common: keys and small values in memory, chunks of bodies remote.

The partition is leased, so this process is its only writer: once loaded, the copy in memory is complete.
A batch is written to the server first, then to memory. No read but that of a chunk asks the server.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Op
from zonemta_py.storage.lease import PartitionLease
from zonemta_py.storage.loop_thread import LoopThread
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.partitions import MAIL_PREFIXES

_had: dict[
    str, tuple[bytes, int]
] = {}  # node and boot of partitions that this process had open, by place

log = logging.getLogger(__name__)


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
        """See ``Store.fetch_chunk``."""
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
