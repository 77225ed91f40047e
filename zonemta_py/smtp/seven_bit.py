"""Conversion of an 8-bit message for a peer without 8BITMIME: quoted-printable or base64, part by part. Pure.

The top header keeps its bytes, except for fields with 8-bit characters and those that name the encoding. A
signature over the parts (RFC 1847) does not survive; the other choice is to return the message.

Source: RFC 6152 section 3, RFC 2045 sections 6.2 and 6.4, RFC 2047.
"""

from base64 import encodebytes
from binascii import b2a_qp
from contextlib import suppress
from email import policy
from email.errors import MessageError, MissingHeaderBodySeparatorDefect
from email.generator import BytesGenerator
from email.message import Message
from email.parser import BytesParser
from io import BytesIO

from zonemta_py.smtp.headers import scan

_POLICY = policy.compat32.clone(linesep="\r\n", max_line_length=None)
_ENCODING = "Content-Transfer-Encoding"
# What the email package raises for odd values and parts.
_ODD_PARTS = (ValueError, LookupError, TypeError, AttributeError, RecursionError, MessageError)
FIELD_MAX = 10_000  # bytes of a field with 8-bit characters that is encoded; others get "?"
_IDENTITY = ("8bit", "binary")


class NotConvertible(ValueError):
    """The message has no 7-bit form."""


def to_seven_bit(header: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Header block and body with 7-bit characters only. Raises NotConvertible."""
    try:
        message = BytesParser(policy=_POLICY).parsebytes(b"\r\n".join((_plain_names(header), body)))
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
    return head, converted


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
            field = _encoded_field(name, raw).decode("ascii").partition(":")[2]
            part.replace_header(name, field.strip())
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
        kept.append(raw if raw.isascii() else _encoded_field(*_split(raw)))
    added = [f"{name}: {value}\r\n".encode() for name, value in changed.items()]
    return b"".join(kept + added)


def _split(field: bytes) -> tuple[str, bytes]:
    name, _, value = field.partition(b":")
    return name.decode("ascii", "replace"), value.strip()


def _encoded_field(name: str, value: bytes) -> bytes:
    """A field with an 8-bit value, as encoded words where its kind allows them (RFC 2047), else with ``?``."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = value.decode("latin-1")
    text = " ".join(text.split())
    with suppress(*_ODD_PARTS):
        if len(value) > FIELD_MAX:
            raise ValueError("it would take seconds")
        folded = str(policy.SMTP.header_factory(name, text).fold(policy=policy.SMTP))
        if folded.isascii():
            return folded.encode()
    return f"{name}: {text.encode('ascii', 'replace').decode()}\r\n".encode()
