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
from zonemta_py.queue import keys
from zonemta_py.queue.cleanup import Cleanup
from zonemta_py.queue.commit import Batch, GroupCommit
from zonemta_py.queue.records import Inflight, Waiting, read_inflight, read_meta, read_waiting
from zonemta_py.queue.store import Store

FORMAT_VERSION = b"1"
POISON_STARTS = 3  # as many transactions of a recipient cut off by crashes, and it waits
POISON_DELAY_MS = 3_600_000

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
    if found not in (None, FORMAT_VERSION):
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


async def recover(store: Store, commits: GroupCommit, cleanup: Cleanup, now_ms: int) -> int:
    """Deal with every key of a previous life; returns how many transactions were uncertain."""
    uncertain = 0
    for key, value in list(store.scan(keys.INFLIGHT, keys.end_of(keys.INFLIGHT))):
        batch = Batch()
        _cut_off(store, batch, keys.owner_of(key), read_inflight(value), now_ms)
        batch.delete(key)
        await commits.submit(batch)
        uncertain += 1
    for space in (keys.OPEN, keys.CLEANUP):
        for key in list(store.keys(space, keys.end_of(space))):
            message = keys.owner_of(key)
            if store.get(keys.mark_key(message)) is not None:
                raise QueueCorrupt(f"{message}: {key!r} beside the marker of an accepted message")
            await cleanup.remove_chunks(message)
    if uncertain:
        log.warning("%d transactions were cut off; their recipients will be sent to again", uncertain)
    return uncertain


def _cut_off(store: Store, batch: Batch, message: str, inflight: Inflight, now_ms: int) -> None:
    prefix = keys.zone_prefix(keys.WAITING, inflight.zone, message)
    meta = store.get(keys.meta_key(message))
    for key, value in store.scan(prefix, keys.end_of(prefix)):
        record = read_waiting(value)
        if record.number not in inflight.indexes:
            continue
        address = keys.parse_recipient(key)[2]
        record = record._replace(uncertain=record.uncertain + 1)
        batch.record(
            Uncertain(
                time_ms=now_ms,
                message=message,
                index=record.number,
                recipient=address,
                zone=inflight.zone,
                domain=record.domain,
                sender=read_meta(meta).sender if meta else "",
                submitter=record.submitter,
                attempt=inflight.attempt,
                created_ms=keys.created_ms(message),
            )
        )
        if record.uncertain % POISON_STARTS:
            batch.put(key, pack(record))
        else:
            _set_aside(batch, key, inflight.zone, message, address, record, now_ms)


def _set_aside(
    batch: Batch, key: bytes, zone: str, message: str, address: str, record: Waiting, now_ms: int
) -> None:
    """A message that may be what kills the relay must not kill it again at once."""
    due_ms = now_ms + POISON_DELAY_MS
    text = f"the relay stopped {record.uncertain} times in the middle of this delivery"
    log.error("%s to %s: %s; it waits an hour", message, address, text)
    waiting = record._replace(due_ms=due_ms, code=0, status="4.3.0", text=text, last_ms=now_ms)
    batch.delete(key)
    batch.put(keys.deferred_key(zone, message, address), pack(waiting))
    batch.put(keys.due_key(due_ms, zone, message), b"")
