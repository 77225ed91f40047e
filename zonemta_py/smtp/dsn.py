"""Delivery status notifications: the report about recipients that failed or are delayed.

Source: RFC 3464 (the format), RFC 3462/6522 (multipart/report), RFC 3834 (Auto-Submitted), RFC 6533
(UTF-8 addresses).
"""

import quopri
from collections.abc import Sequence
from typing import NamedTuple

_LINE_MAX = 900  # octets: keeps every line of a report within RFC 5322's 998


class Failure(NamedTuple):
    """One recipient that failed, or is delayed. ``diagnostic`` is the peer's reply, if one answered.

    ``action`` is ``failed`` or ``delayed``, with ``retry_until`` a date for the latter.
    ``explanation`` is for the human part; ``remote_mta`` is a host name or empty.
    """

    action: str
    recipient: str
    status: str
    explanation: str
    diagnostic: str
    remote_mta: str
    last_attempt: str
    retry_until: str = ""


class Report(NamedTuple):
    """A finished report: its header block and its body."""

    header: bytes
    body: bytes


def status_report(
    *,
    hostname: str,
    message_id: str,
    report_id: str,
    sender: str,
    arrival_date: str,
    date: str,
    failures: Sequence[Failure],
    original_header: bytes,
    original_body: bytes | None,
) -> Report:
    """A multipart/report to ``sender`` about ``failures``, 1 or more; failed and delayed may mix.

    ``original_body`` None returns only the header block (text/rfc822-headers), as does one with
    8-bit octets: the report itself is 7-bit unless an address needs UTF-8. ``message_id`` and ``report_id`` are queue ids of the message and of the report.
    """
    utf8 = not all(f.recipient.isascii() for f in failures) or not sender.isascii()
    boundary = f"{report_id}.report"
    failed = any(f.action == "failed" for f in failures)
    subject = "Undelivered mail returned to sender" if failed else "Delayed mail (still being retried)"
    header = (
        f"Date: {date}\r\n"
        f"From: Mail Delivery System <MAILER-DAEMON@{hostname}>\r\n"
        f"To: <{sender}>\r\n"
        f"Subject: {subject}\r\n"
        f"Message-ID: <{report_id}@{hostname}>\r\n"
        f"Auto-Submitted: auto-replied\r\n"
        f"MIME-Version: 1.0\r\n"
        f"Content-Type: multipart/report; report-type=delivery-status;\r\n"
        f'\tboundary="{boundary}"\r\n'
    ).encode()
    kind = "message/global-delivery-status" if utf8 else "message/delivery-status"
    human = _human(hostname, message_id, failures).encode()
    machine = _machine(hostname, message_id, arrival_date, failures, utf8=utf8)
    parts = [
        b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
        + quopri.encodestring(human.replace(b"\r\n", b"\n")).replace(b"\n", b"\r\n"),
        f"Content-Type: {kind}\r\n\r\n".encode() + (machine.encode() if utf8 else _ascii(machine)),
        _original(original_header, original_body),
    ]
    limit = f"--{boundary}".encode()
    body = b"".join(limit + b"\r\n" + part + b"\r\n" for part in parts) + limit + b"--\r\n"
    return Report(header, body)


def _original(header: bytes, body: bytes | None) -> bytes:
    """The part that returns the message; what is not ASCII is not returned, so any server takes it."""
    if body is not None and header.isascii() and body.isascii():
        part = b"Content-Type: message/rfc822\r\n\r\n" + header + b"\r\n" + body
    else:
        part = b"Content-Type: text/rfc822-headers\r\n\r\n" + _ascii(header.decode("utf-8", "replace"))
    return part if part.endswith(b"\r\n") else part + b"\r\n"


def _ascii(text: str) -> bytes:
    """``text`` with a question mark for everything that 7-bit mail cannot carry."""
    return text.encode("ascii", "replace")


def _human(hostname: str, message_id: str, failures: Sequence[Failure]) -> str:
    lines = [f"This is the mail relay at {hostname}, about the message {message_id}.", ""]
    for failure in failures:
        if failure.action == "failed":
            lines.append(f"<{failure.recipient}>: not delivered, and no further attempt will be made.")
        else:
            lines.append(f"<{failure.recipient}>: delayed. Nothing is needed from you;")
            lines.append(f"    delivery is attempted until {failure.retry_until}.")
        lines.append(f"    {failure.explanation}")
        if failure.diagnostic:
            where = failure.remote_mta or "The receiving server"
            lines.append(f"    {where} said: {failure.diagnostic}")
        lines.append("")
    return "".join(_cut(line) + "\r\n" for line in lines)


def _machine(
    hostname: str, message_id: str, arrival_date: str, failures: Sequence[Failure], *, utf8: bool
) -> str:
    groups = [
        f"Reporting-MTA: dns; {hostname}\r\nX-Queue-ID: {message_id}\r\nArrival-Date: {arrival_date}\r\n"
    ]
    for failure in failures:
        kind = "utf-8" if utf8 and not failure.recipient.isascii() else "rfc822"
        fields = [
            f"Final-Recipient: {kind}; {failure.recipient}",
            f"Action: {failure.action}",
            f"Status: {failure.status}",
        ]
        if failure.remote_mta:
            fields.append(f"Remote-MTA: dns; {failure.remote_mta}")
        if failure.diagnostic:
            fields.append(f"Diagnostic-Code: smtp; {failure.diagnostic}")
        fields.append(f"Last-Attempt-Date: {failure.last_attempt}")
        if failure.retry_until:
            fields.append(f"Will-Retry-Until: {failure.retry_until}")
        groups.append("".join(_cut(field) + "\r\n" for field in fields))
    return "\r\n".join(groups)


def _cut(line: str) -> str:
    """``line`` without line ends of its own, short enough for one line of mail."""
    flat = line.replace("\r", " ").replace("\n", " ")
    while len(flat.encode()) > _LINE_MAX:
        flat = flat[: _LINE_MAX // 2 if len(flat) > _LINE_MAX else len(flat) - 32]
    return flat
