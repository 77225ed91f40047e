"""Moves events from the queue's outbox to the event log, each exactly once.

A frame is on disk before the ``outbox/`` keys it came from are deleted. After a crash between the two, the
recovered segment has the highest sequence number that was exported, and those keys are only deleted.
Recovery reads open segments only, so a segment is sealed after the keys of all its events are deleted.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from zonemta_py.config.schema import Events
from zonemta_py.core import clock, faults
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.events.segments import Segment, recover, seal_recovered
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue

GROUPS_AT_ONCE = 2000
BYTES_AT_ONCE = 4 << 20
GATHER_S = 0.2  # between two frames: one frame and one fsync for many events
RETRY_S = 5.0

log = logging.getLogger(__name__)


class Exporter:
    """The only writer of the event log. ``observers`` are called with the JSON lines of each frame."""

    def __init__(
        self, queue: Queue, settings: Events, observers: Sequence[Callable[[bytes], None]] = ()
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._segment: Segment | None = None
        self._opened_ms = 0
        self._cursor = keys.OUTBOX
        self._in_doubt = False  # the outbox may still hold events that the segment holds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="event-log")
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._observers = tuple(observers)

    async def start(self) -> None:
        """Delete what the previous boot exported and seal it, then export in the background. Raises OSError."""
        loop, directory, node = asyncio.get_running_loop(), self._settings.directory, self._queue.node
        last_seq = await loop.run_in_executor(self._thread, recover, directory, node)
        if last_seq:
            stop = keys.outbox_key(last_seq + 1)
            await self._delete(list(self._queue.store.keys(keys.OUTBOX, stop)))
            await loop.run_in_executor(self._thread, seal_recovered, directory, node, clock.now_ms())
        self._task = asyncio.create_task(self._run(), name="event-export")

    async def _run(self) -> None:
        grew = self._queue.commits.outbox_grew
        while not self._stopping.is_set():
            grew.clear()
            try:
                more = await self._export()
                await self._seal_if_due()
            except QueueUnavailable:
                return
            except Exception as exc:
                log.error("the event log cannot be written, events stay in the queue: %s", exc)
                await clock.wait_event(self._stopping, RETRY_S)
                continue
            if not more:
                await clock.wait_event(grew, self._settings.rotate.age)
                await clock.wait_event(self._stopping, GATHER_S)

    async def _export(self) -> bool:
        """Write the next groups as one frame; returns whether more are waiting."""
        exported: list[bytes] = []
        values: list[bytes] = []
        size, full = 0, False
        for key, value in self._queue.store.scan(self._cursor, keys.end_of(keys.OUTBOX)):
            exported.append(key)
            values.append(value)
            size += len(value)
            full = len(values) >= GROUPS_AT_ONCE or size >= BYTES_AT_ONCE
            if full:
                break
        if not values:
            return False
        lines = b"".join(values)
        await asyncio.get_running_loop().run_in_executor(
            self._thread, self._write, keys.parse_outbox(exported[0]), lines
        )
        faults.reach("segment.appended")
        await self._delete(exported)
        for observer in self._observers:
            observer(lines)
        return full

    def _write(self, first_seq: int, lines: bytes) -> None:
        if self._segment is None:
            self._segment = Segment(self._settings.directory, self._queue.node, first_seq)
            self._opened_ms = clock.now_ms()
        try:
            self._segment.append(lines)
        except OSError:
            # Its frames are whole; what follows goes into a new file, under another first number.
            broken, self._segment = self._segment, None
            broken.seal(clock.now_ms())
            raise

    def _is_empty(self) -> bool:
        return next(self._queue.store.keys(self._cursor, keys.end_of(keys.OUTBOX)), None) is None

    async def _delete(self, exported: list[bytes]) -> None:
        """Delete ``outbox/`` keys. After an error they may be deleted or not."""
        batch = WriteBatch()
        batch.kinds.append("outbox")
        for key in exported:
            batch.delete(key)
            self._cursor = key + b"\x00"
        self._in_doubt = True
        await self._queue.commits.submit(batch)
        self._in_doubt = False

    async def _seal_if_due(self, *, now: bool = False) -> None:
        segment, rotate = self._segment, self._settings.rotate
        if segment is None:
            return
        age_s = (clock.now_ms() - self._opened_ms) / 1000
        if now or segment.size_bytes >= rotate.size or age_s >= rotate.age:
            self._segment = None
            await asyncio.get_running_loop().run_in_executor(self._thread, segment.seal, clock.now_ms())
            faults.reach("segment.sealed")

    async def close(self) -> None:
        """Export the remaining events, seal, stop. After a ``start`` that failed, only stop."""
        self._stopping.set()
        self._queue.commits.outbox_grew.set()
        if self._task is not None:
            await asyncio.wait([self._task])
            await self._finish()
        self._thread.shutdown(wait=False)

    async def _finish(self) -> None:
        """Export and seal. A segment in doubt stays unsealed, so that the next start reads it."""
        try:
            while self._queue.commits.failure is None and not self._is_empty():
                await self._export()
            if not self._in_doubt:
                await self._seal_if_due(now=True)
        except Exception as exc:
            log.error("the event log cannot be written, events stay in the queue: %s", exc)
        if self._segment is not None:
            self._segment.leave()
