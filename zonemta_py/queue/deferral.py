"""Deferred recipients, and the timer that wakes them.

``due/`` keys are read from a cursor and not from the front of the range, which is full of tombstones.
Recipients that a batch is moving are in ``moving`` until it is on disk, so that none is moved twice.
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
from zonemta_py.queue.submitter_queues import QueuedRecipient
from zonemta_py.queue.windows import ReadyWindows
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)

WAKE_MAX = 500  # recipients in one batch
CHECK_EVERY_S = 60.0  # in case the system clock was set
RESCUE_EVERY_S = 3600.0


class Deferral:
    """Wakes recipients that are due. ``now`` gives unix ms; no recipient is deferred for ``longest_delay_ms``."""

    def __init__(
        self,
        store: Store,
        commits: GroupCommit,
        windows: ReadyWindows,
        now: Callable[[], int],
        longest_delay_ms: int,
    ) -> None:
        self._store = store
        self._commits = commits
        self._windows = windows
        self._now = now
        self._longest_delay_ms = longest_delay_ms
        self._cursor = keys.DUE
        self._changed = asyncio.Event()
        self._next_due_ms: int | None = None
        self.moving: set[bytes] = set()
        self._expected: Counter[bytes] = Counter()  # due/ keys that commits under way write

    def expect(self, due: bytes) -> None:
        """A commit under way writes this ``due/`` key, which must not be deleted; ``written`` follows."""
        self._expected[due] += 1

    def written(self, due: bytes) -> None:
        """The commit with this ``due/`` key is on disk."""
        self._expected[due] -= 1
        if not self._expected[due]:
            del self._expected[due]
        due_ms = keys.parse_due(due)[0]
        if self._next_due_ms is None or due_ms < self._next_due_ms:
            self._next_due_ms = due_ms
            self._changed.set()
        self._cursor = min(self._cursor, keys.due_key(due_ms, "", ""))

    async def run(self) -> None:
        """Wake recipients at their time, forever."""
        while True:
            self._changed.clear()
            while await self.wake_due(self._now()):
                pass
            self._next_due_ms = self._first_due_ms()
            wait_s = CHECK_EVERY_S
            if self._next_due_ms is not None:
                wait_s = min(wait_s, max(0.0, (self._next_due_ms - self._now()) / 1000))
            await wait_event(self._changed, wait_s)

    def _first_due_ms(self) -> int | None:
        key = next(self._due_keys(keys.end_of(keys.DUE)), None)
        return keys.parse_due(key)[0] if key is not None else None

    async def wake_due(self, now_ms: int) -> int:
        """Move up to WAKE_MAX due recipients; returns how many ``due/`` keys were handled."""
        batch = WriteBatch()
        woken: list[QueuedRecipient] = []
        handled = 0
        stop = keys.due_key(now_ms + 1, "", "")
        for due in self._due_keys(stop):
            if len(woken) >= WAKE_MAX or handled >= WAKE_MAX:
                break
            _, zone, message = keys.parse_due(due)
            finished = undamaged = True
            try:
                for recipient in self._wake_message(batch, zone, message, now_ms):
                    woken.append(recipient)
                    if len(woken) >= WAKE_MAX:
                        finished = False
                        break
            except QueueCorrupt as exc:
                log.critical("%s is not sent, repair the queue: %s", message, exc)
                undamaged = False  # the key stays: the next start may read the message
            handled += 1
            if finished:
                if undamaged and due not in self._expected:
                    batch.delete(due)
                self._cursor = due + b"\x00"
        if handled:
            await self.commit(batch, woken)
        return handled

    def _due_keys(self, stop: bytes) -> Iterator[bytes]:
        """The ``due/`` keys from the cursor to ``stop``, or to the first damaged one."""
        try:
            yield from self._store.keys(self._cursor, stop)
        except QueueCorrupt as exc:
            log.critical("deferred recipients are not sent to, repair the queue: %s", exc)
            self._cursor = max(self._cursor, stop)

    def _wake_message(
        self, batch: WriteBatch, zone: str, message: str, now_ms: int
    ) -> Iterator[QueuedRecipient]:
        prefix = keys.zone_prefix(keys.DEFERRED, zone, message)
        for key, value in self._store.scan(prefix, keys.end_of(prefix)):
            record = readable(key, value)
            if record is not None and record.due_ms <= now_ms and key not in self.moving:
                yield transitions.wake(batch, zone, message, keys.parse_recipient(key)[2], record)

    def delete_unused_due_keys(self, batch: WriteBatch, removed: Mapping[bytes, int]) -> None:
        """Delete the ``due/`` keys that wake no other recipient than ``removed`` (deferred key: due ms)."""
        by_message: dict[tuple[str, str], set[int]] = {}
        for key, due_ms in removed.items():
            zone, message, _ = keys.parse_recipient(key)
            by_message.setdefault((zone, message), set()).add(due_ms)
        for (zone, message), times in by_message.items():
            prefix = keys.zone_prefix(keys.DEFERRED, zone, message)
            others = (
                readable(key, value)
                for key, value in self._store.scan(prefix, keys.end_of(prefix))
                if key not in removed
            )
            needed = {record.due_ms for record in others if record is not None}
            for due_ms in times - needed:
                due = keys.due_key(due_ms, zone, message)
                if due not in self._expected:
                    batch.delete(due)

    async def commit(self, batch: WriteBatch, woken: list[QueuedRecipient]) -> None:
        """Write ``batch``, which wakes ``woken``, and offer them to their windows.

        Raises QueueUnavailable.
        """
        reservation = self._windows.reserve(woken)
        reservation.write(batch)
        moving = {keys.deferred_key(r.zone, r.message, r.address) for r in woken}
        self.moving |= moving
        try:
            await self._commits.submit(batch)
        except BaseException:
            reservation.rollback()
            raise
        finally:
            self.moving -= moving
        reservation.commit()

    async def keep_rescuing(self) -> None:
        """Wake, now and every hour, what is due later than any delay allows: the clock was wrong.

        Held recipients are not due at all.
        """
        while True:
            latest_ms = self._now() + self._longest_delay_ms
            stranded = self._store.keys(
                keys.due_key(latest_ms, "", ""), keys.due_key(keys.HELD_MS, "", "")
            )
            if next(stranded, None) is not None:
                count = await self.flush(None, None, None, later_than_ms=latest_ms)
                log.warning("%d recipients were due after any possible delay, and are tried now", count)
            await asyncio.sleep(RESCUE_EVERY_S)

    async def flush(
        self, zone: str | None, domain: str | None, message: str | None, *, later_than_ms: int = 0
    ) -> int:
        """Wake deferred recipients before their time, except held ones; None matches all.

        Returns how many. Raises QueueUnavailable.
        """
        prefix = keys.DEFERRED if zone is None else keys.zone_prefix(keys.DEFERRED, zone, message or "")
        cursor, total = prefix, 0
        while True:
            batch = WriteBatch()
            woken: list[QueuedRecipient] = []
            removed: dict[bytes, int] = {}
            seen = 0
            for key, value in islice(self._store.scan(cursor, keys.end_of(prefix)), WAKE_MAX):
                cursor = key + b"\x00"
                seen += 1
                in_zone, of_message, address = keys.parse_recipient(key)
                record = readable(key, value)
                if record is None or key in self.moving or record.due_ms == keys.HELD_MS:
                    continue
                if record.due_ms < later_than_ms:
                    continue
                if message in (None, of_message) and domain in (None, record.domain):
                    woken.append(transitions.wake(batch, in_zone, of_message, address, record))
                    removed[key] = record.due_ms
            self.delete_unused_due_keys(batch, removed)
            if not seen:
                return total
            if woken:
                await self.commit(batch, woken)
            else:
                await asyncio.sleep(0)
            total += len(woken)


def readable(key: bytes, value: bytes) -> Waiting | None:
    """The record, or None for a damaged one, which must not stop the others."""
    try:
        return read_waiting(value)
    except QueueCorrupt as exc:
        log.critical("%r is not sent to: %s", key, exc)
        return None
