"""A message under policies: one body is stored for every envelope that they make."""

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from zonemta_py.core.codec import replace
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.stamping import MessageContent, MessageEnvelope, MessageRules, stamp
from zonemta_py.intake.submission_key import SubmissionKeyClaim
from zonemta_py.policies import Client, Envelope, EnvelopePolicy, run_policies
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.commit import CommitFuture
from zonemta_py.queue.messages import MessageWriter
from zonemta_py.smtp.commands import Rcpt
from zonemta_py.smtp.headers import scan

log = logging.getLogger(__name__)


FAILED = "421 4.3.0 Unhandled system error"
UNSTORABLE = "451 4.3.0 Error queuing message"
NO_RECIPIENT = "554 5.7.1 No recipient is left"

_REPLY = re.compile(r"[45]\d\d [ -~]+\Z")


def apply_policies(
    policies: Sequence[EnvelopePolicy], envelope: MessageEnvelope, header: bytes
) -> list[Envelope]:
    """The envelopes that ``policies`` make of a message.

    Raises NotAccepted with the reply of a policy that refuses, or when one fails or no recipient is left.
    """
    origin = envelope.origin
    client = Client(origin.client_ip, origin.helo, origin.user, origin.protocol, origin.tenant)
    try:
        envelopes = run_policies(
            policies, Envelope(envelope.sender, envelope.recipients, header, client)
        )
    except NotAccepted as exc:
        if _REPLY.match(str(exc)):
            raise
        log.error("a policy refused with '%s', which is not an SMTP reply", exc)
        raise NotAccepted(UNSTORABLE) from exc
    except Exception as exc:
        log.exception("a policy failed on a message from <%s>", envelope.sender)
        raise NotAccepted(FAILED) from exc
    if not envelopes:
        raise NotAccepted(NO_RECIPIENT)
    return envelopes


class EnvelopeWriter(NamedTuple):
    """One envelope and the writer of its body."""

    envelope: Envelope
    writer: MessageWriter


class EnvelopeWriters:
    """The envelopes of one message with their writers; the first keeps the writer of the message."""

    def __init__(self, queue: QueueClient, envelopes: Sequence[Envelope], first: MessageWriter) -> None:
        writers = [first, *(queue.open_message() for _ in envelopes[1:])]
        self.all = [EnvelopeWriter(*pair) for pair in zip(envelopes, writers, strict=True)]

    def write(self, body: bytes) -> CommitFuture | None:
        """Write ``body`` for each envelope. Result and exceptions: see MessageWriter.write."""
        wait_for: CommitFuture | None = None
        for each in self.all:
            # Batches are written in order: waiting for the last is enough.
            wait_for = each.writer.write(body) or wait_for
        return wait_for

    def compose(
        self,
        rules: MessageRules,
        envelope: MessageEnvelope,
        content: MessageContent,
        claim: SubmissionKeyClaim,
        new: Sequence[Rcpt],
    ) -> list[tuple[MessageWriter, NewMessage]]:
        """The messages to store, each with the writer of its body; none for envelopes whose recipients have theirs.

        ``envelope`` and ``content`` are what the client sent, ``new`` its recipients that have no message. Raises
        NotAccepted.
        """
        named = self.all[0].writer.id  # in the reply
        key = claim.use_for(named, new)
        wanted = [
            (each, recipients)
            for each in self.all
            if (recipients := recipients_of(each.envelope, new, repeated=bool(claim.first)))
        ]
        messages: list[tuple[MessageWriter, NewMessage]] = []
        for (changed, writer), recipients in wanted:
            its_content = content._replace(header=changed.header, fields=scan(changed.header)[0])
            its_envelope = replace(envelope, sender=changed.sender, recipients=recipients)
            # Batches are written in order: with the last, the key is not on disk before all it covers.
            its_key = key if len(messages) == len(wanted) - 1 else None
            message = stamp(rules, its_envelope, its_content, writer.id, its_key)
            if writer.id != named:
                message = replace(message, submission=named)
            messages.append((writer, message))
        return messages


def recipients_of(envelope: Envelope, new: Sequence[Rcpt], *, repeated: bool) -> list[Rcpt]:
    """The recipients of ``envelope`` with the client's options, except those that have the message.

    ``new``: the client's recipients that were not accepted under the submission key before.
    ``repeated``: a message was, so recipients that policies add have it too.
    """
    by_address = {rcpt.address: rcpt for rcpt in new}
    found = []
    for address in envelope.recipients:
        asked = envelope.asked(address)
        if asked is None:
            found += [] if repeated else [Rcpt(address)]
        elif asked.address in by_address:
            found.append(Rcpt(address, asked.notify, asked.orcpt))
    return found
