"""Reasons of replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.pipeline.rules.reasons import Reason, reason_of


@pytest.mark.parametrize(
    ("code", "status", "text", "reason"),
    [
        (550, "5.1.1", "The email account that you tried to reach does not exist.", Reason.NO_ADDRESS),
        (550, "5.1.1", "<a@b.example>: Recipient address rejected: User unknown", Reason.NO_ADDRESS),
        (554, "", "delivery error: This user doesn't have a yahoo.com account", Reason.NO_ADDRESS),
        (550, "5.2.1", "This mailbox is closed", Reason.NO_ADDRESS),
        (452, "4.2.2", "The email account that you tried to reach is over quota", Reason.MAILBOX_FULL),
        (552, "", "Mailbox full", Reason.MAILBOX_FULL),
        (450, "4.7.1", "Client host rejected: Greylisted, see http://x", Reason.GREYLISTED),
        (451, "4.7.1", "Graylisting in action, please come back later", Reason.GREYLISTED),
        (
            421,
            "4.7.28",
            "Gmail has detected an unusual rate of email originating from you",
            Reason.RATE_LIMITED,
        ),
        (421, "4.7.0", "Too many concurrent connections", Reason.RATE_LIMITED),
        (550, "5.7.26", "This mail is unauthenticated: SPF did not pass", Reason.AUTHENTICATION),
        (550, "5.7.1", "Service unavailable; Client host blocked using Spamhaus", Reason.BLOCKED),
        (554, "5.7.1", "Message rejected as spam", Reason.CONTENT),
        (552, "5.3.4", "Message size exceeds fixed limit", Reason.TOO_LARGE),
        (554, "5.7.1", "Relay access denied", Reason.RELAYING),
        (530, "5.7.0", "Must issue a STARTTLS command first", Reason.TLS),
        (556, "5.1.10", "recipient's domain has a null MX", Reason.NO_DOMAIN),
        (0, "4.4.1", "connection timed out", Reason.NETWORK),
        (0, "5.1.2", "no such domain", Reason.NO_DOMAIN),
        (451, "4.3.0", "Internal server error", Reason.PEER_DOWN),
        (421, "", "closing", Reason.PEER_DOWN),
        (550, "5.7.1", "Administrative prohibition", Reason.POLICY),
        (550, "", "No.", Reason.OTHER),
    ],
)
def test_reasons(code: int, status: str, text: str, reason: Reason) -> None:
    assert reason_of(code, status, text) is reason


@given(st.integers(0, 599), st.text(max_size=10), st.text(max_size=200))
def test_any_reply_has_a_reason(code: int, status: str, text: str) -> None:
    assert reason_of(code, status, text) in Reason
