"""Bounce messages in the format of qmail-send, read by its rules."""

import pytest

from zonemta_py.smtp.reports.dsn import (
    BREAK,
    DOUBLE_BREAK,
    STRIPPED,
    RecipientReport,
    ReportHead,
    bounce_report,
)

HEAD = ReportHead("relay.example", "r1", "me@here.example", "Sat, 21 Nov 2026 08:00:00 +0000")
ORIGINAL = b"Subject: original\r\n\r\nhello\r\n"


def failed(**changes: str) -> RecipientReport:
    report = RecipientReport(
        "failed", "a@b.example", "5.1.1", "The server refused it.", "550 no", "mx.b.example", ""
    )
    return report._replace(**changes)


def body_of(
    *recipients: RecipientReport, sender: str = "me@here.example", stripped: bool = False
) -> str:
    report = bounce_report(HEAD, recipients, sender=sender, original=ORIGINAL, stripped=stripped)
    assert report.header.endswith(b"\r\n") and report.body.endswith(b"\r\n")
    assert b"\n" not in report.body.replace(b"\r\n", b"")
    return report.body.decode().replace("\r\n", "\n")


def test_paragraphs() -> None:
    """The introduction begins with "Hi. This is"; each recipient has a paragraph that begins with its address."""
    first, *others = body_of(failed(), failed(recipient="c@d.example")).split("\n\n")
    assert first.startswith("Hi. This is the zonemta program at relay.example.")
    assert others[0].split("\n") == [
        "<a@b.example>:",
        "The server refused it.",
        "mx.b.example said: 550 no (#5.1.1)",
    ]
    assert others[1].startswith("<c@d.example>:\n")
    assert others[2:4] == [BREAK, "Return-Path: <me@here.example>\nSubject: original"]
    assert others[4] == "hello\n"


def test_a_double_bounce() -> None:
    body = body_of(failed(), sender="")
    assert "the bounce bounced!" in body
    assert DOUBLE_BREAK in body
    assert "Return-Path: <>" in body


def test_a_stripped_message() -> None:
    assert body_of(failed(), stripped=True).endswith(STRIPPED.decode().replace("\r\n", "\n"))


@pytest.mark.parametrize("explanation", ["a\n\nb", "  a", "#5.0.0 a", "\r\n"])
def test_an_explanation_cannot_end_its_paragraph(explanation: str) -> None:
    """No empty line, no line that begins with a space or a number sign, whatever a peer replied."""
    body = body_of(failed(explanation=explanation, diagnostic=explanation, recipient="a\n@b.example"))
    paragraphs = body.split("\n\n")
    assert paragraphs[1].startswith("<a_@b.example>:\n")
    assert paragraphs[2] == BREAK
    assert all(line[0] not in " #" for line in paragraphs[1].split("\n"))


def test_8_bit_text_is_declared() -> None:
    ascii_report = bounce_report(
        HEAD, [failed()], sender="s@x.example", original=ORIGINAL, stripped=False
    )
    assert b"8bit" not in ascii_report.header
    for changed in (
        failed(recipient="zoë@b.example"), failed(diagnostic="550 Empfänger"), failed(explanation="ä"),
    ):  # fmt: skip
        utf8 = bounce_report(HEAD, [changed], sender="", original=ORIGINAL, stripped=False)
        assert b"Content-Transfer-Encoding: 8bit\r\n" in utf8.header
