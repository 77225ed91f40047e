"""Reader of reports from other servers: delivery status and feedback reports. Pure.

Source: RFC 3464 and RFC 6533 (delivery status), RFC 5965 and RFC 6591 (feedback), RFC 6522
(multipart/report). Of a malformed part, the fields that can be parsed are read.
"""

import email
import re
from collections.abc import Iterable, Iterator
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from zonemta_py.smtp.address import contract_verp
from zonemta_py.smtp.authors import first_address
from zonemta_py.smtp.headers import is_bounded

COMPLAINT = "complaint"
NOT_SPAM = "not-spam"  # the only kind of feedback that is not a complaint
TEXT_MAX = 1000  # characters kept of a field
_ENVID_KEY = re.compile(r"submission-key-([\w-]+)")
_EMBEDDED = re.compile(r"\\x\{([0-9A-Fa-f]{2,6})\}")
_KEY_FIELD = "X-Submission-Key"
_TO = ("Delivered-To", "X-Original-To", "To")


class Notice(NamedTuple):
    """The statement of a report about one recipient; a missing field is an empty text or 0.

    ``kind``: failed, delayed, delivered, relayed, expanded, complaint or not-spam.
    ``key``: the submission key, from the envelope id or from the returned header.
    ``by_verp``: the recipient that the address of the report names by VERP.
    ``time_ms``: the date of the report.
    """

    kind: str
    recipient: str
    key: str
    status: str
    code: int
    diagnostic: str
    reporter: str
    by_verp: str
    time_ms: int


def read_notices(data: bytes, senders: Iterable[str] = ()) -> list[Notice]:
    """A notice for each recipient of the report in ``data``; none if ``data`` is not a report.

    ``senders`` are the relay's envelope senders whose VERP forms (``smtp.address.expand_verp``) are recognised.
    """
    if not is_bounded(data):
        return []
    message = email.message_from_bytes(data)
    if message.get_content_type() != "multipart/report" or not message.is_multipart():
        return []
    by_verp = _by_verp(message, senders)
    time_ms, key = _time_ms(message), _returned_key(message)
    notices: list[Notice] = []
    for part in message.walk():
        kind = part.get_content_type()
        if kind in ("message/delivery-status", "message/global-delivery-status"):
            notices += _delivery(_blocks(part), key, by_verp, time_ms)
        elif kind == "message/feedback-report":
            notices += _feedback(_blocks(part), key, by_verp, time_ms, message)
    return notices


def _delivery(blocks: list[Message], key: str, by_verp: str, time_ms: int) -> Iterator[Notice]:
    if not blocks:
        return
    per_message, *per_recipient = blocks
    named = _ENVID_KEY.search(per_message.get("Original-Envelope-Id", ""))
    key = named[1] if named else key
    for block in per_recipient:
        recipient = _typed(block, "Original-Recipient") or _typed(block, "Final-Recipient")
        if not recipient and "Action" not in block:
            continue
        diagnostic = _typed(block, "Diagnostic-Code")
        code = re.match(r"[245]\d\d", diagnostic)
        yield Notice(
            kind=_text(block, "Action").split(" ")[0].lower() or "failed",
            recipient=recipient,
            key=key,
            status=_text(block, "Status").split(" ")[0],
            code=int(code[0]) if code else 0,
            diagnostic=diagnostic,
            reporter=_typed(per_message, "Reporting-MTA"),
            by_verp=by_verp,
            time_ms=time_ms,
        )


def _feedback(
    blocks: list[Message], key: str, by_verp: str, time_ms: int, message: Message
) -> Iterator[Notice]:
    for block in blocks[:1]:
        kind = _text(block, "Feedback-Type").lower()
        reporter = _typed(block, "Reporting-MTA")
        reporter = reporter or first_address(str(message.get("From", ""))).rpartition("@")[2]
        for value in block.get_all("Original-Rcpt-To", [""]):
            yield Notice(
                kind=NOT_SPAM if kind == NOT_SPAM else COMPLAINT,
                recipient=first_address(str(value)),
                key=key,
                status="",
                code=0,
                diagnostic=kind,
                reporter=reporter,
                by_verp=by_verp,
                time_ms=time_ms,
            )


def _blocks(part: Message) -> list[Message]:
    """The groups of fields of a machine-readable part, some of which the MIME parser does not split."""
    payload = part.get_payload()
    if isinstance(payload, list):
        groups = [each.as_bytes() for each in payload if isinstance(each, Message)]
    else:
        decoded = part.get_payload(decode=True)
        groups = [decoded] if isinstance(decoded, bytes) else []
    found = [block for group in groups for block in _split(group.decode("utf-8", "replace"))]
    return [block for block in found if block.keys()]


def _split(text: str) -> list[Message]:
    return [email.message_from_string(group) for group in re.split(r"\r?\n\r?\n", text) if group.strip()]


def _text(block: Message, name: str) -> str:
    return " ".join(str(block.get(name, "")).split())[:TEXT_MAX]


def _typed(block: Message, name: str) -> str:
    """The value in a field ``type; value``; an address without brackets."""
    text = _text(block, name)
    kind, separator, value = text.partition(";")
    address = (value if separator else text).strip().strip("<>")
    return _EMBEDDED.sub(_character, address) if kind.strip().lower() == "utf-8" else address


def _character(escape: re.Match[str]) -> str:
    """The character of an escape in utf-8-addr-xtext (RFC 6533 section 3); the escape itself if there is none."""
    point = int(escape[1], 16)
    is_character = point <= 0x10FFFF and not 0xD800 <= point <= 0xDFFF
    return chr(point) if is_character else escape[0]


def _returned_key(message: Message) -> str:
    """The submission key in the header of the returned message."""
    for part in message.walk():
        if part.get_content_type() in ("text/rfc822-headers", "text/rfc822-header"):
            decoded = part.get_payload(decode=True)
            text = decoded.decode("utf-8", "replace") if isinstance(decoded, bytes) else ""
            part = email.message_from_string(text)
        if part is not message and _KEY_FIELD in part:
            return _text(part, _KEY_FIELD)
    return ""


def _by_verp(message: Message, senders: Iterable[str]) -> str:
    known = list(senders)
    for name in _TO:
        for value in message.get_all(name, []):
            address = first_address(str(value))
            for sender in known:
                found = contract_verp(address, sender)
                if found:
                    return found
    return ""


def _time_ms(message: Message) -> int:
    try:
        return int(parsedate_to_datetime(str(message.get("Date", ""))).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError):
        return 0
