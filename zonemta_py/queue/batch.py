"""The promise that something is on disk, or known: whoever waits is told by a plain call.

Group commit: whatever batches wait become one synced write.

Every group is synced. When LevelDB's memtable fills it switches logs without fsync, so a synced
marker would not make earlier unsynced chunks durable (decision 5). Each group that holds facts
also puts them under one ``outbox/`` key, so the ledger can neither miss nor invent one.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any

from zonemta_py.core import faults
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.core.threads import Threads
from zonemta_py.events.schema import Event, encode, identify
from zonemta_py.queue.format.ids import MessageIds
from zonemta_py.queue.format.keys import META_IDS, outbox_key
from zonemta_py.storage.interface import Op, Store

Then = Callable[[QueueUnavailable | None], None]

log = logging.getLogger(__name__)


class Promise:
    """Kept or broken, once, by ``end``.

    Awaiting it raises QueueUnavailable when it was broken; giving up on the wait changes nothing.
    """

    __slots__ = ("_then", "failure", "over")

    def __init__(self) -> None:
        self.over = False
        self.failure: QueueUnavailable | None = None
        self._then: list[Then] = []

    def then(self, call: Then) -> None:
        """Call ``call`` when it is kept, or with the failure; at once when that is so already.

        A plain call: a future and a turn of the loop for each of three batches a message cost a
        tenth of its delivery.
        """
        if self.over:
            call(self.failure)
        else:
            self._then.append(call)

    def end(self, failure: QueueUnavailable | None) -> None:
        """It is kept, or never will be; for the one who promised."""
        self.over, self.failure = True, failure
        calls, self._then = self._then, []
        for call in calls:
            try:
                call(failure)
            except Exception:  # a defect in one must not keep the others waiting
                log.exception("what follows a promise failed")

    def __await__(self) -> Generator[Any, None, None]:
        if not self.over:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._then.append(lambda _: None if done.done() else done.set_result(None))
            yield from done
        if self.failure is not None:
            raise self.failure


GROUP_OPS_MAX = 2048  # a group that takes long to build makes everybody wait
GROUP_BYTES_MAX = 2 << 20
CATCH_UP_S = 0.01  # between two looks at a store that is behind

log = logging.getLogger(__name__)


class Batch(Promise):
    """What one transition writes, all of it or none; and the promise of that, once submitted.

    ``kinds`` names it for ``faults``. ``patient``: who waits for it can wait a little longer.
    """

    __slots__ = ("events", "kinds", "ops", "patient", "size")

    def __init__(self) -> None:
        super().__init__()
        self.patient = False
        self.ops: list[Op] = []
        self.events: list[bytes] = []
        self.kinds: list[str] = []
        self.size = 0

    def put(self, key: bytes, value: bytes) -> None:
        """Write ``value`` under ``key``."""
        self.ops.append((key, value))
        self.size += len(value)

    def delete(self, key: bytes) -> None:
        """Remove ``key``; nothing happens if it is not there."""
        self.ops.append((key, None))

    def record(self, event: Event) -> None:
        """Put a fact into the same write."""
        self.events.append(encode(event))


class GroupCommit:
    """The single writer. ``groups`` counts writes (one fsync each), ``batches`` what they held."""

    def __init__(self, store: Store, ids: MessageIds, node: str, next_seq: int, *, sync: bool) -> None:
        self._store = store
        self._ids = ids
        self._node = node
        self._next_seq = next_seq
        self.written_seq = next_seq - 1  # the last group with facts that is on disk
        self._sync = sync
        self._waiting: deque[Batch] = deque()
        self._group: list[Batch] = []  # being written
        self._slowed: list[Batch] = []  # on disk, and nobody knows yet
        self._begins = False  # a look at what waits is on its way
        self._thread: Threads | None = None
        self._ids_written = ids.last
        self.failure: QueueUnavailable | None = None
        self.outbox_grew = asyncio.Event()
        self.groups = 0
        self.batches = 0

    def start(self) -> None:
        """Begin to write; needs a running loop."""
        self._loop = asyncio.get_running_loop()  # asked once: before 3.12 it costs a system call
        self._thread = Threads(self._loop, "queue-writer")

    def submit(self, batch: Batch) -> Batch:
        """Queue ``batch`` for the next group; returns it, the promise of its own write."""
        if self.failure is not None:
            batch.end(self.failure)
            return batch
        self._waiting.append(batch)
        if not self._begins and not self._group:
            self._begins = True  # at the end of this turn of the loop: others may come by then
            self._loop.call_soon(self._begin)
        return batch

    def _begin(self) -> None:
        """Hand what waits to the thread."""
        self._begins = False
        if self._group or not self._waiting:
            return
        assert self._thread is not None
        self._group = group = self._take()
        if faults.armed:
            faults.reach_all((kind for batch in group for kind in batch.kinds), "unwritten")
        try:
            write = self._store.batch(self._ops(group), sync=self._sync)
        except Exception as exc:  # a defect here must not leave everybody waiting
            self._written(None, exc)
        else:
            self._thread.put(partial(self._store.write, write), self._written)

    def _written(self, _: None, exc: Exception | None) -> None:
        """The group is on disk, or could not be written."""
        group, self._group = self._group, []
        if exc is not None:
            self._fail(group, exc)
            return
        if faults.armed:
            faults.reach_all((kind for batch in group for kind in batch.kinds), "written")
        self.groups += 1
        self.batches += len(group)
        if any(batch.events for batch in group):
            self.written_seq = self._next_seq - 1
            self.outbox_grew.set()
        self._begin()  # the thread works while the loop tells who waited
        if any(batch.patient for batch in group) and self._store.is_behind():
            self._slow_down([batch for batch in group if batch.patient])
            group = [batch for batch in group if not batch.patient]
        for batch in group:
            batch.end(None)

    def _slow_down(self, batches: list[Batch]) -> None:
        """Tell who brings large bodies only when the store has caught up (decision 38)."""
        if not self._slowed:
            self._loop.call_later(CATCH_UP_S, self._catch_up)
        self._slowed += batches

    def _catch_up(self) -> None:
        if self._thread is not None and self._store.is_behind():
            self._loop.call_later(CATCH_UP_S, self._catch_up)
            return
        slowed, self._slowed = self._slowed, []
        for batch in slowed:
            batch.end(None)

    def _take(self) -> list[Batch]:
        group: list[Batch] = []
        ops = size = 0
        waiting = self._waiting
        while waiting and ops < GROUP_OPS_MAX and size < GROUP_BYTES_MAX:
            batch = waiting.popleft()
            group.append(batch)
            ops += len(batch.ops)
            size += batch.size
        return group

    def _ops(self, group: list[Batch]) -> list[Op]:
        ops = [op for batch in group for op in batch.ops]
        events = [event for batch in group for event in batch.events]
        if events:
            ops.append((outbox_key(self._next_seq), identify(self._node, self._next_seq, events)))
            self._next_seq += 1
        if self._ids.last != self._ids_written:
            self._ids_written = self._ids.last
            ops.append((META_IDS, self._ids_written.encode()))
        return ops

    def _fail(self, group: list[Batch], exc: Exception) -> None:
        """A failed write is final for this database: refuse what waits and what comes."""
        if not isinstance(exc, QueueUnavailable):
            log.error("a group could not be written", exc_info=exc)
            exc = QueueUnavailable(f"internal error: {exc!r}")
        log.critical("the queue cannot be written, new mail is refused: %s", exc)
        self.failure = exc
        refused = [*group, *self._waiting]
        self._waiting.clear()
        for batch in refused:
            batch.end(exc)

    async def close(self) -> None:
        """Write what waits, then stop. LevelDB must not be closed before."""
        if self._thread is None:
            return
        if self.failure is None:
            with suppress(QueueUnavailable):
                await self.submit(Batch())
        await self._loop.run_in_executor(None, self._thread.close)
        self._thread = None
        self.failure = self.failure or QueueUnavailable("the queue is closed")  # for who comes late
        self._catch_up()
