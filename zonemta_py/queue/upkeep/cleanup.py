"""Removes the chunks of ended messages, and returns their disk space.

``cleanup/MSGID`` means that chunks are still to be removed; it is deleted with the last of them. LevelDB
returns space when it compacts. Compaction is requested once as many bytes were removed as the store holds,
so that its cost is proportional to what was written (decision 8).
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from zonemta_py.core.errors import QueueCorrupt, QueueUnreadable
from zonemta_py.queue.commit import GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import read_open
from zonemta_py.storage.interface import MOVE_CHUNKS, Store

log = logging.getLogger(__name__)


CHUNKS_AT_ONCE = 256
REMOVED_BYTES_MIN = 64 << 20
SWEEP_EVERY_S = 3600.0
LOOK_EVERY_S = 10.0  # for sparse segments
MOVE_EVERY_S = 0.1  # with 16 chunks a batch: 10 MB a second
ABANDONED_MS = 24 * 3_600_000
AGAIN_S = 60.0  # after the disk has refused to read


class Cleanup:
    """Removes chunks and compacts the store in the background."""

    def __init__(self, store: Store, commits: GroupCommit) -> None:
        self._store = store
        self._commits = commits
        self._messages: deque[str] = deque()
        self._changed = asyncio.Event()
        self._compactor = ThreadPoolExecutor(1, thread_name_prefix="queue-compactor")
        self._removed_bytes = 0
        self.compactions = 0

    def removed(self, size_bytes: int) -> None:
        """Count bytes on disk that are no longer needed."""
        self._removed_bytes += size_bytes
        if self._removed_bytes >= REMOVED_BYTES_MIN:
            self._changed.set()

    def add(self, message: str) -> None:
        """The ``cleanup/`` key of this message is on disk: remove its chunks."""
        self._messages.append(message)
        self._changed.set()

    async def run(self) -> None:
        """Remove and compact, forever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._messages:
                await self._remove_chunks(self._messages.popleft())
            await self.compact_if_worth_it()

    async def keep_moving(self) -> None:
        """Let the store move chunks out of sparse segments, at most one batch in MOVE_EVERY_S, forever."""
        while True:
            await asyncio.sleep(MOVE_EVERY_S if self._store.is_sparse() else LOOK_EVERY_S)
            if self._store.is_sparse():
                batch = WriteBatch()
                batch.delete(MOVE_CHUNKS)
                await self._commits.submit(batch)

    async def remove_chunks(self, message: str) -> None:
        """S1 → S0, in bounded batches; the last one deletes ``cleanup/`` and ``open/``."""
        prefix = keys.message_prefix(message)
        cursor = prefix
        while True:
            batch = WriteBatch()
            batch.kinds.append("cleanup")
            for key in islice(self._store.keys(cursor, keys.end_of(prefix)), CHUNKS_AT_ONCE):
                batch.delete(key)
                cursor = key + b"\x00"
            found = len(batch.ops)
            if found < CHUNKS_AT_ONCE:
                batch.delete(keys.cleanup_key(message))
                batch.delete(keys.open_key(message))
            await self._commits.submit(batch)
            if found < CHUNKS_AT_ONCE:
                return

    async def keep_sweeping(self, in_use: Callable[[str], bool], now: Callable[[], int]) -> None:
        """Sweep every hour, forever; ``now`` gives unix ms."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            try:
                await self.sweep(in_use, now())
            except QueueCorrupt as exc:
                log.critical("bodies without progress are not removed, repair the queue: %s", exc)

    async def sweep(self, in_use: Callable[[str], bool], now_ms: int) -> None:
        """Remove bodies of which no chunk was received for a day, and which are not ``in_use``.

        The clock may have jumped, so their age alone proves nothing. All are chosen before the first is
        removed: while others wait, a message may be accepted.
        """
        abandoned = [
            keys.owner_of(key)
            for key, value in self._store.scan(keys.OPEN, keys.end_of(keys.OPEN))
            if now_ms - read_open(value).progress_ms >= ABANDONED_MS and not in_use(keys.owner_of(key))
        ]
        for message in abandoned:
            log.warning("%s: a body without progress for a day is removed", message)
            await self._remove_chunks(message)

    async def _remove_chunks(self, message: str) -> None:
        try:
            await self.remove_chunks(message)
        except QueueUnreadable:
            asyncio.get_running_loop().call_later(AGAIN_S, self.add, message)
        except QueueCorrupt as exc:  # its cleanup key stays
            log.critical("%s is not removed, repair the queue: %s", message, exc)

    async def compact_if_worth_it(self) -> None:
        """Compact once as many bytes were removed as the store holds."""
        removed_bytes = self._removed_bytes + self._store.freed_chunk_bytes()
        if removed_bytes < max(REMOVED_BYTES_MIN, self._store.size_bytes() // 2):
            return
        self._removed_bytes = 0
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._compactor, self._store.compact)
        self.compactions += 1

    async def close(self) -> None:
        """Wait for a running compaction."""
        await asyncio.get_running_loop().run_in_executor(None, self._compactor.shutdown)


# ---- Rows of the store a limited number at a time, so that other work may be done between them.

AT_ONCE = 1000


async def row_slices(store: Store, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """The keys that begin with ``prefix``, and their values; those of a slice may be deleted."""
    cursor, end = prefix, keys.end_of(prefix)
    while True:
        found = list(islice(store.scan(cursor, end), AT_ONCE))
        if found:
            yield found
        if len(found) < AT_ONCE:
            return
        cursor = found[-1][0] + b"\x00"
        await asyncio.sleep(0)
