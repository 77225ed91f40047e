"""Delivery status notifications: the report about recipients, what became of them or did not yet.

Source: RFC 3464 (the format), RFC 3462/6522 (multipart/report), RFC 3834 (Auto-Submitted), RFC 6533
(UTF-8 addresses), RFC 3461 section 6 (what is reported of success).
"""

import quopri
from collections.abc import Sequence
from typing import NamedTuple

SUBJECTS = {
    "failed": "Undelivered mail returned to sender",
    "delayed": "Delayed mail (still being retried)",
    "relayed": "Successful mail delivery report",
    "delivered": "Successful mail delivery report",
}
_SENTENCES = {
    "failed": "not delivered, and no further attempt will be made.",
    "delayed": "delayed. Nothing is needed from you;",
    "relayed": "handed to the next server, which does not report delivery.",
    "delivered": "delivered.",
}
_LINE_MAX = 900  # octets: keeps every line of a report within RFC 5322's 998


class Failure(NamedTuple):
    """What is said of one recipient. ``diagnostic`` is the peer's reply, if one answered.

    ``action`` is failed, delayed (with ``retry_until`` a date), relayed or delivered.
    ``explanation`` is for the human part; ``remote_mta`` is a host name or empty; ``original`` is the
    ORCPT parameter (type;address, decoded) or empty.
    """

    action: str
    recipient: str
    status: str
    explanation: str
    diagnostic: str
    remote_mta: str
    last_attempt: str
    retry_until: str = ""
    original: str = ""


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
    envelope_id: str = "",
) -> Report:
    """A multipart/report to ``sender`` about ``failures``, 1 or more; actions may mix.

    ``original_body`` None returns only the header block (text/rfc822-headers), as does one with
    8-bit octets: the report itself is 7-bit unless an address needs UTF-8. ``message_id`` and ``report_id`` are
    queue ids of the message and of the report; ``envelope_id`` is the client's ENVID, decoded.
    """
    utf8 = not all(f.recipient.isascii() for f in failures) or not sender.isascii()
    boundary = f"{report_id}.report"
    actions = {f.action for f in failures}
    subject = next(text for action, text in SUBJECTS.items() if action in actions)
    header = (
        plain_header(hostname, report_id, sender, subject, date) + f"MIME-Version: 1.0\r\n"
        f"Content-Type: multipart/report; report-type=delivery-status;\r\n"
        f'\tboundary="{boundary}"\r\n'
    ).encode()
    kind = "message/global-delivery-status" if utf8 else "message/delivery-status"
    encoding = "Content-Transfer-Encoding: 8bit\r\n" if utf8 else ""
    human = _human(hostname, message_id, failures).encode()
    machine = _machine(hostname, message_id, arrival_date, envelope_id, failures, utf8=utf8)
    parts = [
        b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
        + quopri.encodestring(human.replace(b"\r\n", b"\n")).replace(b"\n", b"\r\n"),
        f"Content-Type: {kind}\r\n{encoding}\r\n".encode()
        + (machine.encode() if utf8 else _ascii(machine)),
        _original(original_header, original_body),
    ]
    limit = f"--{boundary}".encode()
    body = b"".join(limit + b"\r\n" + part + b"\r\n" for part in parts) + limit + b"--\r\n"
    return Report(header, body)


def plain_header(hostname: str, report_id: str, to: str, subject: str, date: str) -> str:
    """The fields that every report has."""
    return (
        f"Date: {date}\r\n"
        f"From: Mail Delivery System <MAILER-DAEMON@{hostname}>\r\n"
        f"To: <{to}>\r\n"
        f"Subject: {subject}\r\n"
        f"Message-ID: <{report_id}@{hostname}>\r\n"
        f"Auto-Submitted: auto-replied\r\n"
    )


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
        lines.append(f"<{failure.recipient}>: {_SENTENCES[failure.action]}")
        if failure.retry_until:
            lines.append(f"    delivery is attempted until {failure.retry_until}.")
        lines.append(f"    {failure.explanation}")
        if failure.diagnostic:
            where = failure.remote_mta or "The receiving server"
            lines.append(f"    {where} said: {failure.diagnostic}")
        lines.append("")
    return "".join(_cut(line) + "\r\n" for line in lines)


def _machine(
    hostname: str,
    message_id: str,
    arrival_date: str,
    envelope_id: str,
    failures: Sequence[Failure],
    *,
    utf8: bool,
) -> str:
    of_message = [f"Original-Envelope-Id: {envelope_id}"] if envelope_id else []
    of_message += [
        f"Reporting-MTA: dns; {hostname}",
        f"X-Queue-ID: {message_id}",
        f"Arrival-Date: {arrival_date}",
    ]
    groups = ["".join(_cut(field) + "\r\n" for field in of_message)]
    for failure in failures:
        kind = "utf-8" if utf8 and not failure.recipient.isascii() else "rfc822"
        fields = [f"Original-Recipient: {failure.original}"] if failure.original else []
        fields += [
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
