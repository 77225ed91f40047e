"""Conversion of an 8-bit message for a peer without 8BITMIME: quoted-printable or base64, part by part. Pure.

The top header keeps its bytes, except for fields with 8-bit characters and those that name the encoding. A
signature over the parts (RFC 1847) does not survive; the other choice is to return the message.

Source: RFC 6152 section 3, RFC 2045 sections 6.2 and 6.4, RFC 2047.
"""

import re
from base64 import encodebytes
from binascii import b2a_qp
from collections.abc import Iterable, Iterator, Sequence
from email import policy
from email.errors import MessageError, MissingHeaderBodySeparatorDefect
from email.generator import BytesGenerator
from email.message import Message
from email.parser import BytesParser
from io import BytesIO
from unicodedata import normalize
from urllib.parse import quote

from zonemta_py.smtp.address import AddressError, normalise_domain
from zonemta_py.smtp.authors import (
    COMMENT,
    QUOTED,
    SPACE,
    SPECIAL,
    WORD,
    AddressToken,
    Unreadable,
    author_addresses,
    tokens,
    unquoted,
)
from zonemta_py.smtp.encoded_words import encode, encode_text, is_readable_in_q, words
from zonemta_py.smtp.headers import LINE_MAX, fold, is_bounded, scan

# ---- The 7-bit form of a header field with 8-bit characters, by its kind. Pure, in time proportional to the field.
#
# What is in ASCII keeps its bytes, so that no part of a name becomes an address: quoted words stay quoted, and only words
# that are not ASCII become encoded words. The ``email`` package would parse address fields and write them anew.
#
# Source: RFC 2047 section 5 (where encoded words may be), RFC 2231 section 4 (parameters), RFC 3986 section 2.1 (URLs).

ADDRESSES = frozenset(
    ("from", "sender", "reply-to", "to", "cc", "bcc", "resent-from", "resent-sender", "resent-to", "resent-cc",
     "resent-bcc", "resent-reply-to", "mail-followup-to", "mail-reply-to", "disposition-notification-to",
     "return-receipt-to", "errors-to", "apparently-to", "delivered-to", "x-original-to", "list-id")
)  # fmt: skip
PARAMETERS = frozenset(("content-type", "content-disposition"))
# URLs and ids: bytes that are not ASCII are percent-encoded, which keeps different ones different.
REFERENCES = frozenset(
    ("message-id", "resent-message-id", "in-reply-to", "references", "content-id", "content-location", "content-base",
     "archived-at", "list-archive", "list-help", "list-owner", "list-post", "list-subscribe", "list-unsubscribe",
     "list-unsubscribe-post")
)  # fmt: skip
# Fields of machines, in which encoded words have no meaning: a question mark stands for each other character.
MACHINES = frozenset(
    ("received", "return-path", "date", "resent-date", "mime-version", "content-transfer-encoding", "dkim-signature",
     "domainkey-signature", "authentication-results", "received-spf", "arc-seal", "arc-message-signature",
     "arc-authentication-results", "auto-submitted", "precedence")
)  # fmt: skip

_HIDDEN = re.compile(
    r'[@<>"\\()]'
)  # in a quoted string: would be read as structure by those who decode first
_SPECIAL_IN_WORD = re.compile(r'[()<>\[\]:;@\\,".]|=\?')
_RUNS = re.compile(r"[\x00-\x7f]+|[^\x00-\x7f]+")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]+")


def ascii_value(name: str, value: bytes) -> str:
    """The value of the field ``name`` in ASCII; line ends in it stay, or are moved to other white space."""
    kind = name.lower()
    if kind in REFERENCES:
        return re.sub(rb"[^\x00-\x7f]+", lambda found: quote(found[0]).encode(), value).decode("ascii")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = value.decode("latin-1")
    if kind in ADDRESSES:
        return _addresses(text)
    if kind in PARAMETERS:
        return _parameters(text)
    return _marked(text) if kind in MACHINES else encode_text(text)


def _marked(text: str) -> str:
    return text.encode("ascii", "replace").decode()


def _addresses(text: str) -> str:
    try:
        found = tokens(text)
    except Unreadable:
        return _marked(text)
    parts: list[str] = []
    for element in _elements(found):
        has_brackets = any(token == (SPECIAL, "<") for token in element)
        has_address = has_brackets or any(token == (SPECIAL, "@") for token in element)
        inner = not has_brackets and has_address
        phrase: list[AddressToken] = []
        before = AddressToken(SPACE, "")
        for token in element:
            if not inner and token.kind in (WORD, QUOTED, SPACE):
                phrase.append(token)
                continue
            parts += _phrase(phrase)
            phrase = []
            parts.append(_in_address(token, is_domain=before == (SPECIAL, "@")))
            before = token
            if has_brackets and token == (SPECIAL, "<"):
                inner = True
        parts += _phrase(phrase)
    return "".join(parts)


def _elements(found: Sequence[AddressToken]) -> Iterator[list[AddressToken]]:
    """The tokens up to each comma, colon or semicolon, and that."""
    element: list[AddressToken] = []
    for token in found:
        element.append(token)
        if token.kind == SPECIAL and token.text in ",:;":
            yield element
            element = []
    yield element


