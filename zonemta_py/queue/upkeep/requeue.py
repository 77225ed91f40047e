"""Deferred recipients of a message whose others are dealt with for good: a message of their own.

A program that dequeues sees what it deferred under a new id, and the old one is gone (decision 50). The
body is copied first, under ``open/``, so that a crash leaves nothing; the new message, the reports and
the removal of the old one are one batch.
"""

from collections.abc import Sequence

from zonemta_py.core.codec import replace
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.active import ActiveMessage
from zonemta_py.queue.chunks import MessageWriter
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, born
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.submitter_queues import Recipient
from zonemta_py.queue.transitions import AcceptedMessage, Outcome, deferred
from zonemta_py.smtp.headers import field_value, scan


async def copied(queue: Queue, active: ActiveMessage) -> MessageWriter:
    """A new message with the body of ``active``. Raises QueueCorrupt, QueueUnavailable; nothing is left."""
    writer = queue.open_message()
    try:
        for chunk in queue.body(active):
            written = writer.write(chunk)
            if written is not None:
                await written
    except BaseException:
        queue.abort(writer)
        raise
    return writer


def requeued(
    writer: MessageWriter, active: ActiveMessage, outcomes: Sequence[Outcome], now_ms: int
) -> tuple[AcceptedMessage, list[Outcome]]:
    """The message of the deferred ones, and ``outcomes`` as they are then: age, flags, attempts go along."""
    message, meta = writer.id, active.meta
    recipients: list[Recipient] = []
    ended: list[Outcome] = []
    for outcome in outcomes:
        if outcome.kind is not OutcomeKind.DEFERRED:
            ended.append(outcome)
            continue
        again = (message, len(recipients))
        ended.append(replace(outcome, kind=OutcomeKind.REQUEUED, again=again))
        was = outcome.recipient
        record = deferred(outcome, now_ms)._replace(version=FORMAT, number=again[1])
        key = keys.deferred_key(was.zone, message, was.address)
        recipients.append(Recipient(key, was.zone, message, was.address, record))
    kept = meta._replace(
        version=FORMAT,
        zones=tuple(sorted({recipient.zone for recipient in recipients})),
        born_ms=born(meta, active.id),
    )
    last = writer.last
    mark = writer.mark(active.mark.created_ms)
    tail = [last] if last else []
    return AcceptedMessage(message, kept, mark, tail, recipients, _message_id(meta.header)), ended


def _message_id(header: bytes) -> str:
    for field in scan(header)[0]:
        if field.name == b"message-id":
            return field_value(header, field)
    return ""
