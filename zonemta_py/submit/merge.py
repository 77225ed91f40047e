r"""Merge fields: ``{{column}}`` in a message becomes the recipient's value. Pure.

A message is compiled once (``_Compiler``): header fields and text parts with merge fields are decoded, and become pieces that are
written and encoded for each recipient (``Template.render``). A value is written as its place needs it (``merge_values``,
``merge_headers``).

A template has up to three forms, each compiled when it is first needed: GIVEN (the encodings of the message), UTF8 (a value is not
ASCII where the text is), QUOTED (a value would make a line too long).

Invariants: every byte outside merge fields is kept, in the form GIVEN; a field that cannot be replaced is in ``problems`` before any message
is sent; a value never becomes markup, an address or a header field.

Caller: ``submit.client``, ``cli.submit``. Example: ``Template(b"To: {{email}}\n\nHello {{name|you}}").fields`` is ``["email", "name"]``.

Source: RFC 2045, RFC 2046 section 5.1.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol

from zonemta_py.smtp.encoded_words import decode
from zonemta_py.smtp.headers import LINE_MAX, Field, HeaderTooLarge, scan
from zonemta_py.submit.merge_bodies import BASE64, HTML, IDENTITY, QUOTED_PRINTABLE, TextBody, decoded
from zonemta_py.submit.merge_headers import HeaderField, Row, Unreachable, has_field
from zonemta_py.submit.merge_values import MergeError, MergeField, UnusableValue, split_fields

__all__ = ["MergeError", "Template", "UnusableValue"]

DEPTH_MAX = 20  # parts within parts
CONTENT_TYPE_MAX = 10_000  # bytes of the field that is searched for parameters
_CHARSET = re.compile(r"(;\s*charset\s*=\s*)(\"[^\"]*\"|[^\s;]*)", re.IGNORECASE)
_BOUNDARY = re.compile(r";\s*boundary\s*=\s*(?:\"([^\"]*)\"|([^\s;]+))", re.IGNORECASE)
_KIND = re.compile(r"\s*([\w.+\-]+/[\w.+\-]+)")
_TEXTUAL = re.compile(r"(?:text/|message/)|.*[/+](?:json|xml|javascript|x-www-form-urlencoded)\Z")
_ENCODING = b"content-transfer-encoding"
_UNCHANGEABLE = ("multipart/signed", "multipart/encrypted")
_MESSAGES = ("message/rfc822", "message/global")
_UTF8 = ("utf-8", "utf8")
_ASCII = ("", "us-ascii", "ascii")  # or what is not declared and in use: UTF-8


class _Form(Enum):
    """The form of a text without an encoding: as it is, as UTF-8 in 8 bits, or as UTF-8 in quoted-printable."""

    GIVEN = 0
    UTF8 = 1
    QUOTED = 2


class _Piece(Protocol):
    """A part that is written for each recipient."""

    def render(self, row: Row) -> bytes: ...


_Pieces = list[bytes | _Piece]


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A message in one form. ``body_bytes``: of its body without values. ``room``: what its longest line with a field leaves."""

    header: _Pieces
    body: _Pieces
    body_bytes: int
    room: float