def _in_address(token: AddressToken, *, is_domain: bool) -> str:
    if token.text.isascii():
        return token.text
    if token.kind == COMMENT:
        content = token.text[1:-1].replace("\r\n", "")
        return f"({encode(content)})"
    try:
        return normalise_domain(token.text) if is_domain else _marked(token.text)
    except AddressError:
        return _marked(token.text)


def _phrase(name: Iterable[AddressToken]) -> Iterator[str]:
    """A display name; quoted strings in ASCII stay, others become words."""
    text = "".join(
        token.text if token.kind != QUOTED or token.text.isascii() else _words(unquoted(token.text))
        for token in name
    )
    if text:
        yield encode_text(text) if not text.isascii() else text


def _words(text: str) -> str:
    """The content of a quoted string as words: quoted ones in ASCII, and others, which are to be encoded."""
    text = _CONTROLS.sub(" ", text)
    if _HIDDEN.search(normalize("NFKC", text)):
        pieces = [run for word in normalize("NFKC", text).split(" ") for run in _RUNS.findall(word)]
    else:
        pieces = text.split(" ")
    return " ".join(_quoted(piece) if _SPECIAL_IN_WORD.search(piece) else piece for piece in pieces)


def _quoted(word: str) -> str:
    if not word.isascii():
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _parameters(text: str) -> str:
    """A value with parameters; those that are not ASCII in the form of RFC 2231."""
    try:
        found = tokens(text)
    except Unreadable:
        return _marked(text)
    parts: list[str] = []
    segment: list[AddressToken] = []
    for token in [*found, AddressToken(SPECIAL, ";")]:
        if token != (SPECIAL, ";"):
            segment.append(token)
            continue
        parts.append(_parameter(segment))
        segment = []
    return ";".join(parts)


def _parameter(segment: Sequence[AddressToken]) -> str:
    whole = "".join(token.text for token in segment)
    name, equals, value = whole.partition("=")
    if whole.isascii():
        return whole
    if not equals or not name.isascii() or "*" in name:
        return _marked(whole)
    value = value.strip(" \t\r\n")
    content = unquoted(value) if value[:1] == '"' else value
    return f"{name.rstrip()}*=utf-8''{quote(_CONTROLS.sub(' ', content), safe='')}"


# ---- Values of header fields: text, display names and parameters, encoded where necessary, and folded.
#
# A reader gets back the text letter for letter. White space is written as single spaces, so that no value can end
# its field.
#
# Source: RFC 5322 sections 2.2.3 and 3.2, RFC 2047, RFC 2231 section 4.

LINE_BYTES = 78  # of a folded line, RFC 5322 section 2.1.1
WORD_MAX = 64  # characters of an encoded word: the line "Subject: =?utf-8?b?…?=" has at most 76 bytes
TOKEN_MAX = (
    900  # bytes without white space that are written as they are: a line has room for them and a name
)

_FORBIDDEN = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+)*\Z")


def flat(text: str) -> str:
    """``text`` in one line: white space is one space, a control character too."""
    return " ".join(_FORBIDDEN.sub(" ", text).split())


def text_value(text: str) -> str:
    """A flat text as the value of an unstructured field."""
    if text.isascii() and "=?" not in text and not _has_long_token(text):
        return text
    return _encoded(text)


def phrase(text: str) -> str:
    """A flat text as one display name: atoms, a quoted string or encoded words."""
    if not text.isascii() or "=?" in text or _has_long_token(text):
        return _encoded(text)
    if _ATOMS.match(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parameter(name: str, text: str) -> str:
    """A flat text as a parameter of a MIME field."""
    if text.isascii():
        return f'{name}="' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{name}*=utf-8''{quote(text, safe='')}"


def _encoded(text: str) -> str:
    """``text`` as encoded words with a space between them; a reader joins them without it."""
    return " ".join(words(text, in_base64=not is_readable_in_q(text), most=WORD_MAX))


def _has_long_token(text: str) -> bool:
    return len(text) > TOKEN_MAX and max(map(len, text.split(" "))) > TOKEN_MAX


def folded(field: bytes) -> bytes:
    """A field in one line, without its CRLF, folded where it has spaces. Raises ValueError where a line stays too long."""
    if len(field) <= LINE_BYTES:
        return field
    lines, line = [], b""
    for number, word in enumerate(field.split(b" ")):
        if not number:
            line = word
        elif len(line) + 1 + len(word) <= LINE_BYTES or not line.strip(b" "):
            line += b" " + word
        else:
            lines.append(line)
            line = b" " + word
    if line.strip(b" ") or not lines:
        lines.append(line)
    else:
        lines[-1] += line  # a line of white space only would end the field
    if max(map(len, lines)) > LINE_MAX:
        raise ValueError(f"a line of more than {LINE_MAX} bytes, which cannot be folded")
    return b"\r\n".join(lines)


# ---- The message: its parts, and their fields.


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
