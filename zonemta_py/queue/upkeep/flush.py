"""Wakes deferred recipients before their time, as an operator asks for it."""

import asyncio
from collections.abc import Iterable
from itertools import islice

from zonemta_py.queue import transitions
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.deferral import WAKE_MAX, Deferral, readable
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.submitter_queues import QueuedRecipient


async def flush(
    queue: Queue, zone: str | None = None, domain: str | None = None, message: str | None = None
) -> int:
    """Wake deferred recipients before their time, except held ones; None matches all.

    Mail that its submitter wants sent later is left alone. Returns how many. Raises QueueUnavailable.
    """
    prefix = keys.DEFERRED if zone is None else keys.zone_prefix(keys.DEFERRED, zone, message or "")
    cursor: bytes | None = prefix
    flushing = _Flush(queue.deferral, domain, message, queue.now())
    while cursor is not None:
        found = queue.store.scan(cursor, keys.end_of(prefix))
        cursor = flushing.turn(islice(found, WAKE_MAX))
        if flushing.batch.ops:
            await queue.deferral.commit(flushing.batch, flushing.woken)
        else:
            await asyncio.sleep(0)
    return flushing.total


class _Flush:
    """Wakes recipients in the order of their keys; the ``due/`` keys of a message are deleted at its end."""

    def __init__(self, deferral: Deferral, domain: str | None, message: str | None, now_ms: int) -> None:
        self._deferral = deferral
        self._domain = domain
        self._message = message
        self._now_ms = now_ms
        self._at = ("", "")  # the zone and the message that are being read
        self._times: set[int] = set()  # due times of its recipients that were woken
        self.batch = WriteBatch()
        self.woken: list[QueuedRecipient] = []
        self.total = 0

    def turn(self, recipients: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Fill ``batch`` from the next keys and values; returns where to read on, None without one."""
        self.batch, self.woken = WriteBatch(), []
        removed: set[bytes] = set()
        key = None
        for key, value in recipients:
            zone, message, address = keys.parse_recipient(key)
            if (zone, message) != self._at:
                self._end_message(removed)
                self._at = zone, message
            record = readable(key, value)
            if record is None or key in self._deferral.moving or record.due_ms == keys.HELD_MS:
                continue
            if self._message in (None, message) and self._domain in (None, record.domain):
                if record.due_ms > self._now_ms and self._deferral.is_for_later(message, record):
                    continue
                self.woken.append(transitions.wake(self.batch, zone, message, address, record))
                self._times.add(record.due_ms)
                removed.add(key)
        self.total += len(self.woken)
        if key is None:
            self._end_message(removed)
            return None
        return key + b"\x00"

    def _end_message(self, removed: set[bytes]) -> None:
        if self._times:
            self._deferral.delete_unused_due_keys(self.batch, *self._at, self._times, removed)
            self._times = set()
