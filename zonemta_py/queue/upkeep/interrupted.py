"""What becomes of recipients whose transaction was cut off: by a crash, or by the end of its sender.

A lease whose sender process ended in the middle of it: for this lease, what a crash is for all.
"""

import logging
from typing import TYPE_CHECKING

from zonemta_py.core.codec import pack
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.events.schema import Uncertain
from zonemta_py.queue import transitions
from zonemta_py.queue.active import Lease, recipients_of
from zonemta_py.queue.batch import CommitFuture, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, Inflight, Meta, Waiting, read_meta, read_waiting
from zonemta_py.queue.submitter_queues import Recipient
from zonemta_py.storage.interface import Store

if TYPE_CHECKING:
    from zonemta_py.queue.queue import Queue

SUSPECT_DELAY_MS = 1000  # between suspects, so that the next crash has one of them under way

log = logging.getLogger(__name__)


class CutOff:
    """What becomes of recipients whose transaction a crash cut off.

    They are uncertain and ready again. One that is cut off once more than a neighbour of a crash
    should be waits alone for its next attempt; one cut off ``poison_after`` times is held.
    """

    def __init__(self, store: Store, poison_after: int, now_ms: int) -> None:
        self._store = store
        self._poison_after = poison_after
        self._now_ms = now_ms
        self._suspects = 0
        self.transactions = 0

    def transaction(self, batch: WriteBatch, message: str, inflight: Inflight) -> None:
        """Deal with one ``inflight/`` record."""
        self.transactions += 1
        value = self._store.get(keys.meta_key(message))
        meta = read_meta(value) if value else None
        for key, data in recipients_of(self._store, message, (inflight.zone,)):
            record = read_waiting(data)
            if meta is not None and record.number in inflight.indexes:
                self._recipient(batch, meta, key, record, inflight.attempt)

    def _recipient(
        self, batch: WriteBatch, meta: Meta, key: bytes, record: Waiting, attempt: int
    ) -> None:
        zone, message, address = keys.parse_recipient(key)
        facts = transitions.facts_of(meta, key, record, self._now_ms)
        batch.record(Uncertain(**{**facts, "attempt": attempt}))
        record = record._replace(version=FORMAT, uncertain=record.uncertain + 1)
        if record.uncertain >= self._poison_after:
            reason = f"the relay stopped {record.uncertain} times in the middle of this delivery"
            log.critical("%s to %s is held: %s", message, address, reason)
            record = record._replace(code=0, status="4.3.0", text=reason, last_ms=self._now_ms)
            transitions.hold(batch, meta, key, record, reason, self._now_ms)
        elif 1 < record.uncertain >= self._poison_after - 1:
            self._suspects += 1
            due_ms = self._now_ms + self._suspects * SUSPECT_DELAY_MS
            batch.delete(key)
            waiting = record._replace(due_ms=due_ms)
            batch.put(keys.deferred_key(zone, message, address), pack(waiting))
            batch.put(keys.due_key(due_ms, zone, message), b"")
        else:
            batch.put(key, pack(record))


def cut_off(queue: "Queue", lease: Lease) -> CommitFuture:
    """End ``lease``: its recipients are uncertain, and ready again, later, or held, as after a crash."""
    message, now_ms = lease.active.id, queue.now()
    assert lease.number is not None
    batch = WriteBatch()
    cut = CutOff(queue.store, queue.poison_after, now_ms)
    indexes = tuple(recipient.record.number for recipient in lease.recipients)
    attempt = lease.recipients[0].record.attempts + 1
    cut.transaction(batch, message, Inflight(FORMAT, queue.boot, lease.zone, indexes, attempt, now_ms))
    batch.delete(keys.inflight_key(message, lease.number))
    left = {key: value for key, value in batch.ops if value is not None}
    dues = [key for key in left if key.startswith(keys.DUE)]
    for due in dues:
        queue.deferral.expect(due)

    def written(failure: QueueUnavailable | None) -> None:
        if failure is not None:
            return  # the lease stays: the next life of the queue finds everything as it was
        window = queue.windows.zone(lease.zone)
        again = []
        for recipient in lease.recipients:
            value = left.get(recipient.key)
            if value is None:
                window.forget([recipient.key])
            else:
                record = read_waiting(value)
                again.append(Recipient(recipient.key, lease.zone, message, recipient.address, record))
        if again:
            window.give_back(lease.destination, again)
            queue.windows.on_ready(lease.zone, lease.destination, False)
        for due in dues:
            queue.deferral.arrived(due)
        queue.release_message(lease.active)

    batch.future.add_done_callback(written)
    return queue.commits.submit(batch)
