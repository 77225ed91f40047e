"""What a failed attempt is about: the class in its event, and for events without one that of the relay's classifier. Pure.

There is no classifier here: ``smtp.classification`` has it, and ``config/classify.yaml`` its rules.
"""

from functools import cache
from typing import NamedTuple

from zonemta_py.config.reply_rules import make_classifier
from zonemta_py.smtp.classification import GONE, ReplyClassifier
from zonemta_py.smtp.classify import Phase

HARD = GONE
# Replies that cannot be about a recipient, whatever their words: no RCPT was sent before them.
BEFORE_RECIPIENTS = (Phase.CONNECT.value, Phase.MAIL.value)


class FailedReply(NamedTuple):
    """A reply as an event has it. ``given``: its class; empty or None in events of earlier versions. ``code``: three digits."""

    given: str | None
    phase: str | None
    code: str | None
    status: str | None
    text: str | None


@cache
def _classifier() -> ReplyClassifier:
    return make_classifier(None)


def reason_of(reply: FailedReply) -> str:
    """The class of ``reply``."""
    if reply.given:
        return reply.given
    code = int(reply.code or 0)
    return _classifier().classify(reply.phase or "", code, reply.status or "", reply.text or "")
