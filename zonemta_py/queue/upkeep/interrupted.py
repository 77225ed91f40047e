"""Deliveries that ended without a reply: by a crash of the relay, or by the end of one sender process.

Their recipients are *uncertain*: the peer may have the message. An event says so, and they are ready again.
"""

import logging

from zonemta_py.events.schema import Uncertain
from zonemta_py.queue import transitions
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    FORMAT,
    EnvelopeRecord,
    Inflight,
    RecipientRecord,
    read_meta,
    read_recipient_record,
)
from zonemta_py.queue.messages import recipients_of
from zonemta_py.queue.transitions import event_fields
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)


SUSPECT_DELAY_MS = 1000  # between suspects, so that one of them is in flight at the next crash


class InterruptedDeliveries:
    """The transitions of recipients whose delivery was interrupted.

    A recipient interrupted more often than a bystander of a crash should be is a suspect: it waits alone
    for its next attempt. After ``poison_after`` interruptions in a row it is held.
    """

    def __init__(self, store: Store, poison_after: int, now_ms: int) -> None:
        self._store = store
        self._poison_after = poison_after
        self._now_ms = now_ms
        self._suspects = 0
        self.transactions = 0

    def add(self, batch: WriteBatch, message: str, inflight: Inflight) -> dict[bytes, RecipientRecord]:
        """Put the transitions of one ``inflight/`` record into ``batch``.

        Returns the recipients that are ready again or deferred, by their key after ``batch``.
        """
        self.transactions += 1
        value = self._store.get(keys.meta_key(message))
        meta = read_meta(value) if value else None
        remaining: dict[bytes, RecipientRecord] = {}
        for key, data in recipients_of(self._store, message, (inflight.zone,)):
            record = read_recipient_record(data)
            if meta is not None and record.recipient_index in inflight.indexes:
                after, changed = self._interrupt(batch, meta, key, record, inflight.attempt)
                remaining[after] = changed
        return remaining

    def _interrupt(
        self, batch: WriteBatch, meta: EnvelopeRecord, key: bytes, record: RecipientRecord, attempt: int
    ) -> tuple[bytes, RecipientRecord]:
        zone, message, address = keys.parse_recipient(key)
        fields = event_fields(meta, key, record, self._now_ms)
        batch.record(Uncertain(**{**fields, "attempt": attempt}))
        before, record = record, record._replace(version=FORMAT, uncertain=record.uncertain + 1)
        if record.uncertain >= self._poison_after:
            reason = f"the relay stopped {record.uncertain} times in the middle of this delivery"
            log.critical("%s to %s is held: %s", message, address, reason)
            transitions.move(batch, zone, message, before, record)
            record = record._replace(code=0, status="4.3.0", text=reason, last_ms=self._now_ms)
            held = transitions.hold(batch, meta, key, record, reason, self._now_ms)
            return keys.deferred_key(zone, message, address), held
        if 1 < record.uncertain >= self._poison_after - 1:
            self._suspects += 1
            due_ms = self._now_ms + self._suspects * SUSPECT_DELAY_MS
            batch.delete(key)
            suspect, deferred_key = (
                record._replace(due_ms=due_ms),
                keys.deferred_key(zone, message, address),
            )
            batch.put_record(deferred_key, suspect)
            transitions.move(batch, zone, message, before, suspect)
            batch.put(keys.due_key(due_ms, zone, message), b"")
            return deferred_key, suspect
        batch.put_record(key, record)
        transitions.move(batch, zone, message, before, record)
        return key, record
