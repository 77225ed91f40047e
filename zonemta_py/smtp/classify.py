"""From a reply to a verdict about a recipient.

Source: RFC 5321 sections 4.2.1 and 4.5.3.1.10 (552 to RCPT means 452), RFC 3463.
"""

from enum import StrEnum

from zonemta_py.smtp.reply import Reply


class Phase(StrEnum):
    """What the reply answered."""

    CONNECT = "connect"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    DOT = "dot"


class Verdict(StrEnum):
    """What becomes of the recipient."""

    DELIVERED = "delivered"
    DEFERRED = "deferred"
    FAILED = "failed"


def verdict(reply: Reply, phase: Phase) -> Verdict:
    """The meaning of ``reply`` for the recipients it answers.

    2xx to the final dot alone delivers. 5xx is final, except 552 to RCPT without an enhanced code
    of its own, which old servers send for "too many recipients", and 521/554 at connect time,
    where another address of the sender or another day may help.
    """
    if phase is Phase.DOT and 200 <= reply.code < 300:
        return Verdict.DELIVERED
    if phase is Phase.CONNECT:
        return Verdict.DEFERRED
    if reply.code == 552 and phase is Phase.RCPT and not reply.status:
        return Verdict.DEFERRED
    return Verdict.FAILED if reply.permanent else Verdict.DEFERRED


def limits_recipients(reply: Reply) -> bool:
    """Whether this answer to RCPT is the peer's limit on one transaction and no verdict.

    Meaningful only after the same transaction had recipients accepted. Source: RFC 5321 4.5.3.1.10.
    """
    return (reply.code == 452 and reply.status in ("", "4.5.3")) or (
        reply.code == 552 and not reply.status
    )


def status_of(reply: Reply) -> str:
    """An RFC 3463 status for a report: the peer's own, or the class with nothing more known."""
    return reply.status or f"{str(reply.code)[0]}.0.0"
