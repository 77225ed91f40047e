"""An operator's commands on one message: delete, hold, release, while deliveries run.

Recipients in a transaction are left alone and counted: the reply of the peer is not known yet. What a
command removes, and whether the message ends by it, is decided and submitted in one turn of the loop:
a settle in between would decide on the same last recipient.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.events.schema import Released
from zonemta_py.queue import transitions
from zonemta_py.queue.active import ActiveMessage, recipients_of
from zonemta_py.queue.batch import CommitFuture, DoneCallback, WriteBatch
from zonemta_py.queue.deferral import readable
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Waiting
from zonemta_py.queue.submitter_queues import QueuedRecipient

if TYPE_CHECKING:
    from zonemta_py.queue.queue import Queue

Write = Callable[[WriteBatch, ActiveMessage, bytes, Waiting], None]


@dataclass(slots=True)
class _Withdrawal:
    """Recipients of one message that neither a worker nor a timer takes until ``batch`` is on disk.

    ``deferred``: key to due time (ms). ``due_keys``: what ``batch`` writes for the timer. ``busy``: how many
    are in a transaction and were left alone.
    """

    active: ActiveMessage
    batch: WriteBatch
    waiting: list[bytes] = field(default_factory=list)
    deferred: dict[bytes, int] = field(default_factory=dict)
    due_keys: list[bytes] = field(default_factory=list)
    busy: int = 0

    @property
    def count(self) -> int:
        return len(self.waiting) + len(self.deferred)


class Operator:
    """The operator's verbs of ``queue``. Each raises QueueUnavailable, QueueCorrupt."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue

    async def delete(self, message: str, address: str | None = None) -> tuple[int, int]:
        """Remove a message's recipients, or one; returns (removed, left because in flight)."""
        now_ms = self._queue.now()

        def write(batch: WriteBatch, active: ActiveMessage, key: bytes, record: Waiting) -> None:
            transitions.delete(batch, active.meta, key, record, now_ms)

        if not self._exists(message):
            return 0, 0
        withdrawal = self._withdraw(message, address, write)
        withdrawal.active.remaining -= withdrawal.count
        await self._submit(withdrawal)
        return withdrawal.count, withdrawal.busy

    async def hold(
        self, message: str, address: str | None = None, reason: str = "an operator"
    ) -> tuple[int, int]:
        """Hold a message's recipients, or one; returns (held, left because in flight)."""
        now_ms = self._queue.now()

        def write(batch: WriteBatch, active: ActiveMessage, key: bytes, record: Waiting) -> None:
            transitions.hold(batch, active.meta, key, record, reason, now_ms)

        if not self._exists(message):
            return 0, 0
        withdrawal = self._withdraw(message, address, write, skip=_is_held)
        zones = {keys.parse_recipient(key)[0] for key in (*withdrawal.waiting, *withdrawal.deferred)}
        withdrawal.due_keys = [keys.due_key(keys.HELD_MS, zone, message) for zone in zones]
        await self._submit(withdrawal)
        return withdrawal.count, withdrawal.busy

    async def release(self, message: str, address: str | None = None) -> int:
        """Make held recipients of a message ready now; returns how many."""
        queue, now_ms = self._queue, self._queue.now()
        if not self._exists(message):
            return 0
        active = queue.acquire_message(message)
        batch, woken, removed = WriteBatch(), list[QueuedRecipient](), dict[bytes, int]()
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
                removed[key] = record.due_ms
                batch.record(Released(**transitions.event_fields(active.meta, key, record, now_ms)))
            queue.deferral.delete_unused_due_keys(batch, removed)
            if woken:
                await asyncio.shield(queue.deferral.commit(batch, woken))
        finally:
            queue.release_message(active)
        return len(woken)

    def _exists(self, message: str) -> bool:
        return self._queue.store.get(keys.meta_key(message)) is not None

    def _withdraw(
        self,
        message: str,
        address: str | None,
        write: Write,
        skip: Callable[[Waiting], bool] = lambda _: False,
    ) -> _Withdrawal:
        """Take matching recipients out of window and timer, and ``write`` their transition."""
        queue = self._queue
        active = queue.acquire_message(message)
        withdrawal = _Withdrawal(active, WriteBatch())
        try:
            with queue.store.frozen() as view:
                found_now = list(recipients_of(view, message, active.meta.zones))
            for key, value in found_now:
                zone, _, found = keys.parse_recipient(key)
                record = readable(key, value) if address in (None, found) else None
                if record is None or skip(record):
                    continue
                if key.startswith(keys.DEFERRED) and key not in queue.deferral.moving:
                    withdrawal.deferred[key] = record.due_ms
                elif key.startswith(keys.WAITING) and queue.windows.zone(zone).withdraw(key):
                    withdrawal.waiting.append(key)
                else:
                    withdrawal.busy += 1
                    continue
                write(withdrawal.batch, active, key, record)
            queue.deferral.moving.update(withdrawal.deferred)
            queue.windows.delete_unused_spills(
                withdrawal.batch, withdrawal.waiting, [key for key, _ in found_now]
            )
            queue.deferral.delete_unused_due_keys(withdrawal.batch, withdrawal.deferred)
        except BaseException:
            self._restore(withdrawal)
            raise
        return withdrawal

    def _restore(self, withdrawal: _Withdrawal) -> None:
        """Nothing was written: the recipients stay as they were."""
        for key in withdrawal.waiting:
            self._queue.windows.zone(keys.parse_recipient(key)[0]).restore(key)
        self._queue.deferral.moving.difference_update(withdrawal.deferred)
        self._queue.release_message(withdrawal.active)

    def _submit(self, withdrawal: _Withdrawal) -> CommitFuture:
        """Write the batch of ``withdrawal``, which ends the message when no recipient remains."""
        queue, active, batch = self._queue, withdrawal.active, withdrawal.batch
        if not batch.ops:
            self._restore(withdrawal)
            batch.future.set_result()
            return batch.future
        callbacks: list[DoneCallback] = []
        try:
            if active.remaining == 0:
                callbacks = queue.end_message(batch, active)
        except BaseException:
            active.remaining += withdrawal.count
            self._restore(withdrawal)
            raise
        for due in withdrawal.due_keys:
            queue.deferral.expect(due)
        for callback in callbacks:
            batch.future.add_done_callback(callback)
        batch.future.add_done_callback(partial(self._written, withdrawal))
        return queue.commits.submit(batch)

    def _written(self, withdrawal: _Withdrawal, failure: QueueUnavailable | None) -> None:
        if failure is not None:
            return  # the next boot finds everything as it was
        queue = self._queue
        queue.message_written(withdrawal.active)
        queue.release_message(withdrawal.active)
        queue.deferral.moving.difference_update(withdrawal.deferred)
        for key in withdrawal.waiting:
            queue.windows.zone(keys.parse_recipient(key)[0]).forget([key])
        for due in withdrawal.due_keys:
            queue.deferral.written(due)


def _is_held(record: Waiting) -> bool:
    return record.due_ms == keys.HELD_MS
