"""A new message for the deferred recipients of one whose other recipients are settled (decision 50).

A program that dequeues gets what it deferred under a new id, and the old message ends. The body is copied
first, under ``open/``, so that a crash leaves nothing; the new message, the reports and the removal of the
old one are one batch.
"""

from collections.abc import Sequence

from zonemta_py.core.codec import replace
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.active import ActiveMessage
from zonemta_py.queue.chunks import MessageWriter
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, born
from zonemta_py.queue.outcome import AcceptedMessage, Outcome
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.submitter_queues import QueuedRecipient
from zonemta_py.queue.transitions import deferred
from zonemta_py.smtp.headers import field_value, scan


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
    return AcceptedMessage(message, kept, mark, tail, recipients, _message_id(meta.header)), ended


def _message_id(header: bytes) -> str:
    for field in scan(header)[0]:
        if field.name == b"message-id":
            return field_value(header, field)
    return ""
