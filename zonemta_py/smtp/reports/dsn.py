"""Reports about failed, delayed and delivered recipients: delivery status notifications, or in qmail's format. Pure.

Source: RFC 3464 (the format), RFC 3462/6522 (multipart/report), RFC 3834 (Auto-Submitted), RFC 6533
(UTF-8 addresses), RFC 3461 section 6 (reports of success).
"""

import quopri
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zonemta_py.core.text import one_line
from zonemta_py.smtp.address import in_header
from zonemta_py.smtp.headers import LINE_MAX, fold

SUBJECTS = {
    "failed": "Undelivered mail returned to sender",
    "delayed": "Delayed mail (still being retried)",
    "relayed": "Successful mail delivery report",
    "delivered": "Successful mail delivery report",
}
_SENTENCES = {
    "failed": "not delivered, and no further attempt will be made.",
    "delayed": "delayed. You do not need to send it again;",
    "relayed": "handed to the next server, which does not report delivery.",
    "delivered": "delivered.",
}
_LINE_MAX = 900  # bytes: keeps every line of a report within RFC 5322's 998


class RecipientReport(NamedTuple):
    """The part of a report about one recipient.

    ``action`` is failed, delayed, relayed or delivered. ``diagnostic`` is the reply of the peer, or empty.
    ``explanation`` is for the human-readable part; ``remote_mta`` is a host name or empty. Times are dates of
    RFC 5322; ``retry_until`` is set for delayed. ``original`` is the ORCPT parameter (type;address, decoded).
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


class ReportedMessage(NamedTuple):
    """The message that a report is about.

    ``message_id`` is its queue id, ``envelope_id`` the client's ENVID (decoded) or empty. With ``body`` None the
    report returns only ``header`` (text/rfc822-headers).
    """

    message_id: str
    arrival_date: str
    header: bytes
    body: bytes | None
    envelope_id: str = ""


class ReportHead(NamedTuple):
    """The fields of the report itself: the host that sends it, its queue id, its recipient, its date."""

    hostname: str
    report_id: str
    to: str
    date: str


class Report(NamedTuple):
    """A finished report. ``header`` ends with CRLF; ``body`` is what follows the empty line."""

    header: bytes
    body: bytes


class RecipientText(NamedTuple):
    """The text about one recipient in the two parts of a report: for people, quoted-printable, and for programs."""

    human: bytes
    machine: bytes


def status_report(
    head: ReportHead,
    message: ReportedMessage,
    recipients: Sequence[RecipientReport],
    texts: Sequence[RecipientText] = (),
) -> Report:
    """A multipart/report about ``recipients``, 1 or more; their actions may differ. ``texts``: theirs, if made before.

    The report is 7-bit unless it is sent to an address in UTF-8, so a message with 8-bit bytes is returned as its
    header only. Other addresses in UTF-8 are in the form utf-8-addr-xtext (RFC 6533 section 3).
    """
    utf8 = not head.to.isascii()
    boundary = f"{head.report_id}.report"
    actions = {each.action for each in recipients}
    subject = next(text for action, text in SUBJECTS.items() if action in actions)
    header = (
        plain_header(head, subject) + f"MIME-Version: 1.0\r\n"
        f"Content-Type: multipart/report; report-type=delivery-status;\r\n"
        f'\tboundary="{boundary}"\r\n'
    ).encode()
    kind = "message/global-delivery-status" if utf8 else "message/delivery-status"
    encoding = "Content-Transfer-Encoding: 8bit\r\n" if utf8 else ""
    texts = texts or [recipient_text(each, utf8=utf8) for each in recipients]
    about = f"This is the mail relay at {head.hostname}, about the message {message.message_id}."
    machine = _of_message(head.hostname, message)
    limit = f"--{boundary}".encode()
    body = b"".join(  # at once: a report on many recipients has tens of megabytes
        (
            limit,
            b"\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n",
            _quoted_printable([about, ""]),
            *(text.human for text in texts),
            b"\r\n%b\r\n" % limit,
            f"Content-Type: {kind}\r\n{encoding}\r\n".encode(),
            machine.encode() if utf8 else _ascii(machine),
            *(part for text in texts for part in (b"\r\n", text.machine)),
            b"\r\n%b\r\n" % limit,
            _original(message.header, message.body),
            b"\r\n%b--\r\n" % limit,
        )
    )
    return Report(header, body)


def plain_header(head: ReportHead, subject: str) -> str:
    return (
        f"Date: {head.date}\r\n"
        f"From: Mail Delivery System <MAILER-DAEMON@{head.hostname}>\r\n"
        f"To: <{in_header(head.to)}>\r\n"
        f"Subject: {subject}\r\n"
        f"Message-ID: <{head.report_id}@{head.hostname}>\r\n"
        f"Auto-Submitted: auto-replied\r\n"
    )


def _original(header: bytes, body: bytes | None) -> bytes:
    """The part with the returned message; all of it is ASCII in short lines, so every server accepts it."""
    if body is not None and header.isascii() and body.isascii():
        returned = short_lines(fold(header)) + b"\r\n" + short_lines(body)
        part = b"Content-Type: message/rfc822\r\n\r\n" + returned
    else:
        ascii_header = _ascii(header.decode("utf-8", "replace"))
        part = b"Content-Type: text/rfc822-headers\r\n\r\n" + short_lines(fold(ascii_header))
    return part if part.endswith(b"\r\n") else part + b"\r\n"


def short_lines(data: bytes) -> bytes:
    """``data`` with lines of at most LINE_MAX bytes: the rest of a longer line follows a line end and a space, as in Postfix.

    In a header block this folds. No character of UTF-8 is divided.
    """
    if len(data) <= LINE_MAX or all(len(line) <= LINE_MAX for line in data.split(b"\r\n")):
        return data
    return b"\r\n".join(
        line if len(line) <= LINE_MAX else b"\r\n ".join(_pieces(line)) for line in data.split(b"\r\n")
    )


def _pieces(line: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(line):
        end = at + LINE_MAX - (1 if at else 0)
        while end < len(line) and end > at + LINE_MAX - 5 and line[end] & 0xC0 == 0x80:
            end -= 1
        yield line[at:end]
        at = end


def _xtext(address: str) -> str:
    r"""``address`` with ``\x{…}`` for each character that is not printable ASCII, and for ``+``, ``=`` and ``\``."""
    return "".join(
        char if "!" <= char <= "~" and char not in "+=\\" else f"\\x{{{ord(char):02X}}}"
        for char in address
    )


def _ascii(text: str) -> bytes:
    """``text`` with a question mark for each character that is not ASCII."""
    return text.encode("ascii", "replace")


def _quoted_printable(lines: Sequence[str]) -> bytes:
    text = "".join(cut_line(line) + "\n" for line in lines)
    return quopri.encodestring(text.encode()).replace(b"\n", b"\r\n")


def _of_message(hostname: str, message: ReportedMessage) -> str:
    """The fields of the delivery-status part that are about the message. Source: RFC 3464 section 2.2."""
    envelope_id = message.envelope_id
    fields = [f"Original-Envelope-Id: {envelope_id}"] if envelope_id else []
    fields += [
        f"Reporting-MTA: dns; {hostname}",
        f"X-Queue-ID: {message.message_id}",
        f"Arrival-Date: {message.arrival_date}",
    ]
    return "".join(cut_line(field) + "\r\n" for field in fields)


def recipient_text(each: RecipientReport, *, utf8: bool) -> RecipientText:
    """The texts about one recipient; ``utf8``: the report is sent to an address in UTF-8."""
    lines = [f"<{each.recipient}>: {_SENTENCES[each.action]}"]
    if each.retry_until:
        lines.append(f"    delivery is attempted until {each.retry_until}.")
    lines.append(f"    {each.explanation}")
    if each.diagnostic:
        server = each.remote_mta or "The receiving server"
        lines.append(f"    {server} said: {each.diagnostic}")
    machine = "".join(cut_line(field) + "\r\n" for field in _of_recipient(each, utf8=utf8))
    return RecipientText(_quoted_printable([*lines, ""]), machine.encode() if utf8 else _ascii(machine))


def _of_recipient(each: RecipientReport, *, utf8: bool) -> list[str]:
    """The fields of the delivery-status part about one recipient. Source: RFC 3464 section 2.3."""
    kind = "rfc822" if each.recipient.isascii() else "utf-8"
    address = each.recipient if utf8 or kind == "rfc822" else _xtext(each.recipient)
    fields = [f"Original-Recipient: {each.original}"] if each.original else []
    fields += [
        f"Final-Recipient: {kind}; {address}",
        f"Action: {each.action}",
        f"Status: {each.status}",
    ]
    if each.remote_mta:
        fields.append(f"Remote-MTA: dns; {each.remote_mta}")
    if each.diagnostic:
        fields.append(f"Diagnostic-Code: smtp; {each.diagnostic}")
    fields.append(f"Last-Attempt-Date: {each.last_attempt}")
    if each.retry_until:
        fields.append(f"Will-Retry-Until: {each.retry_until}")
    return fields


def cut_line(line: str) -> str:
    """``line`` without line ends, cut to _LINE_MAX bytes."""
    flat = line.replace("\r", " ").replace("\n", " ")
    if len(flat) <= _LINE_MAX // 4:
        return flat
    data = flat.encode()
    return flat if len(data) <= _LINE_MAX else data[:_LINE_MAX].decode(errors="ignore")


# ---- The DSN parameters of a client: NOTIFY, ORCPT, ENVID.
#
# Source: RFC 3461 sections 4 and 5; RFC 6533 section 3 (utf-8 addresses in ORCPT).

NEVER, SUCCESS, FAILURE, DELAY = 1, 2, 4, 8
UNSET = 0

_NAMES = {"NEVER": NEVER, "SUCCESS": SUCCESS, "FAILURE": FAILURE, "DELAY": DELAY}
_XTEXT = re.compile(r"(?:[\x21-\x2a\x2c-\x3c\x3e-\x7e]|\+[0-9A-F]{2})+\Z")
_ENCODED = re.compile(r"\+([0-9A-F]{2})")
_ORCPT = re.compile(r"([A-Za-z0-9-]{1,40});(.+)\Z")

ENVID_MAX = 100
ORCPT_MAX = 500


def parse_notify(value: str) -> int | None:
    """The flags of a NOTIFY parameter, or None if it is malformed."""
    words = value.upper().split(",")
    if any(word not in _NAMES for word in words) or len(set(words)) != len(words):
        return None
    flags = sum(_NAMES[word] for word in words)
    return None if flags & NEVER and flags != NEVER else flags


def write_notify(flags: int) -> str:
    """The NOTIFY parameter of ``flags``, which must not be UNSET."""
    return ",".join(name for name, flag in _NAMES.items() if flags & flag)


def wants_failure(flags: int) -> bool:
    """True if the sender gets a report of failure, as without NOTIFY."""
    return flags == UNSET or bool(flags & FAILURE)


def wants_delay(flags: int) -> bool:
    """True if the sender gets a report of delay, as without NOTIFY."""
    return flags == UNSET or bool(flags & DELAY)


def wants_success(flags: int) -> bool:
    """True if the sender gets a report of success."""
    return bool(flags & SUCCESS)


def valid_envid(value: str) -> bool:
    """True if ``value`` is a valid ENVID parameter."""
    return len(value) <= ENVID_MAX and _XTEXT.match(value) is not None


def valid_orcpt(value: str) -> bool:
    """True if ``value`` is a valid ORCPT parameter: an address type, a semicolon, xtext."""
    match = _ORCPT.match(value)
    return len(value) <= ORCPT_MAX and match is not None and _XTEXT.match(match[2]) is not None


def decode_xtext(value: str) -> str:
    """The text that xtext encodes; characters that are not printable become question marks."""
    data = _ENCODED.sub(lambda match: chr(int(match[1], 16)), value).encode("latin-1", "replace")
    text = data.decode("utf-8", "replace")
    return one_line(text, "?")


# ---- The bounce message format of qmail-send, for people and old mailing list software. Pure.
#
# Source: D. J. Bernstein, The qmail-send Bounce Message Format (QSBMF), 1997.

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
