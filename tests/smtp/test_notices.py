"""Reports of others, and our own, read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.address import contract_verp, expand_verp
from zonemta_py.smtp.reports.dsn import RecipientReport, ReportedMessage, ReportHead, status_report
from zonemta_py.smtp.reports.reader import Notice, read_notices


def ours(*failures: RecipientReport, body: bytes | None = b"hi\r\n", envelope_id: str = "") -> bytes:
    found = status_report(
        ReportHead("relay.example", "2" * 24, "news@example.com", "Sat, 21 Nov 2026 10:00:00 +0000"),
        ReportedMessage(
            "1" * 24,
            "Sat, 21 Nov 2026 09:00:00 +0000",
            b"Subject: x\r\nX-Submission-Key: fromheader\r\n",
            body,
            envelope_id,
        ),
        failures,
    )
    return found.header + b"\r\n" + found.body


def failure(recipient: str, action: str = "failed", **changes: str) -> RecipientReport:
    return RecipientReport(
        action, recipient, "5.1.1", "because", changes.get("diagnostic", "550 5.1.1 no such user"), "mx.x.example",
        "Sat, 21 Nov 2026 10:00:00 +0000",
    )  # fmt: skip


@pytest.mark.parametrize("recipient", ["a@x.example", "ä@bücher.example", '"a b"@x.example'])
@pytest.mark.parametrize("body", [b"hi\r\n", None])
def test_our_own(recipient: str, body: bytes | None) -> None:
    """What the relay writes is read; the envelope id goes before the header that was returned."""
    found = read_notices(
        ours(
            failure(recipient),
            failure("b@x.example", "delayed"),
            body=body,
            envelope_id="submission-key-abc123",
        )
    )
    assert [(n.kind, n.recipient, n.key, n.status, n.code) for n in found] == [
        ("failed", recipient, "abc123", "5.1.1", 550),
        ("delayed", "b@x.example", "abc123", "5.1.1", 550),
    ]
    assert found[0].diagnostic == "550 5.1.1 no such user"
    assert found[0].reporter == "relay.example"
    assert found[0].time_ms == 1_795_255_200_000
    assert read_notices(ours(failure(recipient), body=body))[0].key == "fromheader"


FEEDBACK = b"""\
From: <abuse@isp.example>
Date: Thu, 8 Mar 2005 17:40:36 EDT
Subject: FW: Earn money
To: <news+joe=isp.example@example.com>
MIME-Version: 1.0
Content-Type: multipart/report; report-type=feedback-report;
     boundary="part1"

--part1
Content-Type: text/plain; charset="US-ASCII"

This is an email abuse report.

--part1
Content-Type: message/feedback-report

Feedback-Type: abuse
User-Agent: SomeGenerator/1.0
Version: 1
Original-Mail-From: <news@example.com>
%sReporting-MTA: dns; mail.isp.example

--part1
Content-Type: message/rfc822

From: <news@example.com>
X-Submission-Key: k77
Subject: Earn money

body
--part1--
"""


def test_feedback() -> None:
    """A complaint names the recipient itself, by the returned header, or by the address it came to."""
    [found] = read_notices(FEEDBACK % b"Original-Rcpt-To: <joe@isp.example>\n", ["news@example.com"])
    assert found == Notice(
        "complaint", "joe@isp.example", "k77", "", 0, "abuse", "mail.isp.example", "joe@isp.example", found.time_ms
    )  # fmt: skip
    [redacted] = read_notices(FEEDBACK % b"", ["news@example.com"])
    assert (redacted.recipient, redacted.by_verp, redacted.key) == ("", "joe@isp.example", "k77")
    folded = (FEEDBACK % b"").replace(b"To: <news", b'To: "News, the list"\n <news')
    assert read_notices(folded, ["news@example.com"]) == [redacted]
    [kind] = read_notices((FEEDBACK % b"").replace(b"abuse\n", b"not-spam\n"))
    assert kind.kind == "not-spam"
    two = read_notices(FEEDBACK % b"Original-Rcpt-To: <a@x.example>\nOriginal-Rcpt-To: <b@x.example>\n")
    assert [n.recipient for n in two] == ["a@x.example", "b@x.example"]


def test_no_report() -> None:
    assert read_notices(b"Subject: out of office\r\n\r\nI am away\r\n") == []
    assert read_notices(b"") == []
    empty = (
        b'Content-Type: multipart/report; boundary="b"\n\n--b\nContent-Type: message/delivery-status\n\n'
    )
    assert read_notices(empty + b"--b--\n") == []
    torn = ours(failure("a@x.example"))
    assert all(
        isinstance(n, Notice) for cut in range(0, len(torn), 37) for n in read_notices(torn[:cut])
    )


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    """Neither arbitrary bytes nor a report with arbitrary fields raise."""
    read_notices(data)
    read_notices(
        b'Content-Type: multipart/report; boundary="b"\n\n--b\nContent-Type: message/delivery-status\n\n'
        + data
        + b"\n--b\nContent-Type: message/feedback-report\n\n"
        + data
        + b"\n--b--\n"
    )


locals_ = st.from_regex(r"[a-c0-9_+\-]{1,6}(\.[x-z0-9_+\-]{1,6})?", fullmatch=True)


@given(locals_, locals_, st.booleans())
def test_a_variable_sender_is_read_back(local: str, user: str, dashed: bool) -> None:
    sender = f"{local}-@example.com-@[]" if dashed else f"{local}@example.com"
    recipient = f"{user}@x.example"
    assert contract_verp(expand_verp(sender, recipient), sender) == recipient


def test_what_is_no_variable_sender() -> None:
    for address in ("news@example.com", "news+x@example.com", "news+a=b@other.example", "", "news+=b@example.com"):  # fmt: skip
        assert contract_verp(address, "news@example.com") == ""
    assert contract_verp("a=b@x", "") == ""


@pytest.mark.parametrize("field", ["Date", "From"])
def test_a_field_with_8_bits(field: str) -> None:
    """As broken servers send it; the report counts all the same."""
    report = ours(failure("ann@x.example"))
    kept = b"\n".join(
        line for line in report.splitlines() if not line.lower().startswith(field.lower().encode())
    )
    whole = field.encode() + ": Do, 26 M\u00e4r 2026".encode("latin-1") + b"\n" + kept
    [found] = read_notices(whole, [])
    assert found.recipient == "ann@x.example"
