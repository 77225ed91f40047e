"""The verdict of a reply on a recipient: delivered, to be tried again, or failed. Pure.

Source: RFC 5321 sections 4.2.1 and 4.5.3.1.10 (552 to RCPT means 452), RFC 3463.
"""

import re
from collections.abc import Collection
from enum import StrEnum

from zonemta_py.smtp.reply import Reply


class Phase(StrEnum):
    """The step of the transaction that a reply belongs to."""

    CONNECT = "connect"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    DOT = "dot"


class Verdict(StrEnum):
    """The state of the recipient after the reply."""

    DELIVERED = "delivered"
    DEFERRED = "deferred"
    FAILED = "failed"


class ReplySubject(StrEnum):
    """The part of a delivery that a reply is about."""

    MAILBOX = "mailbox"
    MESSAGE = "message"
    SENDER = "sender"
    ADDRESS = "address"  # ours
    SESSION = "session"
    DIALOGUE = "dialogue"  # commands, and how many recipients they name
    TLS = "TLS"


OF_RECIPIENT = frozenset({ReplySubject.MAILBOX, ReplySubject.MESSAGE, ReplySubject.SENDER})
NO_MAIL_HERE = 521  # the code of a host that takes no mail, ever: RFC 7504


def verdict(reply: Reply, phase: Phase, about: ReplySubject) -> Verdict:
    """The verdict on the recipients that ``reply`` is for.

    Only 2xx to the final dot means delivered. 5xx is final if it is about the mailbox, the message or the sender; or
    about our address, where no other one can be used (the caller knows). What is said of a session, of commands or of TLS
    holds for that session only. Exceptions: 552 to RCPT without an enhanced status code or with 5.5.3, which servers send
    for "too many recipients"; and replies at connect time, where a later attempt may succeed, but for 521.
    """
    if phase is Phase.DOT and 200 <= reply.code < 300:
        return Verdict.DELIVERED
    is_of_recipient = about in OF_RECIPIENT
    if phase is Phase.CONNECT:
        is_final = reply.code == NO_MAIL_HERE and is_of_recipient
        return Verdict.FAILED if is_final else Verdict.DEFERRED
    if reply.code == 552 and phase is Phase.RCPT and reply.status in ("", "5.5.3"):
        return Verdict.DEFERRED
    is_final = reply.permanent and (is_of_recipient or about is ReplySubject.ADDRESS)
    return Verdict.FAILED if is_final else Verdict.DEFERRED


def limits_recipients(reply: Reply) -> bool:
    """True if a reply to RCPT says that the transaction has too many recipients.

    Applies only when the peer has accepted other recipients of the transaction.
    Source: RFC 5321 section 4.5.3.1.10; RFC 3463 (X.5.3).
    """
    if reply.code == 552 and not reply.status:
        return True
    return reply.code >= 400 and reply.status in ("4.5.3", "5.5.3")


def may_limit_recipients(reply: Reply) -> bool:
    """True if a reply to RCPT means a full mailbox or too many recipients: it does not say which."""
    return reply.code == 452 and not reply.status


PARAMETERS = {  # of MAIL and RCPT, by the extension that has them
    "size": ("size",),
    "8bitmime": ("body", "8bitmime"),
    "dsn": ("ret", "envid", "notify", "orcpt"),
    "smtputf8": ("smtputf8",),
}
_OF_PARAMETERS = (501, 504, 555)  # RFC 5321 section 4.2.2
_WORDS = re.compile(r"[a-z0-9]+")


def refused_extensions(reply: Reply, sent: Collection[str]) -> frozenset[str]:
    """The extensions, of those whose parameters were ``sent``, that a reply to MAIL or RCPT may refuse: all if it names none,
    but SMTPUTF8, without which the mail cannot be sent.

    Not if it is about an address (RFC 3463, X.1.X).
    """
    may_be = reply.code in _OF_PARAMETERS or reply.status == "5.5.4"
    if not may_be or not reply.permanent or reply.status.startswith("5.1."):
        return frozenset()
    words = frozenset(_WORDS.findall(reply.text.lower()))
    named = frozenset(each for each in sent if not words.isdisjoint(PARAMETERS[each]))
    return named or frozenset(sent) - {"smtputf8"}


NO_ADDRESS = (
    "4.1.2"  # the status of a domain for which no address is found, by MX or without: no reply, code 0
)
LOST = "4.4.2"  # the status of a connection that was lost: no reply, code 0


def is_closed(phase: Phase, reply: Reply) -> bool:
    """True if the peer closed the session before the final dot, whatever the message."""
    lost = reply.code == 0 and reply.status == LOST
    return phase is not Phase.DOT and (reply.code == 421 or lost)


def is_unserved(phase: Phase, reply: Reply) -> bool:
    """True if another host of the destination may take the message: it is not refused for good, nor taken.

    A temporary refusal at any step, unless it is about a mailbox (RFC 3463, X.2.X), which no other host has; a session that
    ends; no reply to the final dot, which is then uncertain.
    """
    if 400 <= reply.code < 500:
        return phase is Phase.MAIL or not reply.status.startswith("4.2.")
    return reply.code == 0 and reply.status == LOST


def status_of(reply: Reply) -> str:
    """The enhanced status code (RFC 3463) for a report; ``X.0.0`` of the reply's class if the peer sent none."""
    return reply.status or f"{str(reply.code)[0]}.0.0"
