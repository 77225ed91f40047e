"""The keys that each transition between the states of a message writes: one function, one batch.

States and keys are in docs/internals.md. Nothing here reads, waits or decides: ``queue.py`` does.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from zonemta_py.core.codec import pack
from zonemta_py.core.model import OutcomeKind
from zonemta_py.events.schema import (
    Accepted,
    AcceptedRecipient,
    Bounced,
    Deferred,
    Deleted,
    Delivered,
    Expired,
    Held,
    Lapsed,
    Moved,
    Requeued,
    Uncertain,
)
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    FORMAT,
    EnvelopeRecord,
    Inflight,
    Note,
    RecipientRecord,
    RecipientState,
    labels_of,
    starts,
)
from zonemta_py.queue.outcome import AcceptedMessage, Outcome
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.routing import DEFAULT_ZONE
from zonemta_py.smtp.reply_class import ReplyClass

# ---- The events of messages and their recipients, from records of the queue; they are written in the batch of their transition.


def record_accepted(batch: WriteBatch, new: AcceptedMessage, now_ms: int) -> None:
    """The event of a message, and those of its recipients if they are held or moved."""
    message, mark, meta = new.message, new.mark, new.meta
    origin, moved_from = meta.origin, new.moved_from
    batch.record(
        Accepted(
            time_ms=now_ms,
            message=message,
            sender=meta.sender,
            recipients=tuple(
                AcceptedRecipient(
                    r.record.recipient_index,
                    r.address,
                    moved_from.get(r.record.recipient_index, r.zone) if moved_from else r.zone,
                )
                for r in new.recipients
            ),
            size_bytes=len(meta.header) + 2 + mark.size,
            message_id=new.message_id,
            listener=origin.listener,
            client_ip=origin.client_ip,
            helo=origin.helo,
            user=origin.user,
            submitter=origin.submitter,
            tenant=origin.tenant,
            campaign=meta.campaign,
            tags=meta.tags,
            not_before_ms=meta.options.not_before_ms,
            expires_ms=meta.options.expires_ms,
            priority=meta.options.priority,
            protocol=origin.protocol,
            report_for=meta.report_for,
            submission=new.submission,
            same_key_as=new.key.other if new.key is not None else "",
            ignored=new.ignored,
        )
    )
    for recipient in new.recipients if new.hold else ():
        held = event_fields(meta, recipient.key, recipient.record, now_ms)
        batch.record(Held(**held, reason=new.hold))
    for zone in sorted(set(moved_from.values())):
        indexes = tuple(index for index, was in moved_from.items() if was == zone)
        batch.record(
            Moved(time_ms=now_ms, message=message, recipients=indexes, zone=zone, new_zone=DEFAULT_ZONE)
        )


def _lapsed(meta: EnvelopeRecord, outcome: Outcome, report: str, now_ms: int) -> Lapsed:
    recipient, expires_ms = outcome.recipient, meta.options.expires_ms
    fields = event_fields(meta, recipient.key, recipient.record, now_ms)
    return Lapsed(**fields, expires_ms=expires_ms, reply=outcome.attempt.text, report=report)


def _record_uncertain(batch: WriteBatch, meta: EnvelopeRecord, outcome: Outcome, now_ms: int) -> None:
    """The event of a recipient that may have the message twice, or may have it although no server said so."""
    recipient = outcome.recipient
    fields = event_fields(meta, recipient.key, recipient.record, now_ms)
    batch.record(Uncertain(**{**fields, "attempt": recipient.record.attempts + outcome.attempted}))


def record_outcome(
    batch: WriteBatch, meta: EnvelopeRecord, outcome: Outcome, report: str, now_ms: int, created_ms: int
) -> None:
    """The event of an outcome; a recipient that is deferred without an attempt has none."""
    recipient, attempt = outcome.recipient, outcome.attempt
    if outcome.kind is OutcomeKind.LAPSED:
        batch.record(_lapsed(meta, outcome, report, now_ms))
        return
    if not outcome.attempted and outcome.kind is OutcomeKind.DEFERRED:
        return
    if attempt.uncertain and outcome.kind is not OutcomeKind.DEFERRED:
        _record_uncertain(batch, meta, outcome, now_ms)
    fields: dict[str, Any] = {
        "time_ms": now_ms,
        "message": recipient.message,
        "index": recipient.record.recipient_index,
        "recipient": recipient.address,
        "zone": recipient.zone,
        "domain": recipient.record.domain,
        "sender": meta.sender,
        "submitter": meta.origin.submitter,
        "tenant": meta.origin.tenant,
        "campaign": meta.campaign,
        "tags": meta.tags,
        "attempt": recipient.record.attempts + outcome.attempted,
        "created_ms": created_ms,
        "phase": attempt.phase,
        "code": attempt.code,
        "status": attempt.status,
        "reply": attempt.text,
        "mx": attempt.mx,
        "mx_ip": attempt.mx_ip,
        "source_ip": attempt.source_ip,
        "tls": attempt.tls,
        "duration_ms": attempt.duration_ms,
        "reply_class": attempt.reply_class,
        "provider": attempt.provider,
    }
    if outcome.kind is OutcomeKind.DELIVERED:
        batch.record(Delivered(**fields))
    elif outcome.kind is OutcomeKind.DEFERRED:
        due_ms = 0 if outcome.held_by else outcome.due_ms
        batch.record(Deferred(**fields, due_ms=due_ms, uncertain=attempt.uncertain))
    elif outcome.kind is OutcomeKind.REQUEUED:
        message, index = outcome.again
        batch.record(Requeued(**fields, due_ms=outcome.due_ms, new_message=message, new_index=index))
    elif outcome.kind is OutcomeKind.BOUNCED:
        batch.record(Bounced(**fields, report=report))
    else:
        batch.record(Expired(**fields, report=report))


def event_fields(
    meta: EnvelopeRecord, key: bytes, record: RecipientRecord, now_ms: int
) -> dict[str, Any]:
    """The fields of every event about a recipient; ``attempt`` is the number of those that ended."""
    zone, message, address = keys.parse_recipient(key)
    return {
        "time_ms": now_ms,
        "message": message,
        "index": record.recipient_index,
        "recipient": address,
        "zone": zone,
        "domain": record.domain,
        "sender": meta.sender,
        "submitter": meta.origin.submitter,
        "tenant": meta.origin.tenant,
        "campaign": meta.campaign,
        "tags": meta.tags,
        "attempt": record.attempts,
        "created_ms": starts(meta, message),
    }


# ---- transitions

_KINDS = {
    OutcomeKind.DELIVERED: "deliver", OutcomeKind.DEFERRED: "defer", OutcomeKind.BOUNCED: "bounce", OutcomeKind.EXPIRED: "bounce",
    OutcomeKind.LAPSED: "bounce", OutcomeKind.REQUEUED: "requeue",
}  # fmt: skip


def accept(batch: WriteBatch, new: AcceptedMessage, due_keys: Iterable[bytes], now_ms: int) -> None:
    """S0 or S1 → S2: the tail, both markers, the recipients with their ``due_keys``, the event."""
    batch.kinds.append("accept")
    message, mark, meta = new.message, new.mark, new.meta
    first = mark.chunks - len(new.tail) + 1
    for number, chunk in enumerate(new.tail, first):
        batch.put(keys.chunk_key(message, number), chunk)
    batch.put(keys.mark_key(message), pack(mark))
    batch.put_record(keys.meta_key(message), meta)
    batch.put_records([(r.key, r.record) for r in new.recipients])
    _count(batch, meta, new.recipients, enter=True)
    for due in due_keys:
        batch.put(due, b"")
    if mark.chunks > len(new.tail):
        batch.delete(keys.open_key(message))
    if new.key is not None:
        for key, value in new.key.rows():
            batch.put(key, value)
    record_accepted(batch, new, now_ms)


def start(
    batch: WriteBatch,
    message: str,
    number: int,
    recipients: Sequence[QueuedRecipient],
    boot: int,
    now_ms: int,
) -> None:
    """S2 → S2: a transaction begins; durable before its final dot goes out."""
    batch.kinds.append("start")
    first = recipients[0]
    record = Inflight(
        version=FORMAT,
        boot=boot,
        zone=first.zone,
        indexes=tuple([r.record.recipient_index for r in recipients]),
        attempt=first.record.attempts + 1,
        since_ms=now_ms,
    )
    batch.put(keys.inflight_key(message, number), pack(record))


def settle(
    batch: WriteBatch,
    meta: EnvelopeRecord,
    number: int | None,
    outcomes: Sequence[Outcome],
    report: str,
    now_ms: int,
) -> None:
    """S2 → S2: each recipient deferred or removed, the transaction ended, the events.

    ``number`` of the transaction, None if it was not started. ``report``: the id of the failure report
    accepted in the same batch, or empty.
    """
    if number is not None:
        batch.delete(keys.inflight_key(outcomes[0].recipient.message, number))
    created_ms = starts(meta, outcomes[0].recipient.message)
    left: list[QueuedRecipient] = []
    for outcome in outcomes:
        recipient = outcome.recipient
        batch.kinds.append(_KINDS[outcome.kind])
        batch.delete(recipient.key)
        if outcome.kind is OutcomeKind.DEFERRED:
            _defer(batch, outcome, now_ms)
        else:
            left.append(recipient)
        record_outcome(batch, meta, outcome, report, now_ms, created_ms)
    _count(batch, meta, left, enter=False)


def due_keys_of(recipients: Iterable[QueuedRecipient]) -> set[bytes]:
    """The ``due/`` keys of recipients that are deferred."""
    return {keys.due_key(r.record.due_ms, r.zone, r.message) for r in recipients if r.record.due_ms}


def due_keys(outcomes: Sequence[Outcome]) -> set[bytes]:
    """The ``due/`` keys that settling ``outcomes`` writes."""
    return {
        keys.due_key(outcome.due_ms, outcome.recipient.zone, outcome.recipient.message)
        for outcome in outcomes
        if outcome.kind is OutcomeKind.DEFERRED
    }


def _count(
    batch: WriteBatch, meta: EnvelopeRecord, recipients: Sequence[QueuedRecipient], *, enter: bool
) -> None:
    """Count recipients of a message that enter or leave the queue."""
    if len(recipients) == 1:  # most messages have one
        each = recipients[0]
        state, domain = each.record.state, each.record.domain
        before, after = (None, state) if enter else (state, None)
        labels = labels_of(meta, each.message)
        batch.counts.append((each.zone, each.message, domain, before, after, 1, labels))
        return
    groups: dict[tuple[str, str, RecipientState], int] = {}
    zone, domain, state, count = "", "", RecipientState.WAITING, 0
    for each in recipients:  # most are like the one before
        record = each.record
        if record.domain == domain and each.zone == zone and not (state or record.due_ms):
            count += 1
            continue
        if count:
            groups[zone, domain, state] = groups.get((zone, domain, state), 0) + count
        zone, domain, state, count = each.zone, record.domain, record.state, 1
    if count:
        groups[zone, domain, state] = groups.get((zone, domain, state), 0) + count
        message = recipients[0].message
        labels = labels_of(meta, message)
        for (zone, domain, state), count in groups.items():
            before, after = (None, state) if enter else (state, None)
            batch.counts.append((zone, message, domain, before, after, count, labels))


def move(
    batch: WriteBatch, zone: str, message: str, before: RecipientRecord, after: RecipientRecord
) -> None:
    """Count the change of a recipient that stays in the queue."""
    batch.counts.append((zone, message, after.domain, before.state, after.state, 1, None))


def _defer(batch: WriteBatch, outcome: Outcome, now_ms: int) -> None:
    recipient = outcome.recipient
    record = deferred(outcome, now_ms)
    zone, message = recipient.zone, recipient.message
    batch.put_record(keys.deferred_key(zone, message, recipient.address), record)
    batch.put(keys.due_key(outcome.due_ms, zone, message), b"")
    move(batch, zone, message, recipient.record, record)


def deferred(outcome: Outcome, now_ms: int) -> RecipientRecord:
    """The record of a recipient after an attempt that failed temporarily."""
    record, attempt = outcome.recipient.record, outcome.attempt
    if not outcome.attempted:
        return record._replace(due_ms=outcome.due_ms)
    return record._replace(
        attempts=record.attempts + outcome.counted,
        due_ms=outcome.due_ms,
        last_ms=now_ms,
        uncertain=0,  # this attempt was not interrupted
        code=attempt.code,
        status=attempt.status,
        text=attempt.text,
        source=attempt.source_ip or record.source,  # without a session, that of the attempt before
        reply_class=attempt.reply_class,
        blocked=record.blocked + (attempt.code >= 500 and attempt.reply_class == ReplyClass.BLOCKED),
    )


def delete(
    batch: WriteBatch, meta: EnvelopeRecord, key: bytes, record: RecipientRecord, now_ms: int
) -> None:
    """S2 → S2: an operator removes a recipient. ``key`` is its waiting or deferred key."""
    batch.kinds.append("delete")
    batch.delete(key)
    zone, message, _ = keys.parse_recipient(key)
    labels = labels_of(meta, message)
    batch.counts.append((zone, message, record.domain, record.state, None, 1, labels))
    batch.record(Deleted(**event_fields(meta, key, record, now_ms)))


def hold(
    batch: WriteBatch,
    meta: EnvelopeRecord,
    key: bytes,
    record: RecipientRecord,
    reason: str,
    now_ms: int,
    by: str = "",
) -> RecipientRecord:
    """S2 → S2: a recipient is held. ``key`` is its waiting or deferred key; returns its new record.

    ``by``: see ``RecipientRecord.held_by``.
    """
    batch.kinds.append("hold")
    zone, message, address = keys.parse_recipient(key)
    batch.delete(key)
    held = record._replace(due_ms=keys.HELD_MS, held_by=by)
    batch.put_record(keys.deferred_key(zone, message, address), held)
    move(batch, zone, message, record, held)
    batch.put(keys.due_key(keys.HELD_MS, zone, message), b"")
    batch.record(Held(**event_fields(meta, key, record, now_ms), reason=reason))
    return held


def hold_for_other(
    batch: WriteBatch, meta: EnvelopeRecord, key: bytes, record: RecipientRecord, by: str, now_ms: int
) -> None:
    """S2 → S2: a recipient that is held stays so, for an operator or a tenant (``by``)."""
    batch.put_record(key, record._replace(held_by=by))
    batch.record(Held(**event_fields(meta, key, record, now_ms), reason=holder(by)))


def holder(by: str) -> str:
    """Who holds mail by a command; ``by``: see ``RecipientRecord.held_by``."""
    return f"tenant {by}" if by else "an operator"


def note(batch: WriteBatch, message: str, failure: Note) -> None:
    """S2 → S2: keep a failure for the report at the end of its message."""
    batch.put_record(keys.bounce_key(message, failure.recipient_index), failure)


def warn(batch: WriteBatch, message: str, meta: EnvelopeRecord) -> EnvelopeRecord:
    """S2 → S2: a warning of delay was sent; returns the changed envelope."""
    warned = meta._replace(version=FORMAT, warned=True)
    batch.put_record(keys.meta_key(message), warned)
    return warned


def set_aside(batch: WriteBatch, key: bytes, value: bytes) -> None:
    """Keep the value of an ``outbox/`` key, which cannot be read, under another key."""
    batch.delete(key)
    batch.put(keys.damaged_key(key), value)


def last(batch: WriteBatch, message: str, chunks: int, notes: Iterable[Note]) -> None:
    """S2 → S0, or → S1 with ``cleanup/`` when there is more than one chunk to remove.

    ``notes`` are those on disk; their report is accepted in the same batch.
    """
    for failure in notes:
        batch.delete(keys.bounce_key(message, failure.recipient_index))
    batch.kinds.append("last")
    batch.delete(keys.mark_key(message))
    batch.delete(keys.meta_key(message))
    if chunks == 1:
        batch.delete(keys.chunk_key(message, 1))
    elif chunks > 1:
        batch.put(keys.cleanup_key(message), b"")


def wake(
    batch: WriteBatch, zone: str, message: str, address: str, record: RecipientRecord
) -> QueuedRecipient:
    """S2 → S2: a deferred recipient is ready again; returns it."""
    batch.kinds.append("wake")
    key = keys.waiting_key(zone, message, address)
    ready = record._replace(version=FORMAT, due_ms=0, held_by="")
    batch.delete(keys.deferred_key(zone, message, address))
    batch.put_record(key, ready)
    move(batch, zone, message, record, ready)
    return QueuedRecipient(key, zone, message, address, ready)
