"""A batch: what one transition writes, whole or not at all, and the future of the write."""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable
from typing import Any

from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.events.schema import Event, encode
from zonemta_py.queue.format.records import CensusLabels, RecipientState, SealedRecord, pack_record
from zonemta_py.storage.interface import Op

DoneCallback = Callable[[QueueUnavailable | None], None]
# Zone, message, domain, state before and after (None: not in the queue), number of recipients, their labels
# if they enter or leave. A plain tuple: every message makes several.
Count = tuple[str, str, str, RecipientState | None, RecipientState | None, int, CensusLabels | None]

log = logging.getLogger(__name__)


class CommitFuture:
    """The result of a write: done without a failure once the data are on disk.

    Like ``asyncio.Future``, with two differences: a callback is a plain call, made at once and given
    the failure or None, and cancelling a waiter does not cancel the write. With asyncio futures the
    three batches of a message took a tenth of its delivery: one turn of the loop for each.
    """

    __slots__ = ("_callbacks", "done", "failure")

    def __init__(self) -> None:
        self.done = False
        self.failure: QueueUnavailable | None = None
        self._callbacks: list[DoneCallback] = []

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call ``callback`` in the order of the calls of this method; at once when already done."""
        if self.done:
            callback(self.failure)
        else:
            self._callbacks.append(callback)

    def set_result(self) -> None:
        """The data are on disk."""
        self._finish(None)

    def set_exception(self, failure: QueueUnavailable) -> None:
        """The data will never be on disk."""
        self._finish(failure)

    def _finish(self, failure: QueueUnavailable | None) -> None:
        self.done, self.failure = True, failure
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(failure)
            except Exception:  # a defect in one callback must not stop the others
                log.exception("a callback of a commit failed")

    def __await__(self) -> Generator[Any, None, None]:
        """Raises QueueUnavailable when the write failed."""
        if not self.done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._callbacks.append(lambda _: None if waiter.done() else waiter.set_result(None))
            yield from waiter
        if self.failure is not None:
            raise self.failure


class WriteBatch:
    """The operations of one transition, written together or not at all; ``future`` is their result.

    ``kinds``: its transitions, as fault injection names them (``core/faults.py``). ``may_wait``: a chunk of
    a large body, whose future may be completed late, while the store compacts (decision 38). ``counts``: what
    it changes in the census. ``latest``: values of which only the last in a group is written; no ``ops`` may have their keys.
    """

    __slots__ = ("counts", "events", "future", "kinds", "latest", "may_wait", "ops", "size_bytes")

    def __init__(self) -> None:
        self.future = CommitFuture()
        self.may_wait = False
        self.ops: list[Op] = []
        self.latest: dict[bytes, bytes | None] = {}
        self.events: list[bytes] = []
        self.kinds: list[str] = []
        self.counts: list[Count] = []
        self.size_bytes = 0

    def put(self, key: bytes, value: bytes) -> None:
        """Write ``value`` under ``key``."""
        self.ops.append((key, value))
        self.size_bytes += len(value)

    def put_record(self, key: bytes, record: SealedRecord) -> None:
        """Write a record with its sum under ``key``."""
        self.put(key, pack_record(record))

    def put_records(self, records: Iterable[tuple[bytes, SealedRecord]]) -> None:
        """As ``put_record`` for each, without its call for every recipient of a message."""
        for key, record in records:
            value = pack_record(record)
            self.ops.append((key, value))
            self.size_bytes += len(value)

    def delete(self, key: bytes) -> None:
        """Delete ``key``, which need not exist."""
        self.ops.append((key, None))

    def put_latest(self, puts: Iterable[tuple[bytes, bytes]]) -> None:
        """Write each value under its key, unless a later batch of the group has another one; an empty value deletes the key."""
        for key, value in puts:
            self.latest[key] = value or None

    def record(self, event: Event) -> None:
        """Write ``event`` in the same group."""
        self.events.append(encode(event))
