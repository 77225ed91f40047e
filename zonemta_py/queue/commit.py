"""Group commit: whatever batches wait become one synced write.

Every group is synced. When LevelDB's memtable fills it switches logs without fsync, so a synced
marker would not make earlier unsynced chunks durable (decision 5). Each group that holds facts
also puts them under one ``outbox/`` key, so the ledger can neither miss nor invent one.
"""

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from zonemta_py import faults
from zonemta_py.errors import QueueUnavailable
from zonemta_py.events.schema import Event, encode, identify
from zonemta_py.queue.ids import MessageIds
from zonemta_py.queue.keys import META_IDS, outbox_key
from zonemta_py.queue.store import Op, Store

GROUP_OPS_MAX = 2048  # a group that takes long to build makes everybody wait
GROUP_BYTES_MAX = 2 << 20

log = logging.getLogger(__name__)


class Batch:
    """What one transition writes: all of it or none.

    ``kinds`` names it for ``faults``.
    """

    __slots__ = ("done", "events", "kinds", "ops", "size")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.events: list[bytes] = []
        self.kinds: list[str] = []
        self.size = 0
        self.done: asyncio.Future[None] | None = None

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
        self._wake = asyncio.Event()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="queue-writer")
        self._task: asyncio.Task[None] | None = None
        self._ids_written = ids.last
        self.failure: QueueUnavailable | None = None
        self.outbox_grew = asyncio.Event()
        self.groups = 0
        self.batches = 0

    def start(self) -> None:
        """Begin to write; needs a running loop."""
        self._loop = asyncio.get_running_loop()  # asked once: before 3.12 it costs a system call
        self._task = self._loop.create_task(self._run(), name="group-commit")

    def submit(self, batch: Batch) -> asyncio.Future[None]:
        """A future that is done when ``batch`` is on disk, or fails with QueueUnavailable."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self.failure is not None:
            future.set_exception(self.failure)
            future.exception()  # whoever does not await it was told by the log
            return future
        batch.done = future
        self._waiting.append(batch)
        self._wake.set()
        return future

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            group = self._take()
            if not group:
                self._wake.clear()
                continue
            if faults.armed:
                faults.reach_all((kind for batch in group for kind in batch.kinds), "unwritten")
            try:
                write = self._store.batch(self._ops(group), sync=self._sync)
                await self._loop.run_in_executor(self._writer, self._store.write, write)
            except QueueUnavailable as exc:
                self._fail(group, exc)
                continue
            except Exception as exc:  # a defect here must not leave everybody waiting
                log.exception("a group could not be written")
                self._fail(group, QueueUnavailable(f"internal error: {exc!r}"))
                continue
            if faults.armed:
                faults.reach_all((kind for batch in group for kind in batch.kinds), "written")
            self.groups += 1
            self.batches += len(group)
            if any(batch.events for batch in group):
                self.written_seq = self._next_seq - 1
                self.outbox_grew.set()
            for batch in group:
                if batch.done is not None and not batch.done.done():
                    batch.done.set_result(None)

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

    def _fail(self, group: list[Batch], exc: QueueUnavailable) -> None:
        """A failed write is final for this database: refuse what waits and what comes."""
        log.critical("the queue cannot be written, new mail is refused: %s", exc)
        self.failure = exc
        for batch in [*group, *self._waiting]:
            if batch.done is not None and not batch.done.done():
                batch.done.set_exception(exc)
                batch.done.exception()  # whoever does not await it is told by `failure`
        self._waiting.clear()

    async def close(self) -> None:
        """Write what waits, then stop. LevelDB must not be closed before."""
        if self._task is not None:
            if self.failure is None:
                await asyncio.wait([self.submit(Batch())])
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.get_running_loop().run_in_executor(None, self._writer.shutdown)
