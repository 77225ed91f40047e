"""The bounce message format of qmail-send, for people and old mailing list software. Pure.

Source: D. J. Bernstein, The qmail-send Bounce Message Format (QSBMF), 1997.
"""

from collections.abc import Sequence

from zonemta_py.smtp.reports.dsn import (
    RecipientReport,
    Report,
    ReportHead,
    cut_line,
    plain_header,
    short_lines,
)

INTRO = (
    "I'm afraid I wasn't able to deliver your message to the following addresses.\n"
    "This is a permanent error; I've given up. Sorry it didn't work out.\n"
)
DOUBLE_INTRO = "I tried to deliver a bounce message to this address, but the bounce bounced!\n"
BREAK = "--- Below this line is a copy of the message."
DOUBLE_BREAK = "--- Below this line is the original bounce."
STRIPPED = b"\r\n\r\n--- End of message stripped.\r\n"


def bounce_report(
    head: ReportHead,
    recipients: Sequence[RecipientReport],
    *,
    sender: str,
    original: bytes,
    stripped: bool,
) -> Report:
    """A report about ``recipients``, 1 or more, with ``original``: the message, or its beginning (``stripped``).

    ``sender`` is the envelope sender of the original, empty if the original is a report.
    """
    intro = INTRO if sender else DOUBLE_INTRO
    lines = [f"Hi. This is the zonemta program at {head.hostname}.", *intro.splitlines(), ""]
    for each in recipients:
        lines += [f"<{_one_line(each.recipient)}>:", *_paragraph(each), ""]
    lines += [BREAK if sender else DOUBLE_BREAK, "", f"Return-Path: <{sender}>"]
    body = "".join(line + "\r\n" for line in lines).encode() + short_lines(original)
    if stripped:
        body += STRIPPED
    header = plain_header(head, "failure notice")
    if not body.isascii():  # the copy, an address or what a server said
        header += "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n"
    return Report(header.encode(), body if body.endswith(b"\r\n") else body + b"\r\n")


def _paragraph(recipient: RecipientReport) -> list[str]:
    """The explanation: no empty line, no line that begins with a space or a number sign."""
    lines = [recipient.explanation]
    if recipient.diagnostic:
        server = recipient.remote_mta or "The receiving server"
        lines.append(f"{server} said: {recipient.diagnostic}")
    lines[-1] += f" (#{recipient.status})"
    found = []
    for line in "\n".join(lines).splitlines():
        text = cut_line(line.strip())
        found.append(text if text and not text.startswith("#") else f"/{text}")
    return found


def _one_line(address: str) -> str:
    return address.replace("\r", "_").replace("\n", "_")
