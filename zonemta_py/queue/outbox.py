"""Moves events from the queue's outbox to the event log, each exactly once.

States of a group of events::

    under ``outbox/`` ─▶ in a frame of the segment, synced ─▶ its key is deleted ─▶ in a sealed segment

Invariants:

- A frame is on disk before the ``outbox/`` keys it came from are deleted. After a crash between the two, the recovered segment has
  the sequence numbers that were exported, and those keys are only deleted.
- Recovery reads open segments only, so a segment is sealed after the keys of all its events are deleted. While that is in doubt
  (``_in_doubt``) nothing is sealed.
- ``meta/exported`` is the highest number whose key was deleted. Numbers that are lost are not passed over silently: a new segment
  begins behind them, and says which number it follows.
- Mail never waits for the log: what cannot be written is tried again, and events stay in the queue.
- A segment that is needed for a message in the queue is not removed by ``events.keep``.

Callers: the relay, ``dequeue.standalone`` and ``cli.queue.transfer`` make an ``Exporter`` for their queue; ``observers`` get the lines
of each frame.

Example: a crash after the frame of number 7 and before the deletion. The next start finds 7 in the open segment, deletes its key,
seals the segment, and begins a new one with 8.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from zonemta_py.config.schema import Events
from zonemta_py.core import clock, faults
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.events.log import Extent, Needed, beginning, read_extent, remove_old, write_extent
from zonemta_py.events.recovery import last_seq, recover, seal_recovered, sealed_seqs
from zonemta_py.events.schema import number_before
from zonemta_py.events.segments import Segment
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import read_outbox
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.transitions import set_aside
from zonemta_py.queue.upkeep.inspect import exported_seq, log_begins, oldest_message

log = logging.getLogger(__name__)


GROUPS_AT_ONCE = 2000
BYTES_AT_ONCE = 4 << 20
GATHER_S = 0.2  # between two frames: one frame and one fsync for many events
RETRY_S = 5.0
REMOVE_EVERY_S = 600.0
FILE_CLOCK_S = 1.0  # the time of a file may be that much before an event in it


class Exporter:
    """The only writer of the event log. ``observers`` are called with the JSON lines of each frame."""

    def __init__(
        self, queue: Queue, settings: Events, observers: Sequence[Callable[[bytes], None]] = ()
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._segment: Segment | None = None
        self._opened_s = 0.0  # monotonic
        self._ended: list[Segment] = []  # full, and not sealed
        self._seal_at_s = 0.0  # monotonic
        self._cursor = keys.OUTBOX
        self._exported = int(queue.store.get(keys.META_EXPORTED) or b"0", 16)
        self._aside = _newest_aside(queue)
        self._recovered = False
        self._remove_at_s = 0.0  # monotonic
        self._in_doubt = False  # the outbox may still hold events that the segment holds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="event-log")
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._observers = tuple(observers)
        self._caught_up_s = clock.monotonic_s()

    @property
    def lag_s(self) -> float:
        """Since when (s) events wait for the log; 0 when it has all."""
        return 0.0 if self._is_empty() else clock.monotonic_s() - self._caught_up_s

    async def start(self) -> None:
        """Delete what the previous boot exported and seal it, then export in the background.

        A log that cannot be read or written is logged, and tried again in the background.
        """
        try:
            await self._recover()
        except QueueUnavailable:
            raise
        except Exception as exc:
            _log_failure(exc)
        self._task = asyncio.create_task(self._run(), name="event-export")

    async def _recover(self) -> None:
        loop, directory, node = asyncio.get_running_loop(), self._settings.directory, self._queue.node
        found = await loop.run_in_executor(self._thread, recover, directory, node, self._exported)
        if found:
            await self._delete_exported(found)
            await loop.run_in_executor(self._thread, seal_recovered, directory, node, clock.now_ms())
        end = await loop.run_in_executor(self._thread, last_seq, directory, node)
        oldest = next(self._queue.store.keys(keys.OUTBOX, keys.end_of(keys.OUTBOX)), None)
        if oldest is not None and keys.parse_outbox(oldest) <= end:  # a backup was restored
            first = keys.parse_outbox(oldest)
            await self._delete_exported(
                await loop.run_in_executor(self._thread, sealed_seqs, directory, node, first)
            )
        await loop.run_in_executor(self._thread, self._keep_extent, end)
        if end < exported_seq(self._queue.store) and (end or not self._queue.store.is_remote()):
            log.critical(
                "%s: the event log of node %s ends at %016x, and events were written up to %016x: "
                "see zonemta audit", directory, node, end, self._exported,
            )  # fmt: skip
        self._recovered = True

    def _keep_extent(self, end: int) -> None:
        """Write what the log must have, up to ``end`` at least. A log without any segment has lost them.

        But a partition of a shared store may have had its relay, and its log, on another machine.
        """
        directory, node = self._settings.directory, self._queue.node
        known = read_extent(directory, node)
        if known is None:
            begin = beginning(directory, node)
            if begin is None:
                store = self._queue.store
                begin = self._exported if store.is_remote() else log_begins(store)
            known = Extent(begin, begin)
        write_extent(directory, node, known._replace(last=max(known.last, end)))

    async def _delete_exported(self, found: set[int]) -> None:
        """Delete the ``outbox/`` keys of the numbers that the log has."""
        outbox = self._queue.store.keys(keys.OUTBOX, keys.outbox_key(max(found, default=0) + 1))
        exported = [key for key in outbox if keys.parse_outbox(key) in found]
        if exported:
            await self._delete(exported)
        self._cursor = keys.OUTBOX

    async def _run(self) -> None:
        grew = self._queue.commits.outbox_grew
        while not self._stopping.is_set():
            grew.clear()
            try:
                more = await self._step()
            except QueueUnavailable:
                return
            except Exception as exc:
                _log_failure(exc)
                await clock.wait_event(self._stopping, RETRY_S)
                continue
            if not more:
                self._caught_up_s = clock.monotonic_s()
                age_s = self._settings.rotate.age
                if await clock.wait_event(grew, min(age_s, RETRY_S) if self._ended else age_s):
                    self._caught_up_s = clock.monotonic_s()
                await clock.wait_event(self._stopping, GATHER_S)

    async def _step(self) -> bool:
        """Export a frame; returns whether more events are waiting."""
        if not self._recovered:
            await self._recover()
        await self._seal_ended()
        more = await self._export()
        await self._seal_if_due()
        await self._remove_old()
        return more

    async def _remove_old(self) -> None:
        """Remove what ``events.keep`` does not keep, now and then. Raises OSError."""
        keep, now_s = self._settings.keep, clock.now_ms() / 1000
        if keep is None or clock.monotonic_s() < self._remove_at_s:
            return
        self._remove_at_s = clock.monotonic_s() + REMOVE_EVERY_S
        message, created_ms = oldest_message(self._queue.store, clock.now_ms())
        needed = Needed(created_ms / 1000 - FILE_CLOCK_S, message)
        removed = await asyncio.get_running_loop().run_in_executor(
            self._thread, remove_old, self._settings.directory, self._queue.node, keep, needed, now_s
        )
        if removed:
            log.info("%d segments of the event log removed: events.keep", removed)

    async def _export(self) -> bool:
        """Write the next groups as one frame; returns whether more are waiting."""
        if self._aside > self._exported:
            await self._note_aside()
        exported: list[bytes] = []
        values: list[bytes] = []
        size, full, last = 0, False, 0
        for key, value in self._queue.store.scan(self._cursor, keys.end_of(keys.OUTBOX)):
            seq = keys.parse_outbox(key)
            if exported and number_before(seq, last) > last:
                full = (
                    True  # the numbers between are lost: a frame of its own, in a segment that says so
                )
                break
            try:
                lines = read_outbox(value)
            except QueueCorrupt as exc:
                full = True  # and what is in front of it is exported first
                if not values:
                    await self._set_aside(key, value, exc)
                break
            last = seq
            exported.append(key)
            values.append(lines)
            size += len(lines)
            full = len(values) >= GROUPS_AT_ONCE or size >= BYTES_AT_ONCE
            if full:
                break
        if not values:
            return full
        lines = b"".join(values)
        first = keys.parse_outbox(exported[0])
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, lines, first, last)
        faults.reach("segment.appended")
        await self._delete(exported)
        for observer in self._observers:
            observer(lines)
        return full

    async def _set_aside(self, key: bytes, value: bytes, exc: QueueCorrupt) -> None:
        """Keep an ``outbox/`` value that cannot be read under another key; the next segment says that it is missing."""
        log.critical("%s: %s; it is kept as %s", key.decode(), exc, keys.damaged_key(key).decode())
        self._end()
        batch = WriteBatch()
        set_aside(batch, key, value)
        await self._delete([key], batch)

    async def _note_aside(self) -> None:
        """Count what ``queue repair`` has kept aside as written, when its turn comes: the next segment says that it is missing."""
        first = next(self._queue.store.keys(self._cursor, keys.end_of(keys.OUTBOX)), None)
        if first is None or keys.parse_outbox(first) > self._aside:
            self._end()
            await self._delete([keys.outbox_key(self._aside)])

    def _write(self, lines: bytes, first_seq: int, last_seq: int) -> None:
        previous = number_before(first_seq, self._exported)
        if previous > self._exported:
            log.critical(
                "the queue has lost events between %016x and %016x: see zonemta audit",
                self._exported,
                first_seq,
            )
            self._end()
        if self._segment is None:
            directory, node = self._settings.directory, self._queue.node
            self._segment = Segment(directory, node, first_seq, previous)
            self._opened_s = clock.monotonic_s()
        try:
            self._segment.append(lines, last_seq)
        except OSError:
            # Its frames are whole; what follows goes into a new file, under another first number.
            self._end()
            raise

    def _is_empty(self) -> bool:
        return next(self._queue.store.keys(self._cursor, keys.end_of(keys.OUTBOX)), None) is None

    async def _delete(self, exported: list[bytes], batch: WriteBatch | None = None) -> None:
        """Delete ``outbox/`` keys, in ``batch``. After an error they may be deleted or not."""
        batch = batch or WriteBatch()
        batch.kinds.append("outbox")
        for key in exported:
            batch.delete(key)
            self._cursor = key + b"\x00"
            self._exported = max(self._exported, keys.parse_outbox(key))
        batch.put(keys.META_EXPORTED, b"%x" % self._exported)
        self._in_doubt = True
        await self._queue.commits.submit(batch)
        self._in_doubt = False

    def _end(self) -> None:
        """Nothing more is appended to the segment."""
        if self._segment is not None:
            self._ended.append(self._segment)
            self._segment = None

    async def _seal_if_due(self, *, now: bool = False) -> None:
        segment, rotate = self._segment, self._settings.rotate
        if segment is not None:
            age_s = clock.monotonic_s() - self._opened_s
            if now or segment.size_bytes >= rotate.size or age_s >= rotate.age:
                self._end()
        await self._seal_ended(now=now)

    async def _seal_ended(self, *, now: bool = False) -> None:
        """Seal what has ended. What cannot be sealed is tried again later; the export does not wait for it."""
        if not self._ended or (clock.monotonic_s() < self._seal_at_s and not now):
            return
        loop = asyncio.get_running_loop()
        for segment in list(self._ended):
            try:
                await loop.run_in_executor(self._thread, segment.seal, clock.now_ms())
            except OSError as exc:
                self._seal_at_s = clock.monotonic_s() + RETRY_S
                if not segment.is_removed():
                    log.error(
                        "a segment of the event log cannot be sealed, which is tried again: %s", exc
                    )
                    continue
                log.critical("a segment of the event log was removed before it was sealed: %s", exc)
            self._ended.remove(segment)
            faults.reach("segment.sealed")
            try:
                await loop.run_in_executor(self._thread, self._keep_extent, segment.last_seq)
            except OSError as exc:
                log.error("what the event log must have is not written, until the next seal: %s", exc)

    async def close(self) -> None:
        """Export the remaining events, seal, stop. After a ``start`` that failed, only stop."""
        self._stopping.set()
        self._queue.commits.outbox_grew.set()
        if self._task is not None:
            await asyncio.wait([self._task])
            await self._finish()
        self._thread.shutdown(wait=False)

    async def _finish(self) -> None:
        """Export and seal. While the outbox is in doubt nothing is sealed, so that the next start reads it."""
        try:
            if not self._recovered:  # the log could not be read when the relay started
                await self._recover()
            if self._queue.commits.failure is None:
                await self._queue.commits.submit(WriteBatch())  # behind events that are being written
            while self._queue.commits.failure is None and not self._is_empty():
                await self._export()
        except Exception as exc:
            _log_failure(exc)
        if not self._in_doubt:
            await self._seal_if_due(now=True)
        self._end()
        for segment in self._ended:
            segment.leave()


def _newest_aside(queue: Queue) -> int:
    """The highest number of an ``outbox/`` value that could not be read, or 0."""
    prefix = keys.damaged_key(keys.OUTBOX)
    aside = queue.store.keys(prefix, keys.end_of(prefix))
    return max((keys.parse_outbox(key[len(keys.META_DAMAGED) :]) for key in aside), default=0)


def _log_failure(exc: Exception) -> None:
    if isinstance(exc, QueueCorrupt):
        log.critical("events cannot be exported, repair the queue: %s", exc)
    else:
        log.error("the event log cannot be written, events stay in the queue: %s", exc)
