"""Reports, read back by the standard library's parser."""

from email import message_from_bytes, policy
from email.message import EmailMessage, Message
from typing import cast

import pytest

from zonemta_py.smtp.reports.dsn import RecipientReport, ReportedMessage, ReportHead, status_report

FAILED = RecipientReport(
    "failed",
    "a@b.example",
    "5.1.1",
    "The receiving server answered.",
    "550 5.1.1 no such user",
    "mx.b.example",
    "Sat, 21 Nov 2026 08:00:00 +0000",
)
DELAYED = RecipientReport(
    "delayed",
    "c@b.example",
    "4.4.1",
    "connection timed out",
    "",
    "",
    "Sat, 21 Nov 2026 08:00:00 +0000",
    "Mon, 23 Nov 2026 08:00:00 +0000",
)


HEAD = ReportHead("relay.example", "r1", "me@here.example", "Sat, 21 Nov 2026 08:00:00 +0000")


def _report(*failures: RecipientReport, body: bytes | None = b"hello\r\n") -> EmailMessage:
    report = status_report(
        HEAD,
        ReportedMessage("m1", "Sat, 21 Nov 2026 07:00:00 +0000", b"Subject: original\r\n", body),
        failures,
    )
    whole = report.header + b"\r\n" + report.body
    assert b"\n" not in whole.replace(b"\r\n", b"")
    assert max(len(line) for line in whole.split(b"\r\n")) <= 998
    return message_from_bytes(whole, policy=policy.SMTP)


def test_failed() -> None:
    """Every field RFC 3464 asks for, and the message itself."""
    report = _report(FAILED)
    assert report.get_content_type() == "multipart/report"
    assert report["To"] == "me@here.example"
    assert report["Auto-Submitted"] == "auto-replied"
    human, machine, original = report.iter_parts()
    assert "a@b.example" in human.get_content()
    groups = cast(list[Message], machine.get_payload())
    assert groups[0]["Reporting-MTA"] == "dns; relay.example"
    assert groups[0]["Arrival-Date"] == "Sat, 21 Nov 2026 07:00:00 +0000"
    assert groups[1]["Final-Recipient"] == "rfc822; a@b.example"
    assert groups[1]["Action"] == "failed"
    assert groups[1]["Status"] == "5.1.1"
    assert groups[1]["Diagnostic-Code"] == "smtp; 550 5.1.1 no such user"
    assert groups[1]["Remote-MTA"] == "dns; mx.b.example"
    assert original.get_content_type() == "message/rfc822"
    inner = cast(EmailMessage, original.get_content())
    assert inner["Subject"] == "original"
    assert inner.get_content().strip() == "hello"


def test_header_only() -> None:
    """A large message is represented by its header block."""
    original = list(_report(FAILED, body=None).iter_parts())[2]
    assert original.get_content_type() == "text/rfc822-headers"


def test_delayed_and_mixed() -> None:
    """A delay says until when; a mixed report is about failure."""
    report = _report(DELAYED)
    assert "Delayed" in report["Subject"]
    groups = cast(list[Message], list(report.iter_parts())[1].get_payload())
    assert groups[1]["Action"] == "delayed"
    assert groups[1]["Will-Retry-Until"] == "Mon, 23 Nov 2026 08:00:00 +0000"
    assert groups[1]["Diagnostic-Code"] is None
    assert "Undelivered" in _report(FAILED, DELAYED)["Subject"]


def test_hostile_text_stays_in_its_field() -> None:
    """A reply cannot write fields of its own."""
    evil = FAILED._replace(
        diagnostic="550 x\r\nAction: delivered", recipient="zoë@b.example", explanation="é" * 3000
    )
    report = _report(evil)
    groups = report.as_bytes().decode()
    assert "\nAction: delivered" not in groups
    assert r"Final-Recipient: utf-8; zo\x{EB}@b.example" in groups.replace("\r\n", "\n")


@pytest.mark.parametrize("to", ["s@x.example", "sü@x.example"])
def test_an_address_in_utf8(to: str) -> None:
    """To an ASCII sender the report is ASCII, so that every server takes it. Source: RFC 6533 section 3."""
    message = ReportedMessage("m1", "Sat, 21 Nov 2026 07:00:00 +0000", b"Subject: x\r\n", None)
    failed = FAILED._replace(recipient="a+b=zoë@b.example")
    report = status_report(HEAD._replace(to=to), message, [failed])
    if to.isascii():
        assert report.header.isascii()
        assert report.body.isascii()
        assert rb"Final-Recipient: utf-8; a\x{2B}b\x{3D}zo\x{EB}@b.example" in report.body
        assert b"Content-Type: message/delivery-status" in report.body
    else:
        assert "Final-Recipient: utf-8; a+b=zoë@b.example".encode() in report.body
        assert b"Content-Type: message/global-delivery-status" in report.body
