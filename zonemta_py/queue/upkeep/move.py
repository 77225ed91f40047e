"""Moves recipients: to now (``flush``), to another zone (``move_zone``), to a new message (``requeue``).

States: of a flush, which reads ``deferred/`` in slices of WAKE_MAX: between messages, or within one, whose ``due/`` keys it deletes
at the end. Of a requeued message: its body is copied under ``open/`` ─▶ the new message is accepted and the old one removed, in one
batch.

Invariants:

- A flush wakes by ``Deferral.commit``, so nothing else moves the same recipients. Held mail, and mail that its submitter wants sent
  later, is left alone.
- A message changes its zone in one batch, with its ``due/`` keys, its envelope and an event. This is done before mail is accepted or
  sent; spill keys of the old zone are deleted, and the start-up scan of the new one finds the recipients.
- A crash while a body is copied leaves nothing but chunks without a marker, which the next start removes.
- Requeued recipients keep their attempts and flags, the message its age (decision 50).

Callers: the operation ``flush``, and ``Relay.flush`` for a signal; the start of a relay for ``settle_removed_zones``;
``dequeue.channel`` for a program that defers some recipients of what it has dequeued.

Example: a program delivers to two of three recipients and defers the third, which is then the only one of a new message.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence, Set
from itertools import islice

from zonemta_py.core.codec import replace
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.model import OutcomeKind
from zonemta_py.events.schema import Moved
from zonemta_py.queue import transitions
from zonemta_py.queue.census import zones_on_disk
from zonemta_py.queue.commit import GroupCommit, WriteBatch
from zonemta_py.queue.deferral import WAKE_MAX, Deferral, readable
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, born, read_meta, read_recipient_record
from zonemta_py.queue.messages import ActiveMessage, MessageWriter
from zonemta_py.queue.outcome import AcceptedMessage, Outcome
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.queue.transitions import deferred
from zonemta_py.smtp.headers import field_value, scan
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)


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


# ---- Moves recipients of a zone that the configuration no longer has; one batch per message.


async def move_zone(store: Store, commits: GroupCommit, zone: str, new_zone: str, now_ms: int) -> int:
    """Move all recipients of ``zone``; returns how many messages. Before mail is accepted or sent."""
    messages = {
        keys.parse_recipient(key)[1]
        for space in (keys.WAITING, keys.DEFERRED)
        for key in store.keys(keys.zone_prefix(space, zone), keys.end_of(keys.zone_prefix(space, zone)))
    }
    for message in sorted(messages):
        batch = WriteBatch()
        moved = []
        for space in (keys.WAITING, keys.DEFERRED):
            prefix = keys.zone_prefix(space, zone, message)
            for key, value in store.scan(prefix, keys.end_of(prefix)):
                record = read_recipient_record(value)
                address = keys.parse_recipient(key)[2]
                batch.delete(key)
                if space == keys.WAITING:
                    batch.put(keys.waiting_key(new_zone, message, address), value)
                else:
                    batch.put(keys.deferred_key(new_zone, message, address), value)
                    batch.delete(keys.due_key(record.due_ms, zone, message))
                    batch.put(keys.due_key(record.due_ms, new_zone, message), b"")
                moved.append(record.recipient_index)
        meta_value = store.get(keys.meta_key(message))
        if meta_value is not None:
            meta = read_meta(meta_value)
            zones = tuple(sorted({*meta.zones, new_zone} - {zone}))
            batch.put_record(keys.meta_key(message), meta._replace(zones=zones))
        batch.record(
            Moved(time_ms=now_ms, message=message, recipients=tuple(moved), zone=zone, new_zone=new_zone)
        )
        await commits.submit(batch)
    batch = WriteBatch()
    for key in store.keys(
        keys.zone_prefix(keys.SPILL, zone), keys.end_of(keys.zone_prefix(keys.SPILL, zone))
    ):
        batch.delete(key)  # the start-up scan of the new zone finds them
    await commits.submit(batch)
    return len(messages)


async def settle_removed_zones(
    store: Store, commits: GroupCommit, configured: Set[str], move_to: str | None, now_ms: int
) -> None:
    """Move mail of zones that are not configured to ``move_to``. Raises ConfigError when that is None."""
    for zone in sorted(zones_on_disk(store) - configured):
        if move_to is None:
            raise ConfigError(
                f"zones: recipients wait in zone '{zone}', which the configuration lacks; "
                "add it, or set zone_removed: default to move them"
            )
        moved = await move_zone(store, commits, zone, move_to, now_ms)
        log.warning("zone '%s' is gone: %d messages moved to '%s'", zone, moved, move_to)


# ---- A new message for the deferred recipients of one whose other recipients are settled (decision 50).
#
# A program that dequeues gets what it deferred under a new id, and the old message ends. The body is copied
# first, under ``open/``, so that a crash leaves nothing; the new message, the reports and the removal of the
# old one are one batch.


async def copy_body(queue: Queue, active: ActiveMessage) -> MessageWriter:
    """A writer with a copy of the body. Raises QueueCorrupt, QueueUnavailable; the copy is then removed."""
    writer = queue.open_message()
    try:
        async for chunk in queue.bodies.stream(active):
            written = writer.write(chunk)
            if written is not None:
                await written
    except BaseException:
        queue.abort(writer)
        raise
    return writer


def requeue(
    writer: MessageWriter, active: ActiveMessage, outcomes: Sequence[Outcome], now_ms: int
) -> tuple[AcceptedMessage, list[Outcome]]:
    """The new message for the deferred recipients, and ``outcomes`` with those as requeued.

    The recipients keep their attempts and flags, the message its age.
    """
    message, meta = writer.id, active.meta
    recipients: list[QueuedRecipient] = []
    ended: list[Outcome] = []
    for outcome in outcomes:
        if outcome.kind is not OutcomeKind.DEFERRED:
            ended.append(outcome)
            continue
        again = (message, len(recipients))
        ended.append(replace(outcome, kind=OutcomeKind.REQUEUED, again=again))
        was = outcome.recipient
        record = deferred(outcome, now_ms)._replace(version=FORMAT, recipient_index=again[1])
        key = keys.deferred_key(was.zone, message, was.address)
        recipients.append(QueuedRecipient(key, was.zone, message, was.address, record))
    kept = meta._replace(
        version=FORMAT,
        zones=tuple(sorted({recipient.zone for recipient in recipients})),
        born_ms=born(meta, active.id),
    )
    last = writer.last
    mark = writer.mark(active.mark.created_ms)
    tail = [last] if last else []
    return AcceptedMessage(
        message=message, meta=kept, mark=mark, tail=tail, recipients=recipients, message_id=_message_id(meta.header),
    ), ended  # fmt: skip


def _message_id(header: bytes) -> str:
    for field in scan(header)[0]:
        if field.name == b"message-id":
            return field_value(header, field)
    return ""
