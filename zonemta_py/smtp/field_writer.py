"""Writes values of header fields: text, display names, parameters; encoded where it must be, and folded. Pure.

A reader gets back the text letter for letter. White space is written as single spaces, so that no value can end
its field.

Source: RFC 5322 sections 2.2.3 and 3.2, RFC 2047, RFC 2231 section 4.
"""

import re
from urllib.parse import quote

from zonemta_py.smtp.encoded_words import is_readable_in_q, words
from zonemta_py.smtp.headers import LINE_MAX

LINE_BYTES = 78  # of a folded line, RFC 5322 section 2.1.1
WORD_MAX = 64  # characters of an encoded word: the line "Subject: =?utf-8?b?…?=" has at most 76 bytes
TOKEN_MAX = (
    900  # bytes without white space that are written as they are: a line has room for them and a name
)

_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+)*\Z")


def flat(text: str) -> str:
    """``text`` in one line: white space is one space, a control character too."""
    return " ".join(_CONTROLS.sub(" ", text).split())


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