class Template:
    """A message with merge fields; its line ends are converted to CRLF.

    ``personal``: it has merge fields. ``fields``: their columns; ``required``: those without a default.
    ``problems``: for each field that cannot be replaced, where it is and why.
    """

    def __init__(self, message: bytes) -> None:
        text = re.sub(rb"\r\n|\r|\n", b"\r\n", message)
        if not text.endswith(b"\r\n"):
            text += b"\r\n"
        self._header, self._text = _divided(text)
        self._numbers: dict[MergeField, int] = {}
        self._wide: set[int] = set()  # fields whose text has no place for characters that are not ASCII
        self.problems: list[str] = []
        self._forms: dict[_Form, _Compiled] = {}
        self._forms[_Form.GIVEN] = self._compiled(_Form.GIVEN)
        self.fields = sorted({field.name for field in self._numbers})
        self.required = sorted({field.name for field in self._numbers if field.default is None})
        self.personal = bool(self._numbers)

    def require_reachable(self) -> None:
        """Raise MergeError if there are ``problems``."""
        if self.problems:
            raise MergeError(f"the message cannot be merged: {'; '.join(self.problems)}")

    def render(self, fields: Mapping[str, str | None]) -> tuple[bytes, bytes]:
        """Header block and body for one recipient. Raises MergeError, UnusableValue where others may have a value."""
        self.require_reachable()
        row = [field.value(fields) for field in self._numbers]
        is_wide = any(not row[number].isascii() for number in self._wide)
        form = _Form.UTF8 if is_wide else _Form.GIVEN
        header, body = self._rendered(form, row)
        compiled = self._forms[form]
        if len(body) - compiled.body_bytes > compiled.room and _longest(body) > LINE_MAX:
            return self._rendered(_Form.QUOTED, row)
        return header, body

    def _rendered(self, form: _Form, row: Row) -> tuple[bytes, bytes]:
        compiled = self._forms.get(form)
        if compiled is None:
            compiled = self._forms[form] = self._compiled(form)
        return _joined(compiled.header, row), _joined(compiled.body, row)

    def _compiled(self, form: _Form) -> _Compiled:
        compiler = _Compiler(form, self._number)
        header, body = compiler.entity(self._header, self._text, 0)
        if form is _Form.GIVEN:
            self.problems, self._wide = compiler.problems, compiler.wide
        empty = [""] * len(self._numbers)
        return _Compiled(header, body, len(_joined(body, empty)), compiler.room)

    def _number(self, field: MergeField) -> int:
        return self._numbers.setdefault(field, len(self._numbers))


def _divided(entity: bytes) -> tuple[bytes, bytes]:
    """Header block and body; a header block without a body is one."""
    if entity.startswith(b"\r\n"):
        return b"", entity[2:]
    header, separator, body = entity.partition(b"\r\n\r\n")
    return (header + b"\r\n", body) if separator else (header, b"")


def _joined(pieces: _Pieces, row: Row) -> bytes:
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        return pieces[0]
    return b"".join([piece if isinstance(piece, bytes) else piece.render(row) for piece in pieces])


def _longest(data: bytes) -> int:
    return max(map(len, data.split(b"\r\n")))


@dataclass(frozen=True, slots=True)
class _Content:
    """The properties of a body by its header. ``charset``: empty if it names none."""

    fields: list[Field]
    kind: str
    charset: str
    encoding: str
    boundary: str

    @property
    def is_attachment(self) -> bool:
        """True if the content is data, in which two braces mean nothing."""
        return self.encoding == BASE64 and not _TEXTUAL.match(self.kind)


def _content(header: bytes) -> _Content:
    fields = scan(header)[0]
    kind, encoding, charset, boundary = "text/plain", "7bit", "", ""
    for field in reversed(fields):  # the first of its name is the one that counts
        if field.name == b"content-type":
            text = _unfolded(header[field.value : field.end])[:CONTENT_TYPE_MAX]
            found, named, between = _KIND.match(text), _CHARSET.search(text), _BOUNDARY.search(text)
            kind = found[1].lower() if found else "text/plain"
            charset = named[2].strip('"').strip().lower() if named else ""
            boundary = (between[1] or between[2] or "").rstrip() if between else ""
        elif field.name == _ENCODING:
            encoding = _unfolded(header[field.value : field.end]).lower()
    return _Content(fields, kind, charset, encoding, boundary)


