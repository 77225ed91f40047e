"""Group commit: all batches that wait become one synced write.

States of a batch, and of the group that it is in::

    submitted ─▶ in the group that is being written ─▶ on disk ─▶ its future is done
                                 └──▶ failed: so is every batch behind it, and every later one

Invariants:

- ``GroupCommit`` is the only writer of a store, and writes one group at a time, in a thread; batches are written in the order of
  ``submit``. A batch is never divided, so it is on disk completely or not at all.
- When a future is done without a failure, its batch is on disk. Every group is synced, where ``sync`` is set: when LevelDB's
  memtable fills, LevelDB switches logs without fsync, so a synced marker would not make earlier unsynced chunks durable (decision 5).
- A group that holds events also puts them under one ``outbox/`` key, so that the event log neither misses nor invents one.
- The first failure is final: after it nothing is written until the queue is opened again.
- The census has counted what is on disk; ``between_groups`` is called when that is exact.

Callers: every part of the queue that changes something, by ``submit``; ``Queue.recover`` starts it.

Example: while a group is being written, 200 messages are accepted. Their batches are the next group: one fsync, then 200 futures.

Source: group commit, DeWitt et al., "Implementation techniques for main memory database systems", 1984.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from zonemta_py.core import faults
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.counters import Histogram
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.core.runtime import Threads
from zonemta_py.events.schema import Event, encode, identify
from zonemta_py.queue.format.keys import META_IDS, MessageIds, outbox_key
from zonemta_py.queue.format.records import (
    CensusLabels,
    RecipientState,
    SealedRecord,
    pack_outbox,
    pack_record,
)
from zonemta_py.storage.interface import Op, Store

log = logging.getLogger(__name__)


# ---- A batch: what one transition writes, whole or not at all, and the future of the write.

DoneCallback = Callable[[QueueUnavailable | None], None]
# Zone, message, domain, state before and after (None: not in the queue), number of recipients, their labels
# if they enter or leave. A plain tuple: every message makes several.
Count = tuple[str, str, str, RecipientState | None, RecipientState | None, int, CensusLabels | None]


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

    def finish(self, failure: QueueUnavailable | None = None) -> None:
        """The data are on disk, or with ``failure`` never will be."""
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


# ---- group commit

GROUP_OPS_MAX = 2048  # a large group delays every batch behind it
GROUP_BYTES_MAX = 2 << 20
WRITES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
CATCH_UP_S = 0.01  # between two checks of a store that is behind

R = TypeVar("R")


class BatchCounter(Protocol):
    """The census, as group commit sees it: it counts the changes of batches."""

    def apply(self, batches: Sequence[WriteBatch]) -> None:
        """Count the changes of ``batches``, which are on disk, before their futures are done."""


class GroupCommit:
    """The only writer of a store. ``census`` counts what is written.

    ``groups`` counts writes (one fsync each), ``batches`` the batches in them, ``write_s`` is how long they took;
    ``written_seq`` is the
    number of the last group with events that is on disk.
    """

    def __init__(
        self,
        store: Store,
        ids: MessageIds,
        node: str,
        next_seq: int,
        census: BatchCounter,
        *,
        sync: bool,
    ) -> None:
        self._store = store
        self._census = census
        self._ids = ids
        self._node = node
        self._next_seq = next_seq
        self.written_seq = next_seq - 1
        self._sync = sync
        self._waiting: deque[WriteBatch] = deque()
        self._group: list[WriteBatch] = []  # being written
        self._looks: list[Callable[[], None]] = []  # for the end of the group
        self._delayed: list[WriteBatch] = []  # on disk, their results delayed
        self._scheduled = False  # ``_write_group`` will be called at the end of this turn of the loop
        self._thread: Threads | None = None
        self._ids_written = ids.last
        self.failure: QueueUnavailable | None = None
        self.failed = asyncio.Event()
        self.outbox_grew = asyncio.Event()
        self.groups = 0
        self.write_s = Histogram(WRITES_S)
        self._began_s = 0.0
        self.batches = 0

    def start(self) -> None:
        """Begin to write; needs a running loop."""
        self._loop = (
            asyncio.get_running_loop()
        )  # cached: before Python 3.12 get_running_loop() calls getpid()
        self._thread = Threads(self._loop, "queue-writer")

    def submit(self, batch: WriteBatch) -> CommitFuture:
        """Put ``batch`` into the next group; returns its future."""
        if self.failure is not None:
            batch.future.finish(self.failure)
            return batch.future
        self._waiting.append(batch)
        if not self._scheduled and not self._group:
            self._scheduled = True  # at the end of this turn: other batches may come until then
            self._loop.call_soon(self._write_group)
        return batch.future

    def _write_group(self) -> None:
        self._scheduled = False
        if self._group or not self._waiting:
            return
        assert self._thread is not None
        self._group = group = self._take_group()
        if faults.armed:
            faults.reach_all((kind for batch in group for kind in batch.kinds), "unwritten")
        try:
            write = self._store.batch(self._ops(group), sync=self._sync)
        except Exception as exc:  # a defect here must not leave the group waiting
            self._written(None, exc)
        else:
            self._began_s = monotonic_s()
            self._thread.put(partial(self._store.write, write), self._written)

    def _written(self, _: None, exc: Exception | None) -> None:
        group, self._group = self._group, []
        if exc is not None:
            self._fail(group, exc)
            return
        if faults.armed:
            faults.reach_all((kind for batch in group for kind in batch.kinds), "written")
        self.write_s.add(monotonic_s() - self._began_s)
        self.groups += 1
        self.batches += len(group)
        if self.written_seq != self._next_seq - 1:  # it had events
            self.written_seq = self._next_seq - 1
            self.outbox_grew.set()
        self._census.apply(group)
        self._look()
        self._scheduled = True  # behind the callbacks, whose batches are in the next group, too
        self._loop.call_soon(self._write_group)
        for batch in group:
            if batch.may_wait and self._store.is_behind():
                self._delay(batch)
            else:
                batch.future.finish()

    async def between_groups(self, look: Callable[[], R]) -> R:
        """The result of ``look``, called when what is on disk is what the census has counted.

        It must be short: nothing is written meanwhile.
        """
        if not self._group:
            return look()
        found: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def answer() -> None:
            if found.done():
                return
            try:
                found.set_result(look())
            except Exception as exc:
                found.set_exception(exc)

        self._looks.append(answer)
        return await found

    def _look(self) -> None:
        looks, self._looks = self._looks, []
        for look in looks:
            look()

    def _delay(self, batch: WriteBatch) -> None:
        """Complete the future of a ``may_wait`` batch once the store has caught up (decision 38)."""
        if not self._delayed:
            self._loop.call_later(CATCH_UP_S, self._end_delay)
        self._delayed.append(batch)

    def _end_delay(self) -> None:
        if self._thread is not None and self._store.is_behind():
            self._loop.call_later(CATCH_UP_S, self._end_delay)
            return
        delayed, self._delayed = self._delayed, []
        for batch in delayed:
            batch.future.finish()

    def _take_group(self) -> list[WriteBatch]:
        group: list[WriteBatch] = []
        ops = size_bytes = 0
        waiting = self._waiting
        while waiting and ops < GROUP_OPS_MAX and size_bytes < GROUP_BYTES_MAX:
            batch = waiting.popleft()
            group.append(batch)
            ops += len(batch.ops) + len(batch.latest)
            size_bytes += batch.size_bytes
        return group

    def _ops(self, group: list[WriteBatch]) -> list[Op]:
        ops, events, latest = list[Op](), list[bytes](), dict[bytes, bytes | None]()
        for batch in group:
            ops += batch.ops
            events += batch.events
            if batch.latest:
                latest.update(batch.latest)
        ops += latest.items()
        if events:
            lines = identify(self._node, self._next_seq, events)
            ops.append((outbox_key(self._next_seq), pack_outbox(lines)))
            self._next_seq += 1
        if self._ids.last != self._ids_written:
            self._ids_written = self._ids.last
            ops.append((META_IDS, self._ids_written.encode()))
        return ops

    def _fail(self, group: list[WriteBatch], exc: Exception) -> None:
        """A failed write is final for this database: refuse every waiting and later batch."""
        if not isinstance(exc, QueueUnavailable):
            log.error("a group could not be written", exc_info=exc)
            exc = QueueUnavailable(f"internal error: {exc!r}")
        log.critical("the queue cannot be written, new mail is refused: %s", exc)
        self.failure = exc
        self.failed.set()
        self._look()
        self._waiting.extendleft(reversed(group))
        self._refuse_waiting(exc)

    def _refuse_waiting(self, failure: QueueUnavailable) -> None:
        refused = list(self._waiting)
        self._waiting.clear()
        for batch in refused:
            batch.future.finish(failure)

    async def close(self) -> None:
        """Write the waiting batches, refuse those that follow, then stop. Call it before the store is closed."""
        if self._thread is None:
            return
        if self.failure is None:
            with suppress(QueueUnavailable):
                await self.submit(WriteBatch())
        thread, self._thread = self._thread, None
        self.failure = self.failure or QueueUnavailable("the queue is closed")
        self._refuse_waiting(self.failure)
        await self._loop.run_in_executor(None, thread.close)  # behind the group that is being written
        self._end_delay()
