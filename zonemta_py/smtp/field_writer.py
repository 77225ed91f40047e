"""Writes values of header fields: text, display names, parameters; encoded where it must be, and folded. Pure.

A reader gets back the text letter for letter. White space is written as single spaces, so that no value can end
its field.

Source: RFC 5322 sections 2.2.3 and 3.2, RFC 2047, RFC 2231 section 4.
"""

import re
from base64 import b64encode
from binascii import Error, a2b_base64
from collections.abc import Iterator
from urllib.parse import quote

from zonemta_py.smtp.headers import LINE_MAX

LINE_BYTES = 78  # of a folded line, RFC 5322 section 2.1.1
WORD_BYTES = 52  # of the text in an encoded word: the line "Subject: =?utf-8?b?…?=" has at most 76 bytes
TOKEN_MAX = (
    900  # bytes without white space that are written as they are: a line has room for them and a name
)

_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+)*\Z")
_IN_Q = {
    byte: chr(byte) for byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/"
} | {0x20: "_"}
_WORD = re.compile(r"=\?([^?\s*]{1,40})(?:\*[^?\s]{0,40})?\?([bBqQ])\?([^?\s]*)\?=")
_Q_BYTE = re.compile(rb"=([0-9A-Fa-f]{2})")


def flat(text: str) -> str:
    """``text`` in one line: white space is one space, a control character too."""
    return " ".join(_CONTROLS.sub(" ", text).split())


def text_value(text: str) -> str:
    """A flat text as the value of an unstructured field."""
    if text.isascii() and "=?" not in text and not _has_long_token(text):
        return text
    return encoded_words(text)


def phrase(text: str) -> str:
    """A flat text as one display name: atoms, a quoted string or encoded words."""
    if not text.isascii() or "=?" in text or _has_long_token(text):
        return encoded_words(text)
    if _ATOMS.match(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parameter(name: str, text: str) -> str:
    """A flat text as a parameter of a MIME field."""
    if text.isascii():
        return f'{name}="' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{name}*=utf-8''{quote(text, safe='')}"


def encoded_words(text: str) -> str:
    """``text`` as encoded words with a space between them; a reader joins them without it."""
    data = text.encode("utf-8", "replace")
    in_q = 3 * sum(byte not in _IN_Q for byte in data) < len(data)
    return " ".join(_encoded(chunk, in_q=in_q) for chunk in _chunks(text, in_q=in_q))


def _chunks(text: str, *, in_q: bool) -> Iterator[str]:
    """Pieces of whole characters, of which each fits an encoded word."""
    begin = used = 0
    for at, character in enumerate(text):
        data = character.encode("utf-8", "replace")
        # Counted in thirds: in base64 three bytes take four characters.
        size = 3 * sum(1 if byte in _IN_Q else 3 for byte in data) if in_q else 4 * len(data)
        if used + size > 3 * WORD_BYTES:
            yield text[begin:at]
            begin, used = at, 0
        used += size
    if begin < len(text):
        yield text[begin:]


def _encoded(text: str, *, in_q: bool) -> str:
    data = text.encode("utf-8", "replace")
    if in_q:
        return "=?utf-8?q?" + "".join(_IN_Q.get(byte) or f"={byte:02X}" for byte in data) + "?="
    return f"=?utf-8?b?{b64encode(data).decode()}?="


def decoded_words(text: str) -> str:
    """``text`` with its encoded words decoded; one that cannot be is left as it is. Takes linear time."""
    if "=?" not in text:
        return text
    found: list[str] = []
    at, pending, charset = 0, b"", ""
    for word in _WORD.finditer(text):
        data = _word_bytes(word[2], word[3])
        if data is None:
            continue
        between = text[at : word.start()]
        if at and not between.strip():  # white space between two words is no part of the text
            between = ""
        if between or word[1].lower() != charset:  # else a character may be cut between the two
            found += (_text(pending, charset), between)
            pending = b""
        pending, charset, at = pending + data, word[1].lower(), word.end()
    return "".join((*found, _text(pending, charset), text[at:]))


def _word_bytes(encoding: str, text: str) -> bytes | None:
    raw = text.encode("ascii", "replace")
    if encoding in "qQ":
        return _Q_BYTE.sub(lambda found: bytes([int(found[1], 16)]), raw.replace(b"_", b" "))
    try:
        return a2b_base64(raw + b"=" * (-len(raw) % 4))
    except Error:
        return None


def _text(data: bytes, charset: str) -> str:
    try:
        return data.decode(charset or "ascii", "replace")
    except (LookupError, ValueError):
        return data.decode("utf-8", "replace")


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