class _Compiler:
    """Compiles the parts of a message in one form.

    ``wide``: the fields that stand in a text which takes ASCII only. ``room``: of the lines of texts that are not encoded.
    """

    def __init__(self, form: _Form, number: Callable[[MergeField], int]) -> None:
        self._form = form
        self._number = number
        self.problems: list[str] = []
        self.wide: set[int] = set()
        self.room = inf

    def entity(
        self, header: bytes, body: bytes, depth: int, where: str = "the body"
    ) -> tuple[_Pieces, _Pieces]:
        """The pieces of header and body. ``where``: what the body is, for messages."""
        try:
            content = _content(header)
        except HeaderTooLarge as exc:
            self._refuse(header + body, str(exc))
            return [header], [body]
        head, text = (
            self._header(header, content.fields, depth, where),
            self._body(content, body, depth, where),
        )
        if isinstance(text, TextBody):
            declared = self._declared(header, content, depth)
            if declared != header:
                head = self._header(declared, scan(declared)[0], depth, where)
            return head, [text]
        return head, text

    def _refuse(self, data: bytes, reason: str) -> None:
        """Note the merge fields in ``data``."""
        if _may_have_fields(data):
            names = {str(field) for field in split_fields(data.decode("utf-8", "replace"))[1::2]}
            self.problems += [f"{name}: {reason}" for name in sorted(names)]

    # ---- header

    def _header(self, header: bytes, fields: Sequence[Field], depth: int, where: str) -> _Pieces:
        pieces: _Pieces = []
        end = 0
        for field in fields:
            raw = header[field.start : field.end]
            end = field.end
            pieces.append(raw)
            if not _may_have_fields(raw):
                continue
            self._refuse(raw.partition(b":")[0], "the name of a header field")
            value = _unfolded(header[field.value : field.end])
            if not has_field(decode(value, lenient=True)):
                continue
            name = raw.partition(b":")[0].rstrip().decode("ascii")
            try:
                pieces[-1] = HeaderField(name, value, self._number)
            except Unreachable as exc:
                self.problems.append(f"{exc}, in {where}" if depth else str(exc))
        self._refuse(header[end:], "a line in the header that is no header field")
        return _merged([*pieces, header[end:]])

    def _declared(self, header: bytes, content: _Content, depth: int) -> bytes:
        """``header`` with the character set and the encoding in which the text is written in this form."""
        charset, encoding = self._target(content, depth)
        changed: dict[bytes, bytes] = {}
        if charset != content.charset:
            changed[b"content-type"] = _with_charset(header, content, charset)
        if encoding != content.encoding:
            changed[_ENCODING] = f"Content-Transfer-Encoding: {encoding}\r\n".encode()
        out, at = [], 0
        for field in content.fields if changed else ():
            out.append(header[at : field.start])
            out.append(changed.pop(field.name, header[field.start : field.end]))
            at = field.end
        if changed and not depth and not any(each.name == b"mime-version" for each in content.fields):
            out.append(b"MIME-Version: 1.0\r\n")
        return b"".join([*out, *changed.values(), header[at:]])

    def _target(self, content: _Content, depth: int) -> tuple[str, str]:
        """The character set, empty for none, and the encoding of a text with merge fields in this form."""
        form, encoding = self._form, content.encoding
        is_identity = encoding in IDENTITY
        if form is _Form.QUOTED and is_identity:
            encoding = QUOTED_PRINTABLE
        if form is _Form.GIVEN or content.kind in HTML:
            return content.charset, encoding
        if form is _Form.UTF8 and encoding == "7bit":
            encoding = QUOTED_PRINTABLE if depth else "8bit"  # what is around it says 7bit, too
        return "utf-8", encoding

    # ---- body

    def _body(self, content: _Content, body: bytes, depth: int, where: str) -> "_Pieces | TextBody":
        if content.boundary and content.kind.startswith("multipart/"):
            if content.kind in _UNCHANGEABLE:
                return self._refused(body, f"{where}: the parts of {content.kind} cannot change")
            return self._multipart(content.boundary, body, depth, where)
        if content.kind in _MESSAGES and content.encoding in IDENTITY:
            return self._nested(body, depth, f"the message in {where}")
        if content.is_attachment:
            return [body]
        return self._text(content, body, depth, where)

    def _refused(self, body: bytes, reason: str) -> _Pieces:
        self._refuse(body, reason)
        return [body]

    def _nested(self, entity: bytes, depth: int, where: str) -> _Pieces:
        if depth >= DEPTH_MAX:
            return self._refused(entity, f"{where}: more than {DEPTH_MAX} parts within each other")
        header, body = _divided(entity)
        head, pieces = self.entity(header, body, depth + 1, where)
        return _merged([*head, entity[len(header) : len(entity) - len(body)], *pieces])

    def _multipart(self, boundary: str, body: bytes, depth: int, where: str) -> _Pieces:
        delimiter = re.compile(
            rb"(?:\A|\r\n)--"
            + re.escape(boundary.encode("utf-8", "replace"))
            + rb"(--)?[ \t]*(?=\r\n|\Z)"
        )
        pieces: _Pieces = []
        at = count = 0
        for found in delimiter.finditer(body):
            if count:
                pieces += self._part(body[at : found.start()], depth, f"part {count} of {where}")
            else:
                pieces += self._refused(body[: found.start()], f"{where}: before its parts")
            pieces.append(found[0])
            at, count = found.end(), count + 1
            if found[1]:
                return _merged([*pieces, *self._refused(body[at:], f"{where}: behind its parts")])
        if not count:
            return self._refused(body, f"{where}: it has no parts")
        return _merged([*pieces, *self._part(body[at:], depth, f"part {count} of {where}")])

    def _part(self, data: bytes, depth: int, where: str) -> _Pieces:
        """``data`` begins with the line end of its delimiter."""
        return [data[:2], *self._nested(data[2:], depth, where)]

    def _text(self, content: _Content, body: bytes, depth: int, where: str) -> "_Pieces | TextBody":
        if content.encoding in IDENTITY and not _may_have_fields(body):
            return [body]
        data = body
        try:
            data = decoded(body, content.encoding)
            text = _as_text(data, content.charset)
        except (ValueError, LookupError) as exc:
            self._refuse(_seen_text(data, content.charset), f"{where} cannot be read: {exc}")
            return [body]
        if not has_field(text):
            return [body]
        if not content.kind.startswith("text/") and content.kind not in HTML:
            return self._refused(data, f"{where} is {content.kind}, not a text")
        charset, encoding = self._target(content, depth)
        codec = "utf-8" if charset in _ASCII else charset
        value_codec = (
            "ascii" if charset in _ASCII or (content.kind in HTML and encoding == "7bit") else charset
        )
        try:
            found = TextBody(text, content.kind, (codec, value_codec), encoding, self._number)
        except Unreachable as exc:
            self.problems.append(f"{exc}, in {where}")
            return [body]
        if encoding in IDENTITY:
            self.room = min(self.room, LINE_MAX - found.longest)
        if content.kind not in HTML and (charset not in _UTF8 or encoding == "7bit"):
            self.wide |= found.numbers
        return found


