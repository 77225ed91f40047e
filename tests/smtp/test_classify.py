"""Verdicts: one table."""

import pytest

from zonemta_py.smtp.reply import Reply, make_reply
from zonemta_py.smtp.reply_class import ReplyClass, subject
from zonemta_py.smtp.verdict import (
    Phase,
    ReplySubject,
    Verdict,
    is_unserved,
    limits_recipients,
    may_limit_recipients,
    verdict,
)


@pytest.mark.parametrize(
    ("code", "text", "phase", "expected"),
    [
        (521, "no mail here", Phase.CONNECT, Verdict.FAILED),
        (250, "2.0.0 ok", Phase.DOT, Verdict.DELIVERED),
        (251, "will forward", Phase.DOT, Verdict.DELIVERED),
        (354, "what", Phase.DOT, Verdict.DEFERRED),
        (450, "4.2.1 busy", Phase.RCPT, Verdict.DEFERRED),
        (421, "4.3.2 closing", Phase.MAIL, Verdict.DEFERRED),
        (550, "5.1.1 unknown", Phase.RCPT, Verdict.FAILED),
        (554, "5.7.1 spam", Phase.DOT, Verdict.FAILED),
        (554, "go away", Phase.CONNECT, Verdict.DEFERRED),
        (552, "too many recipients", Phase.RCPT, Verdict.DEFERRED),
        (552, "5.5.3 too many recipients", Phase.RCPT, Verdict.DEFERRED),
        (552, "5.2.2 mailbox full", Phase.RCPT, Verdict.FAILED),
        (552, "too big", Phase.DOT, Verdict.FAILED),
    ],
)
def test_verdict(code: int, text: str, phase: Phase, expected: Verdict) -> None:
    """What a reply means for the recipients it answers."""
    assert verdict(make_reply(code, text), phase, ReplySubject.MAILBOX) is expected


def test_a_recipient_ends_only_by_what_is_about_it() -> None:
    """The mailbox, the message, the sender; our address where no other is left. Every class has a subject."""
    ends = {ReplySubject.MAILBOX, ReplySubject.MESSAGE, ReplySubject.SENDER, ReplySubject.ADDRESS}
    for each in ReplyClass:
        about = subject(Phase.RCPT, 550, "", each)
        failed = verdict(Reply(550, "", "no"), Phase.RCPT, about) is Verdict.FAILED
        assert failed is (about in ends), each
    assert verdict(Reply(521, "", "blocked"), Phase.CONNECT, ReplySubject.ADDRESS) is Verdict.DEFERRED


@pytest.mark.parametrize(
    ("phase", "code", "status", "reply_class", "expected"),
    [
        (Phase.RCPT, 550, "5.1.1", "invalid_recipient", ReplySubject.MAILBOX),
        (Phase.RCPT, 550, "5.3.0", "server_error", ReplySubject.MAILBOX),
        (Phase.DOT, 554, "5.7.1", "spam_content", ReplySubject.MESSAGE),
        (Phase.RCPT, 550, "5.7.1", "policy", ReplySubject.MESSAGE),
        (Phase.DOT, 554, "", "other", ReplySubject.MESSAGE),
        (Phase.MAIL, 550, "5.1.8", "invalid_sender", ReplySubject.SENDER),
        (Phase.DOT, 550, "5.7.26", "authentication", ReplySubject.SENDER),
        (Phase.RCPT, 554, "5.7.1", "blocked", ReplySubject.ADDRESS),
        (Phase.MAIL, 554, "", "rate_limited", ReplySubject.SESSION),
        (Phase.RCPT, 554, "", "connection_limited", ReplySubject.SESSION),
        (Phase.MAIL, 503, "5.5.1", "protocol", ReplySubject.DIALOGUE),
        (Phase.MAIL, 530, "5.7.0", "policy", ReplySubject.DIALOGUE),
        (Phase.RCPT, 550, "5.5.3", "too_many_recipients", ReplySubject.DIALOGUE),
        (Phase.RCPT, 500, "", "protocol", ReplySubject.DIALOGUE),
        (Phase.RCPT, 501, "", "protocol", ReplySubject.MAILBOX),
        (Phase.MAIL, 501, "5.5.4", "protocol", ReplySubject.SENDER),
        (Phase.DATA, 501, "", "protocol", ReplySubject.DIALOGUE),
        (Phase.MAIL, 523, "5.7.10", "policy", ReplySubject.TLS),
        (Phase.RCPT, 550, "5.7.5", "bad_connection", ReplySubject.TLS),
        (Phase.RCPT, 550, "5.1.1", "", ReplySubject.MAILBOX),
    ],
)
def test_subjects(
    phase: Phase, code: int, status: str, reply_class: str, expected: ReplySubject
) -> None:
    assert subject(phase, code, status, reply_class) is expected


@pytest.mark.parametrize(
    ("phase", "text", "unserved"),
    [
        (Phase.MAIL, "450 4.2.0 later", True),
        (Phase.RCPT, "450 4.7.1 greylisted", True),
        (Phase.RCPT, "452 4.2.2 full", False),
        (Phase.RCPT, "550 5.1.1 unknown", False),
        (Phase.DATA, "451 4.3.0 no", True),
        (Phase.DOT, "452 4.3.1 disk full", True),
        (Phase.DOT, "421 4.3.2 closing", True),
        (Phase.DOT, "554 5.7.1 spam", False),
    ],
)
def test_what_another_host_may_take(phase: Phase, text: str, unserved: bool) -> None:
    code, _, rest = text.partition(" ")
    assert is_unserved(phase, make_reply(int(code), rest)) is unserved
    assert is_unserved(phase, Reply(0, "4.4.2", "lost"))
    assert not is_unserved(phase, Reply(0, "4.3.0", "damaged"))


@pytest.mark.parametrize(
    ("code", "status", "limits"),
    [
        (450, "4.5.3", True), (451, "4.5.3", True), (452, "4.5.3", True), (421, "4.5.3", True),
        (552, "5.5.3", True), (552, "", True), (452, "", False), (452, "4.2.2", False), (450, "", False),
        (552, "5.2.2", False), (550, "5.5.3", True), (554, "5.5.3", True), (554, "", False),
    ],
)  # fmt: skip
def test_a_limit_on_recipients_is_not_a_verdict(code: int, status: str, limits: bool) -> None:
    """X.5.3 after accepted recipients is the peer's limit, and so is 552; a bare 452 may be a full mailbox."""
    reply = Reply(code, status, "too many")
    assert limits_recipients(reply) is limits
    assert may_limit_recipients(reply) is ((code, status) == (452, ""))
