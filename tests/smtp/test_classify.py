"""Verdicts: one table."""

import pytest

from zonemta_py.smtp.classify import Phase, Verdict, limits_recipients, may_limit_recipients, verdict
from zonemta_py.smtp.reply import Reply, make_reply


@pytest.mark.parametrize(
    ("code", "text", "phase", "expected"),
    [
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
    assert verdict(make_reply(code, text), phase) is expected


@pytest.mark.parametrize(
    ("code", "status", "limits"),
    [
        (450, "4.5.3", True), (451, "4.5.3", True), (452, "4.5.3", True), (421, "4.5.3", True),
        (552, "5.5.3", True), (552, "", True), (452, "", False), (452, "4.2.2", False), (450, "", False),
        (552, "5.2.2", False), (550, "5.5.3", False),
    ],
)  # fmt: skip
def test_a_limit_on_recipients_is_not_a_verdict(code: int, status: str, limits: bool) -> None:
    """X.5.3 after accepted recipients is the peer's limit, and so is 552; a bare 452 may be a full mailbox."""
    reply = Reply(code, status, "too many")
    assert limits_recipients(reply) is limits
    assert may_limit_recipients(reply) is ((code, status) == (452, ""))