def _as_text(data: bytes, charset: str) -> str:
    """The text of ``data``, of which every byte can be written again. Raises LookupError for an unknown character set."""
    return data.decode("utf-8" if charset in _ASCII else charset, "surrogateescape")


def _seen_text(data: bytes, charset: str) -> bytes:
    """The text in ``data`` that a reader may see although it cannot be written again, as UTF-8."""
    try:
        return data.decode(charset, "replace").encode("utf-8", "replace")
    except (LookupError, ValueError):
        return data


def _may_have_fields(data: bytes) -> bool:
    """True if a search of ``data`` may find a merge field."""
    return b"{{" in data or b"=?" in data or b"%7" in data


def _unfolded(value: bytes) -> str:
    raw = value.replace(b"\r\n", b"")
    try:
        return raw.decode().strip()
    except UnicodeDecodeError:
        return raw.decode("latin-1").strip()


def _with_charset(header: bytes, content: _Content, charset: str) -> bytes:
    for field in content.fields:
        if field.name == b"content-type":
            text = header[field.start : field.end].decode("latin-1").removesuffix("\r\n")
            changed, count = _CHARSET.subn(lambda found: found[1] + charset, text, count=1)
            changed = changed if count else f"{text.rstrip('; ')}; charset={charset}"
            return f"{changed}\r\n".encode("latin-1")
    return f"Content-Type: text/plain; charset={charset}\r\n".encode()


def _merged(pieces: _Pieces) -> _Pieces:
    """``pieces`` with literals that follow each other as one; there is at least one piece."""
    found: _Pieces = []
    literal: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            literal.append(piece)
            continue
        if any(literal):
            found.append(b"".join(literal))
        found.append(piece)
        literal = []
    if any(literal) or not found:
        found.append(b"".join(literal))
    return found
