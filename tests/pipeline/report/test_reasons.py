"""Reasons of replies: the class of the event, else that of the relay's classifier."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.pipeline.report.templates import FailedReply, reason_of
from zonemta_py.smtp.reply_class import ReplyClass


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (("policy", "rcpt", "550", "5.1.1", "no such user"), "policy"),
        (("", "rcpt", "550", "5.1.1", "The email account that you tried to reach does not exist."), "invalid_recipient"),
        ((None, None, "554", None, "delivery error: This user doesn't have a yahoo.com account"), "invalid_recipient"),
        (("", "rcpt", "552", "", "Mailbox full"), "mailbox_full"),
        (("", "rcpt", "450", "4.7.1", "Client host rejected: Greylisted, see http://x"), "greylisted"),
        (("", "connect", "421", "4.7.0", "Too many concurrent connections"), "connection_limited"),
        (("", "connect", "0", "4.4.1", "connection timed out"), "no_answer"),
        (("", "connect", "0", "5.1.2", "no such domain"), "bad_domain"),
        (("", "rcpt", "550", "5.1.8", "Sender address rejected: Domain not found"), "invalid_sender"),
    ],
)  # fmt: skip
def test_reasons(reply: tuple[str | None, ...], reason: str) -> None:
    assert reason_of(FailedReply(*reply)) == reason


@given(st.integers(0, 599), st.text(max_size=10), st.text(max_size=200))
def test_any_reply_has_a_reason(code: int, status: str, text: str) -> None:
    assert reason_of(FailedReply("", "rcpt", str(code), status, text)) in list(ReplyClass)
