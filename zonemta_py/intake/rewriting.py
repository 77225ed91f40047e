"""A message under policies: one body for every envelope that they make of it."""

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.policies import Client, Envelope, EnvelopePolicy, run_policies
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.queue.chunks import MessageWriter
from zonemta_py.queue.format.records import Origin
from zonemta_py.smtp.commands import Rcpt

FAILED = "421 4.3.0 Unhandled system error"
UNSTORABLE = "451 4.3.0 Error queuing message"
NOBODY = "554 5.7.1 No recipient is left"

_REPLY = re.compile(r"[45]\d\d [ -~]+\Z")

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """One envelope and the writer of its body."""

    envelope: Envelope
    writer: MessageWriter


def rewritten(
    policies: Sequence[EnvelopePolicy],
    sender: str,
    recipients: Sequence[Rcpt],
    header: bytes,
    origin: Origin,
) -> list[Envelope]:
    """What the policies make of a message. Raises NotAccepted with the reply of one that refuses, or fails."""
    client = Client(origin.client_ip, origin.helo, origin.user, origin.protocol)
    try:
        envelopes = run_policies(policies, Envelope(sender, recipients, header, client))
    except NotAccepted as exc:
        if _REPLY.match(str(exc)):
            raise
        log.error("a policy refused with '%s', which is no reply", exc)
        raise NotAccepted(UNSTORABLE) from exc
    except Exception as exc:
        log.exception("a policy failed on a message from <%s>", sender)
        raise NotAccepted(FAILED) from exc
    if not envelopes:
        raise NotAccepted(NOBODY)
    return envelopes


class Parts:
    """The messages that one becomes; the first has the writer that was there already."""

    def __init__(self, queue: QueueClient, envelopes: Sequence[Envelope], first: MessageWriter) -> None:
        writers = [first, *(queue.open_message() for _ in envelopes[1:])]
        self.parts = [Part(*pair) for pair in zip(envelopes, writers, strict=True)]

    def write(self, body: bytes) -> CommitFuture | None:
        """The same octets into each. Raises as a writer does."""
        wait_for: CommitFuture | None = None
        for part in self.parts:
            wait_for = (
                part.writer.write(body) or wait_for
            )  # batches are written in order: the last is enough
        return wait_for

    def recipients(self, part: Part, fresh: Sequence[Rcpt], *, repeats: bool) -> list[Rcpt]:
        """Those of a part, with what the client asked; none that had the message by an earlier submission.

        ``repeats``: there was one, so those that policies add had it too.
        """
        wanted = {rcpt.address: rcpt for rcpt in fresh}
        found = []
        for address in part.envelope.recipients:
            asked = part.envelope.asked(address)
            if asked is None:
                found += [] if repeats else [Rcpt(address)]
            elif asked.address in wanted:
                found.append(Rcpt(address, asked.notify, asked.orcpt))
        return found
