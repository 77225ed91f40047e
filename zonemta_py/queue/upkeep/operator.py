"""What an operator does to one message: delete, hold, release. Beside a running delivery.

Recipients in a transaction are left alone and counted: what the peer will say is not known yet.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.events.schema import Released
from zonemta_py.queue import transitions
from zonemta_py.queue.active import ActiveMessage, recipients_of
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.deferral import readable
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Waiting
from zonemta_py.queue.submitter_queues import Recipient

if TYPE_CHECKING:
    from zonemta_py.queue.queue import Queue

Write = Callable[[WriteBatch, bytes, Waiting], None]


@dataclass(slots=True)
class _Taken:
    """Recipients out of circulation until their batch is on disk. ``deferred``: key to due ms."""

    waiting: list[bytes] = field(default_factory=list)
    deferred: dict[bytes, int] = field(default_factory=dict)
    busy: int = 0

    @property
    def count(self) -> int:
        return len(self.waiting) + len(self.deferred)


class Operator:
    """The operator's verbs of ``queue``."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue

    async def delete(self, message: str, address: str | None = None) -> tuple[int, int]:
        """Remove a message's recipients, or one; returns (removed, left because in flight)."""
        queue, now_ms = self._queue, self._queue.now()

        def write(batch: WriteBatch, key: bytes, record: Waiting) -> None:
            transitions.delete(batch, active.meta, key, record, now_ms)

        if queue.store.get(keys.meta_key(message)) is None:
            return 0, 0
        active = queue.acquire_message(message)
        batch = WriteBatch()
        taken = self._take(batch, active, address, write)
        active.remaining -= taken.count
        await asyncio.shield(self._commit(active, batch, taken))
        return taken.count, taken.busy

    async def hold(
        self, message: str, address: str | None = None, reason: str = "an operator"
    ) -> tuple[int, int]:
        """Keep a message's recipients, or one, from being sent; returns (held, left because in flight)."""
        queue, now_ms = self._queue, self._queue.now()

        def write(batch: WriteBatch, key: bytes, record: Waiting) -> None:
            transitions.hold(batch, active.meta, key, record, reason, now_ms)

        if queue.store.get(keys.meta_key(message)) is None:
            return 0, 0
        active = queue.acquire_message(message)
        batch = WriteBatch()
        taken = self._take(batch, active, address, write, passing=_is_held)
        zones = {keys.parse_recipient(key)[0] for key in (*taken.waiting, *taken.deferred)}
        dues = [keys.due_key(keys.HELD_MS, zone, message) for zone in zones]
        for due in dues:
            queue.deferral.expect(due)
        await asyncio.shield(self._commit(active, batch, taken))
        for due in dues:
            queue.deferral.arrived(due)
        return taken.count, taken.busy

    async def release(self, message: str, address: str | None = None) -> int:
        """Let held recipients of a message go on now; returns how many."""
        queue, now_ms = self._queue, self._queue.now()
        if queue.store.get(keys.meta_key(message)) is None:
            return 0
        active = queue.acquire_message(message)
        batch, woken, times = WriteBatch(), list[Recipient](), dict[bytes, int]()
        try:
            for key, value in recipients_of(queue.store, message, active.meta.zones):
                zone, _, found = keys.parse_recipient(key)
                record = readable(key, value)
                if (
                    record is None
                    or not _is_held(record)
                    or address not in (None, found)
                    or key in queue.deferral.moving
                ):
                    continue
                fresh = record._replace(uncertain=0)
                woken.append(transitions.wake(batch, zone, message, found, fresh))
                times[key] = record.due_ms
                batch.record(Released(**transitions.facts_of(active.meta, key, record, now_ms)))
            queue.deferral.retire(batch, times)
            if woken:
                await asyncio.shield(queue.deferral.commit(batch, woken))
        finally:
            queue.release_message(active)
        return len(woken)

    def _take(
        self,
        batch: WriteBatch,
        active: ActiveMessage,
        address: str | None,
        write: Write,
        passing: Callable[[Waiting], bool] = lambda _: False,
    ) -> _Taken:
        """Take matching recipients out of window and timer, and ``write`` what becomes of them."""
        queue, taken = self._queue, _Taken()
        try:
            with queue.store.frozen() as view:
                found_now = list(recipients_of(view, active.id, active.meta.zones))
        except QueueCorrupt:
            queue.release_message(active)
            raise
        for key, value in found_now:
            zone, _, found = keys.parse_recipient(key)
            if address not in (None, found):
                continue
            record = readable(key, value)
            if record is None or passing(record):
                continue
            if key.startswith(keys.DEFERRED) and key not in queue.deferral.moving:
                taken.deferred[key] = record.due_ms
            elif key.startswith(keys.WAITING) and queue.windows.zone(zone).withdraw(key):
                taken.waiting.append(key)
            else:
                taken.busy += 1
                continue
            write(batch, key, record)
        queue.windows.unspill(batch, taken.waiting, [key for key, _ in found_now])
        queue.deferral.moving.update(taken.deferred)
        try:
            queue.deferral.retire(batch, taken.deferred)
        except BaseException:
            self._put_back(active, taken)
            raise
        return taken

    def _put_back(self, active: ActiveMessage, taken: _Taken) -> None:
        """Nothing was written: everybody stays where they were."""
        for key in taken.waiting:
            self._queue.windows.zone(keys.parse_recipient(key)[0]).restore(key)
        self._queue.deferral.moving.difference_update(taken.deferred)
        self._queue.release_message(active)

    async def _commit(self, active: ActiveMessage, batch: WriteBatch, taken: _Taken) -> None:
        queue = self._queue
        if batch.ops:
            try:
                then = queue.end(batch, active) if active.remaining == 0 else []
            except BaseException:
                active.remaining += taken.count
                self._put_back(active, taken)
                raise
            for call in then:
                batch.future.add_done_callback(call)
            await queue.commits.submit(batch)
            queue.gone(active)
        queue.release_message(active)
        queue.deferral.moving.difference_update(taken.deferred)
        for key in taken.waiting:
            queue.windows.zone(keys.parse_recipient(key)[0]).forget([key])


def _is_held(record: Waiting) -> bool:
    return record.due_ms == keys.HELD_MS
