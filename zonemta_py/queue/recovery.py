"""What a relay does about the previous life of its queue, before it takes or sends mail.

Nothing is repaired, because every state a crash can leave is a state of DESIGN section 4: a
transaction cut off is uncertain and said so, a body without its marker is removed, a removal is
finished.
"""

import logging
import secrets
from dataclasses import dataclass

from zonemta_py.codec import pack
from zonemta_py.errors import LocalError, QueueCorrupt
from zonemta_py.events.schema import Uncertain
from zonemta_py.queue import keys, transitions
from zonemta_py.queue.cleanup import Cleanup
from zonemta_py.queue.commit import Batch, GroupCommit
from zonemta_py.queue.messages import recipients_of
from zonemta_py.queue.records import (
    FORMAT,
    Inflight,
    Meta,
    Waiting,
    read_inflight,
    read_meta,
    read_waiting,
)
from zonemta_py.queue.store import Store

FORMAT_VERSION = b"2"
FORMATS = (None, b"1", FORMAT_VERSION)
SUSPECT_DELAY_MS = 1000  # between suspects, so that the next crash has one of them under way

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this queue is: its node (6 hex digits), how often it was opened, the last id issued."""

    node: str
    boot: int
    last_id: str


def identify(store: Store) -> Identity:
    """The queue's identity for this life, written at once. Raises LocalError for another format."""
    found = store.get(keys.META_FORMAT)
    if found not in FORMATS:
        raise LocalError(f"the queue has format {found!r}, this version reads {FORMAT_VERSION!r}")
    node = (store.get(keys.META_NODE) or secrets.token_hex(3).encode()).decode()
    boot = int(store.get(keys.META_BOOT) or b"0") + 1
    last_id = (store.get(keys.META_IDS) or b"").decode()
    ops = [
        (keys.META_FORMAT, FORMAT_VERSION),
        (keys.META_NODE, node.encode()),
        (keys.META_BOOT, str(boot).encode()),
    ]
    store.write(store.batch(ops, sync=True))
    return Identity(node, boot, last_id)


async def recover(
    store: Store, commits: GroupCommit, cleanup: Cleanup, poison_after: int, now_ms: int
) -> int:
    """Deal with every key of a previous life; returns how many transactions were uncertain."""
    cut = _CutOff(store, poison_after, now_ms)
    for key, value in list(store.scan(keys.INFLIGHT, keys.end_of(keys.INFLIGHT))):
        batch = Batch()
        cut.transaction(batch, keys.owner_of(key), read_inflight(value))
        batch.delete(key)
        await commits.submit(batch)
    for space in (keys.OPEN, keys.CLEANUP):
        for key in list(store.keys(space, keys.end_of(space))):
            message = keys.owner_of(key)
            if store.get(keys.mark_key(message)) is not None:
                raise QueueCorrupt(f"{message}: {key!r} beside the marker of an accepted message")
            await cleanup.remove_chunks(message)
    if cut.transactions:
        log.warning("%d transactions were cut off; their recipients are sent to again", cut.transactions)
    return cut.transactions


class _CutOff:
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

    def transaction(self, batch: Batch, message: str, inflight: Inflight) -> None:
        """Deal with one ``inflight/`` record."""
        self.transactions += 1
        value = self._store.get(keys.meta_key(message))
        meta = read_meta(value) if value else None
        for key, data in recipients_of(self._store, message, (inflight.zone,)):
            record = read_waiting(data)
            if meta is not None and record.number in inflight.indexes:
                self._recipient(batch, meta, key, record, inflight.attempt)

    def _recipient(self, batch: Batch, meta: Meta, key: bytes, record: Waiting, attempt: int) -> None:
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
