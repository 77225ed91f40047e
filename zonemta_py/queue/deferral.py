"""Deferred recipients and the clock that wakes them.

``due/`` keys are read from a cursor, never from the front of the range: what lies before it are
tombstones. Recipients that a batch is moving are named in ``moving`` until it is on disk, so that
nothing moves twice.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from zonemta_py.core.clock import wait_event
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue import transitions
from zonemta_py.queue.batch import GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Waiting, read_waiting
from zonemta_py.queue.spill import ReadyWindows
from zonemta_py.queue.submitter_queues import Recipient
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)

WAKE_MAX = 500  # recipients in one batch
LOOK_AGAIN_S = 60.0  # a backstop against a clock that was set


class Deferral:
    """Wakes what is due. ``now`` gives unix ms."""

    def __init__(
        self, store: Store, commits: GroupCommit, windows: ReadyWindows, now: Callable[[], int]
    ) -> None:
        self._store = store
        self._commits = commits
        self._windows = windows
        self._now = now
        self._cursor = keys.DUE
        self._changed = asyncio.Event()
        self._next_due_ms: int | None = None
        self.moving: set[bytes] = set()
        self._coming: Counter[bytes] = Counter()  # due/ keys that commits under way will write

    def expect(self, due: bytes) -> None:
        """A commit under way writes this ``due/`` key, so nobody may delete it; ``arrived`` follows."""
        self._coming[due] += 1

    def arrived(self, due: bytes) -> None:
        """The commit with this ``due/`` key is on disk."""
        self._coming[due] -= 1
        if not self._coming[due]:
            del self._coming[due]
        self._note(keys.parse_due(due)[0])

    def _note(self, due_ms: int) -> None:
        if self._next_due_ms is None or due_ms < self._next_due_ms:
            self._next_due_ms = due_ms
            self._changed.set()
        start = keys.due_key(due_ms, "", "")
        self._cursor = min(self._cursor, start)

    async def run(self) -> None:
        """Wake recipients when their time comes, for ever."""
        while True:
            self._changed.clear()
            while await self.wake_due(self._now()):
                pass
            self._next_due_ms = self._peek()
            wait_s = LOOK_AGAIN_S
            if self._next_due_ms is not None:
                wait_s = min(wait_s, max(0.0, (self._next_due_ms - self._now()) / 1000))
            await wait_event(self._changed, wait_s)

    def _peek(self) -> int | None:
        key = next(self._due(keys.end_of(keys.DUE)), None)
        return keys.parse_due(key)[0] if key is not None else None

    async def wake_due(self, now_ms: int) -> int:
        """Move up to WAKE_MAX recipients that are due; returns how many keys it dealt with."""
        batch = WriteBatch()
        woken: list[Recipient] = []
        handled = 0
        stop = keys.due_key(now_ms + 1, "", "")
        for due in self._due(stop):
            if len(woken) >= WAKE_MAX or handled >= WAKE_MAX:
                break
            _, zone, message = keys.parse_due(due)
            finished = readable_now = True
            try:
                for recipient in self._due_of(batch, zone, message, now_ms):
                    woken.append(recipient)
                    if len(woken) >= WAKE_MAX:
                        finished = False
                        break
            except QueueCorrupt as exc:
                log.critical("%s is left alone, repair the queue: %s", message, exc)
                readable_now = False  # it keeps its key: another life may read it
            handled += 1
            if finished:
                if readable_now and due not in self._coming:
                    batch.delete(due)
                self._cursor = due + b"\x00"
        if handled:
            await self.commit(batch, woken)
        return handled

    def _due(self, stop: bytes) -> Iterator[bytes]:
        """The ``due/`` keys before ``stop``; what is behind a damaged place waits for a repair."""
        try:
            yield from self._store.keys(self._cursor, stop)
        except QueueCorrupt as exc:
            log.critical("deferred recipients are left alone, repair the queue: %s", exc)
            self._cursor = max(self._cursor, stop)

    def _due_of(self, batch: WriteBatch, zone: str, message: str, now_ms: int) -> Iterator[Recipient]:
        prefix = keys.zone_prefix(keys.DEFERRED, zone, message)
        for key, value in self._store.scan(prefix, keys.end_of(prefix)):
            record = readable(key, value)
            if record is not None and record.due_ms <= now_ms and key not in self.moving:
                yield transitions.wake(batch, zone, message, keys.parse_recipient(key)[2], record)

    def retire(self, batch: WriteBatch, times: Mapping[bytes, int]) -> None:
        """Delete the ``due/`` keys that nobody needs once these deferred keys (to due ms) are gone."""
        by_message: dict[tuple[str, str], set[int]] = {}
        for key, due_ms in times.items():
            zone, message, _ = keys.parse_recipient(key)
            by_message.setdefault((zone, message), set()).add(due_ms)
        for (zone, message), moved in by_message.items():
            prefix = keys.zone_prefix(keys.DEFERRED, zone, message)
            others = (
                readable(key, value)
                for key, value in self._store.scan(prefix, keys.end_of(prefix))
                if key not in times
            )
            needed = {record.due_ms for record in others if record is not None}
            for due_ms in moved - needed:
                due = keys.due_key(due_ms, zone, message)
                if due not in self._coming:
                    batch.delete(due)

    async def commit(self, batch: WriteBatch, woken: list[Recipient]) -> None:
        """Write ``batch``, which wakes ``woken``, and offer them to their windows."""
        placement = self._windows.plan(woken)
        for spill in placement.spills:
            batch.put(spill.key, b"")
        moving = {keys.deferred_key(r.zone, r.message, r.address) for r in woken}
        self.moving |= moving
        try:
            await self._commits.submit(batch)
        except BaseException:
            self._windows.abandon(placement)
            raise
        finally:
            self.moving -= moving
        self._windows.place(placement)

    async def flush(self, zone: str | None, domain: str | None, message: str | None) -> int:
        """Wake deferred recipients now, whatever their time, but not held ones; None matches all.

        Returns how many.
        """
        prefix = keys.DEFERRED if zone is None else keys.zone_prefix(keys.DEFERRED, zone, message or "")
        cursor, total = prefix, 0
        while True:
            batch = WriteBatch()
            woken: list[Recipient] = []
            times: dict[bytes, int] = {}
            seen = 0
            for key, value in islice(self._store.scan(cursor, keys.end_of(prefix)), WAKE_MAX):
                cursor = key + b"\x00"
                seen += 1
                in_zone, of_message, address = keys.parse_recipient(key)
                record = readable(key, value)
                if record is None or key in self.moving or record.due_ms == keys.HELD_MS:
                    continue
                if message in (None, of_message) and domain in (None, record.domain):
                    woken.append(transitions.wake(batch, in_zone, of_message, address, record))
                    times[key] = record.due_ms
            self.retire(batch, times)
            if not seen:
                return total
            if woken:
                await self.commit(batch, woken)
            else:
                await asyncio.sleep(0)
            total += len(woken)


def readable(key: bytes, value: bytes) -> Waiting | None:
    """The record, or None for a damaged one, which must not keep the others asleep."""
    try:
        return read_waiting(value)
    except QueueCorrupt as exc:
        log.critical("%r is left alone: %s", key, exc)
        return None
