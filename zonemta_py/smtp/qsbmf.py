"""qmail-send's bounce message format: a report that people and old list software read. Pure.

Source: D. J. Bernstein, The qmail-send Bounce Message Format (QSBMF), 1997.
"""

from collections.abc import Sequence

from zonemta_py.smtp.dsn import Failure, Report, plain_header

INTRO = (
    "I'm afraid I wasn't able to deliver your message to the following addresses.\n"
    "This is a permanent error; I've given up. Sorry it didn't work out.\n"
)
DOUBLE_INTRO = "I tried to deliver a bounce message to this address, but the bounce bounced!\n"
BREAK = "--- Below this line is a copy of the message."
DOUBLE_BREAK = "--- Below this line is the original bounce."
STRIPPED = b"\r\n\r\n--- End of message stripped.\r\n"


def bounce_report(
    *,
    hostname: str,
    report_id: str,
    sender: str,
    to: str,
    date: str,
    failures: Sequence[Failure],
    original: bytes,
    stripped: bool,
) -> Report:
    """A report to ``to`` about ``failures``, 1 or more, with ``original``, a message or its beginning.

    ``sender`` is the envelope sender of the original, empty when it was a report itself.
    """
    header = plain_header(hostname, report_id, to, "failure notice", date)
    if not original.isascii() or not all(f.recipient.isascii() for f in failures):
        header += "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n"
    intro = INTRO if sender else DOUBLE_INTRO
    lines = [f"Hi. This is the zonemta program at {hostname}.", *intro.splitlines(), ""]
    for failure in failures:
        lines += [f"<{_one_line(failure.recipient)}>:", *_paragraph(failure), ""]
    lines += [BREAK if sender else DOUBLE_BREAK, "", f"Return-Path: <{sender}>"]
    body = "".join(line + "\r\n" for line in lines).encode() + original
    if stripped:
        body += STRIPPED
    return Report(header.encode(), body if body.endswith(b"\r\n") else body + b"\r\n")


def _paragraph(failure: Failure) -> list[str]:
    """The human part: no empty line, no line that begins with a space or a number sign's code."""
    lines = [failure.explanation]
    if failure.diagnostic:
        where = failure.remote_mta or "The receiving server"
        lines.append(f"{where} said: {failure.diagnostic}")
    lines[-1] += f" (#{failure.status})"
    found = []
    for line in "\n".join(lines).splitlines():
        text = line.strip()
        found.append(text if text and not text.startswith("#") else f"/{text}")
    return found


def _one_line(address: str) -> str:
    return address.replace("\r", "_").replace("\n", "_")
