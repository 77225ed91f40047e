"""Conversion of an 8-bit message for a peer without 8BITMIME: quoted-printable or base64, part by part. Pure.

The top header keeps its bytes, except for fields with 8-bit characters and those that name the encoding. A
signature over the parts (RFC 1847) does not survive; the other choice is to return the message.

Source: RFC 6152 section 3, RFC 2045 sections 6.2 and 6.4, RFC 2047.
"""

from base64 import encodebytes
from binascii import b2a_qp
from email import policy
from email.errors import MessageError, MissingHeaderBodySeparatorDefect
from email.generator import BytesGenerator
from email.message import Message
from email.parser import BytesParser
from io import BytesIO

from zonemta_py.smtp.authors import Unreadable, author_addresses
from zonemta_py.smtp.headers import fold, is_bounded, scan
from zonemta_py.smtp.seven_bit_fields import ascii_value


class _Bytes(policy.Compat32):
    """Writes fields as they are; the base class would split them again, in quadratic time."""

    def fold_binary(self, name: str, value: str) -> bytes:
        return f"{name}: {value}\r\n".encode("ascii", "surrogateescape")


_POLICY = _Bytes(linesep="\r\n", max_line_length=None)
_ENCODING = "Content-Transfer-Encoding"
# What the email package raises for odd values and parts.
_ODD_PARTS = (ValueError, LookupError, TypeError, AttributeError, RecursionError, MessageError)
_IDENTITY = ("8bit", "binary")


class NotConvertible(ValueError):
    """The message has no 7-bit form."""


def to_seven_bit(header: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Header block and body with 7-bit characters only, and the same authors. Raises NotConvertible."""
    whole = b"\r\n".join((_plain_names(header), body))
    if not is_bounded(whole):
        raise NotConvertible("its parts have too many parameters, or are nested too deeply")
    try:
        message = BytesParser(policy=_POLICY).parsebytes(whole)
        encoded = message.get(_ENCODING)
        for part in message.walk():
            if any(isinstance(defect, MissingHeaderBodySeparatorDefect) for defect in part.defects):
                raise NotConvertible("a part has a line in its header that is not a field")
            _convert(part)
        out = BytesIO()
        BytesGenerator(out, mangle_from_=False, maxheaderlen=0, policy=_POLICY).flatten(message)
    except NotConvertible:
        raise
    except _ODD_PARTS as exc:
        raise NotConvertible(f"its parts cannot be read: {exc}") from exc
    converted = out.getvalue().partition(b"\r\n\r\n")[2]
    changed = {} if message.get(_ENCODING) == encoded else {_ENCODING: message[_ENCODING]}
    if "MIME-Version" not in message:
        changed["MIME-Version"] = "1.0"
    head = _seven_bit_header(header, changed)
    if not head.isascii() or not converted.isascii():
        raise NotConvertible("a part of it cannot be encoded")
    if not _has_same_authors(header, head):
        raise NotConvertible("its authors have no form in 7 bits")
    return head, converted


def _has_same_authors(header: bytes, converted: bytes) -> bool:
    """True if the authors that were judged are those that are sent; without readable ones nothing was judged."""
    try:
        authors = author_addresses(header, scan(header)[0])
    except Unreadable:
        return True
    try:
        return author_addresses(converted, scan(converted)[0]) == authors
    except Unreadable:
        return False


def _plain_names(header: bytes) -> bytes:
    """``header`` without white space between names and colons, where the email package ends the header."""
    fields = scan(header)[0]
    return b"".join(
        header[f.start : f.start + len(f.name)] + b":" + header[f.value : f.end] for f in fields
    )


def _convert(part: "Message[str, str]") -> None:
    for name, value in list(part.raw_items()):
        if not value.isascii():
            if name.lower() == "content-type" and "boundary" in value.lower():
                raise NotConvertible("the boundary of its parts is not in ASCII")
            raw = value.encode("utf-8", "surrogateescape")
            part.replace_header(name, ascii_value(name, raw))
    if part.is_multipart():
        for attribute in ("preamble", "epilogue"):
            text = getattr(part, attribute)
            if text is not None and not text.isascii():
                setattr(part, attribute, text.encode("ascii", "replace").decode())
        if part.get(_ENCODING, "").strip().lower() in _IDENTITY:
            part.replace_header(_ENCODING, "7bit")
        return
    payload = part.get_payload()
    if not isinstance(payload, str):
        return
    named = part.get(_ENCODING, "").strip().lower()
    if payload.isascii() and named != "binary":
        if named == "8bit":
            part.replace_header(_ENCODING, "7bit")
        return
    data = part.get_payload(decode=True)
    assert isinstance(data, bytes)
    is_text = part.get_content_maintype() == "text"
    encoded = b2a_qp(data.replace(b"\r\n", b"\n"), istext=True) if is_text else encodebytes(data)
    part.set_payload(encoded.decode("ascii"))
    del part[_ENCODING]
    part[_ENCODING] = "quoted-printable" if is_text else "base64"


def _seven_bit_header(header: bytes, changed: dict[str, str]) -> bytes:
    """``header`` with 8-bit fields encoded and the fields in ``changed`` replaced, or added at its end."""
    names = {name.lower().encode() for name in changed}
    kept = []
    for field in scan(header)[0]:
        raw = header[field.start : field.end]
        if field.name in names:
            continue
        if not raw.isascii():
            value = ascii_value(field.name.decode("ascii"), header[field.value : field.end - 2])
            raw = header[field.start : field.value] + fold(value.encode("ascii")) + b"\r\n"
        kept.append(raw)
    added = [f"{name}: {value}\r\n".encode() for name, value in changed.items()]
    return b"".join(kept + added)
