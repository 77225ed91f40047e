"""The text of a part with merge fields, decoded once, and encoded again for each recipient. Pure.

Source: RFC 2045 sections 6.7 and 6.8.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error, a2b_qp
from collections.abc import Sequence
from functools import lru_cache

from zonemta_py.submit.merge_headers import Number, Row, Unreachable
from zonemta_py.submit.merge_values import (
    MergeField,
    Write,
    as_calendar,
    as_text,
    css_writers,
    html_writers,
    marked,
    split_fields,
    text_writers,
)

IDENTITY = ("7bit", "8bit", "binary")
QUOTED_PRINTABLE, BASE64 = "quoted-printable", "base64"
QP_LINE_BYTES = 75  # and the "=" of a soft line break
BASE64_LINE_BYTES = 76

HTML = frozenset(("text/html", "application/xhtml+xml", "text/x-amp-html", "text/xml"))
_CALENDAR = frozenset(("text/calendar", "text/vcard", "text/x-vcard", "text/directory"))
_MARKED_UP = frozenset(("text/rtf", "text/richtext", "text/enriched"))
_QP_SAFE = re.compile(rb"[!-<>-~ \t]*\Z")
_QP_UNSAFE = re.compile(rb"[^!-<>-~ \t]|[ \t](?=\r\n|\Z)")


def decoded(data: bytes, encoding: str) -> bytes:
    """The content of a part. Raises ValueError where it cannot be decoded."""
    if encoding == QUOTED_PRINTABLE:
        return a2b_qp(data)
    if encoding == BASE64:
        try:
            return b64decode(re.sub(rb"[^A-Za-z0-9+/=]", b"", data))
        except Error as exc:
            raise ValueError(str(exc)) from exc
    if encoding in IDENTITY:
        return data
    raise ValueError(f"the encoding {encoding}")


class TextBody:
    """A text with merge fields. Raises Unreachable for a field in a place where no value can be written.

    ``charsets``: what it is written in, and what its values are written in. Characters that the latter lacks are
    references in HTML, else question marks. ``numbers``: its fields. ``longest``: the bytes of its longest line without
    values.
    """

    def __init__(
        self, text: str, kind: str, charsets: tuple[str, str], encoding: str, number: Number
    ) -> None:
        pieces = split_fields(text)
        fields = [piece for piece in pieces[1::2] if isinstance(piece, MergeField)]
        charset, self._charset = charsets
        self._encoding = encoding
        self._errors = "xmlcharrefreplace" if kind in HTML else "replace"
        self._slots = [
            (number(field), _writer_or_error(field, write, kind))
            for field, write in zip(fields, _writers(pieces, kind), strict=True)
        ]
        self.numbers = frozenset(number for number, _ in self._slots)
        literals = [str(piece).encode(charset, "surrogateescape") for piece in pieces[::2]]
        self.longest = max(map(len, b"".join(literals).split(b"\r\n")))
        if encoding == QUOTED_PRINTABLE:
            literals = [quoted_printable(literal) for literal in literals]
        self._literals = literals

    def render(self, row: Row) -> bytes:
        """The encoded text for a recipient. Raises UnusableValue."""
        charset, errors = self._charset, self._errors
        values = [_in_charset(write(row[number]), charset, errors) for number, write in self._slots]
        if self._encoding == QUOTED_PRINTABLE:
            return self._in_lines(values)
        data = [self._literals[0]]
        for value, literal in zip(values, self._literals[1:], strict=True):
            data += (value, literal)
        return b"".join(data) if self._encoding != BASE64 else base64_lines(b"".join(data))

    def _in_lines(self, values: Sequence[bytes]) -> bytes:
        """The literals, which are quoted-printable, and ``values``, with soft line breaks where a line would be too long."""
        out = [self._literals[0]]
        column = _column(0, self._literals[0])
        for value, literal in zip(values, self._literals[1:], strict=True):
            for piece in (quoted_printable(value), literal):
                first = piece.find(b"\r\n")
                if column and column + (len(piece) if first < 0 else first) > QP_LINE_BYTES:
                    out.append(b"=\r\n")
                    column = 0
                out.append(piece)
                column = _column(column, piece)
        return b"".join(out)


def _in_charset(text: str, charset: str, errors: str) -> bytes:
    """``text`` encoded; a character that a reader of ``charset`` would see as another is one that it lacks.

    Codecs of East Asian character sets write some characters as similar ones: Shift_JIS a yen sign as a backslash.
    """
    data = text.encode(charset, errors)
    if data.decode(charset, "replace") == text:
        return data
    kept = (
        each
        if _survives(each, charset)
        else each.encode("ascii", errors).decode()  # a reference, or "?"
        for each in text
    )
    return "".join(kept).encode(charset, errors)


@lru_cache(maxsize=4096)
def _survives(char: str, charset: str) -> bool:
    return char.encode(charset, "ignore").decode(charset, "replace") == char


def _writers(pieces: list[str | MergeField], kind: str) -> list[Write | None]:
    if kind in HTML:
        return html_writers(pieces)
    if kind == "text/css":
        return list(css_writers(marked(pieces)))
    if kind in _MARKED_UP:
        return [None] * (len(pieces) // 2)
    return text_writers(pieces, as_calendar if kind in _CALENDAR else as_text)


def _writer_or_error(field: MergeField, write: Write | None, kind: str) -> Write:
    if write is None:
        raise Unreachable(f"{field}: a place in {kind} where no value can be written")
    return write


def _column(column: int, piece: bytes) -> int:
    end = piece.rfind(b"\r\n")
    return column + len(piece) if end < 0 else len(piece) - end - 2


def quoted_printable(data: bytes) -> bytes:
    """``data`` in quoted-printable, as if it began a line; white space at its end is encoded."""
    if len(data) <= QP_LINE_BYTES and _QP_SAFE.match(data) and data[-1:] not in (b" ", b"\t"):
        return data
    data = _QP_UNSAFE.sub(_hex, data)
    if len(data) <= QP_LINE_BYTES:
        return data
    return b"\r\n".join(map(_soft_broken, data.split(b"\r\n")))


def _hex(found: re.Match[bytes]) -> bytes:
    byte = found[0]
    if byte == b"\r" and found.string[found.end() : found.end() + 1] == b"\n":
        return byte
    if byte == b"\n" and found.string[found.start() - 1 : found.start()] == b"\r":
        return byte
    return b"=%02X" % byte[0]


def _soft_broken(line: bytes) -> bytes:
    if len(line) <= QP_LINE_BYTES:
        return line
    lines, at = [], 0
    while len(line) - at > QP_LINE_BYTES:
        end = at + QP_LINE_BYTES
        end -= next((back for back in (1, 2) if line[end - back : end - back + 1] == b"="), 0)
        lines.append(line[at:end])
        at = end
    return b"=\r\n".join([*lines, line[at:]])


def base64_lines(data: bytes) -> bytes:
    text = b64encode(data)
    size = BASE64_LINE_BYTES
    return b"\r\n".join([text[at : at + size] for at in range(0, len(text), size)])
