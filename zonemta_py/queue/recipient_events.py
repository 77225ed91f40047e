"""The events of messages and their recipients, from records of the queue; they are written in the batch of their transition."""

from typing import Any

from zonemta_py.core.model import OutcomeKind
from zonemta_py.events.schema import (
    Accepted,
    AcceptedRecipient,
    Bounced,
    Deferred,
    Delivered,
    Expired,
    Held,
    Lapsed,
    Moved,
    Requeued,
    Uncertain,
)
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Meta, RecipientRecord, starts
from zonemta_py.queue.outcome import AcceptedMessage, Outcome
from zonemta_py.routing import DEFAULT_ZONE


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


def _lapsed(meta: Meta, outcome: Outcome, report: str, now_ms: int) -> Lapsed:
    recipient, expires_ms = outcome.recipient, meta.options.expires_ms
    fields = event_fields(meta, recipient.key, recipient.record, now_ms)
    return Lapsed(**fields, expires_ms=expires_ms, reply=outcome.attempt.text, report=report)


def _record_uncertain(batch: WriteBatch, meta: Meta, outcome: Outcome, now_ms: int) -> None:
    """The event of a recipient that may have the message twice, or may have it although no server said so."""
    recipient = outcome.recipient
    fields = event_fields(meta, recipient.key, recipient.record, now_ms)
    batch.record(Uncertain(**{**fields, "attempt": recipient.record.attempts + outcome.attempted}))


def record_outcome(
    batch: WriteBatch, meta: Meta, outcome: Outcome, report: str, now_ms: int, created_ms: int
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


def event_fields(meta: Meta, key: bytes, record: RecipientRecord, now_ms: int) -> dict[str, Any]:
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
