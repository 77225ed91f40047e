"""Verdicts: one table."""

import pytest

from zonemta_py.smtp.classify import Phase, Verdict, limits_recipients, verdict
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
        (552, "5.2.2 mailbox full", Phase.RCPT, Verdict.FAILED),
        (552, "too big", Phase.DOT, Verdict.FAILED),
    ],
)
def test_verdict(code: int, text: str, phase: Phase, expected: Verdict) -> None:
    """What a reply means for the recipients it answers."""
    assert verdict(make_reply(code, text), phase) is expected


def test_a_limit_on_recipients_is_not_a_verdict() -> None:
    """452 after accepted recipients is the peer's limit, unless its status says otherwise."""
    assert limits_recipients(Reply(452, "4.5.3", "too many"))
    assert limits_recipients(Reply(452, "", "too many"))
    assert limits_recipients(Reply(552, "", "too many"))
    assert not limits_recipients(Reply(452, "4.2.2", "mailbox full"))
    assert not limits_recipients(Reply(450, "", "later"))
