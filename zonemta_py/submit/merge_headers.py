"""Merge fields in header fields: each is compiled once, by its kind, and written for each recipient. Pure.

A value is put where it stands: in a display name, an address, an identifier, a URL, a parameter or a text. What the
letter wrote as an encoded word is decoded before. A reader finds as many addresses as the letter has.

Source: RFC 5322 sections 3.4 and 3.6, RFC 2369, RFC 2047.
"""

import re
from collections.abc import Callable, Sequence
from urllib.parse import quote

from zonemta_py.smtp.address import AddressError, normalise
from zonemta_py.smtp.encoded_words import decode
from zonemta_py.smtp.seven_bit import flat, folded, parameter, phrase, text_value
from zonemta_py.submit.merge_values import (
    MARK,
    MergeField,
    UnusableValue,
    Write,
    as_line,
    marked,
    split_fields,
    text_writers,
    url_writer,
)
from zonemta_py.submit.recipients import BLANKS

ADDRESSES = frozenset(
    b"from sender reply-to to cc bcc resent-from resent-sender resent-to resent-cc resent-bcc resent-reply-to "
    b"disposition-notification-to return-receipt-to errors-to mail-followup-to".split()
)
URLS = frozenset(b"list-unsubscribe list-help list-subscribe list-post list-owner list-archive".split())
IDENTIFIERS = frozenset(b"message-id in-reply-to references content-id resent-message-id".split())
PARAMETERS = frozenset(b"content-type content-disposition".split())
PLAIN = frozenset(
    b"date resent-date auto-submitted list-unsubscribe-post content-language precedence".split()
)
FIXED = frozenset(
    b"content-transfer-encoding mime-version received return-path dkim-signature authentication-results "
    b"arc-seal arc-message-signature arc-authentication-results domainkey-signature".split()
)
VALUE_MAX = 100_000  # bytes of a header field with merge fields

Row = Sequence[str]  # the values of the fields of a message, by their numbers
Number = Callable[[MergeField], int]
Piece = Callable[[Row], str]

_ID = re.compile(r"<?[^\s<>@]+@[^\s<>@]+>?\Z")
_ID_UNSAFE = re.compile(r"[^A-Za-z0-9!#$&'*+/=?^_`{|}~.\-]")
_PARAMETER = re.compile(r"\s*([\w\-*]+)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|[^\s;]*)\s*\Z", re.DOTALL)
_MERGED_PARAMETERS = ("filename", "name")
# A field is one token, whatever its default has; a quoted string, a comment, what is in brackets, or a character.
# A string is as long as a line at most: without a limit, many that do not end take quadratic time.
_QUOTED = r"\"(?:[^\"\\]|\\.){0,998}\""
_TOKEN = re.compile(
    rf"\{{\{{[^{{}}]*\}}\}}|{_QUOTED}|\((?:[^()\\]|\\.){{0,998}}\)|<[^<>]*>|[^\"(<,:;{{]+|.", re.DOTALL
)
_PARAMETERS = re.compile(rf"(?:{_QUOTED}|\{{\{{[^{{}}]*\}}\}}|[^;])+")


class Unreachable(ValueError):
    """A merge field stands where no value can be written; the text names it and the reason."""


def has_field(text: str) -> bool:
    """True if a merge field is in ``text``."""
    return len(split_fields(text)) > 1


class HeaderField:
    """A header field with merge fields. Raises Unreachable."""

    def __init__(self, name: str, value: str, number: Number) -> None:
        if len(value) > VALUE_MAX:
            raise Unreachable(f"a field of more than {VALUE_MAX:,} bytes")
        self._name = name
        self._number = number
        self._write = self._compiled(name.lower().encode(), value)

    def render(self, row: Row) -> bytes:
        """The field for a recipient, folded, with CRLF. Raises UnusableValue."""
        value = self._write(row)
        line = f"{self._name}: {value}".encode("utf-8", "replace")
        try:
            return folded(line) + b"\r\n"
        except ValueError as exc:
            raise UnusableValue(f"{self._name} has {exc}") from exc

    def _compiled(self, kind: bytes, value: str) -> Piece:
        if kind in ADDRESSES:
            return self._addresses(value)
        if kind in URLS:
            return self._urls(value)
        if kind in IDENTIFIERS:
            return self._identifiers(value)
        if kind in PARAMETERS:
            return self._parameters(value)
        if kind in PLAIN:
            return self._plain(value)
        if kind in FIXED or kind.startswith(b"arc-"):
            raise Unreachable(f"{_named(value)}: {self._name} cannot differ between recipients")
        return self._text(value)

    # ---- kinds

    def _text(self, value: str) -> Piece:
        joined = self._joined(decode(value, lenient=True))
        return lambda row: text_value(flat(joined(row)))

    def _plain(self, value: str) -> Piece:
        joined = self._joined(value)

        def write(row: Row) -> str:
            text = flat(joined(row))
            if not text.isascii():
                raise UnusableValue(
                    f"{self._name} cannot have '{text[:40]}': only ASCII is allowed there"
                )
            return text

        return write

    def _addresses(self, value: str) -> Piece:
        """Mailboxes and what is between them; those without merge fields keep their bytes."""
        pieces: list[str | Piece] = []
        tokens: list[str] = []
        for token in (*_TOKEN.findall(value), ""):
            if token and token not in ",:;":
                tokens.append(token)
                continue
            text = "".join(tokens)
            if not has_field(decode(text, lenient=True)):
                pieces.append(text)
            elif token == ":":
                raise Unreachable(
                    f"{_named(decode(text, lenient=True))}: the name of a group in {self._name}"
                )
            else:
                pieces += [text[: len(text) - len(text.lstrip())], self._mailbox(tokens)]
            pieces.append(token)
            tokens = []
        return _sequence(pieces)

    def _mailbox(self, tokens: list[str]) -> Piece:
        comments = [
            token for token in tokens if token[0] == "(" and has_field(decode(token, lenient=True))
        ]
        if comments:
            raise Unreachable(f"{_named(comments[0])}: a comment in {self._name}")
        brackets = [at for at, token in enumerate(tokens) if token[0] == "<"]
        if len(brackets) > 1 or (brackets and "".join(tokens[brackets[0] + 1 :]).strip()):
            raise Unreachable(
                f"{_named(''.join(tokens))}: {self._name} has no readable list of addresses"
            )
        if not brackets:
            return self._bare_mailbox("".join(tokens).strip())
        address = self._joined(tokens[brackets[0]][1:-1].strip())
        raw = "".join(tokens[: brackets[0]]).strip()
        named = decode("".join(map(_unquoted, tokens[: brackets[0]])).strip(), lenient=True)
        if not has_field(named):
            before = f"{raw} " if raw else ""
            return lambda row: f"{before}<{_address(self._name, address(row))}>"
        display = self._joined(named)

        def write(row: Row) -> str:
            name = flat(display(row))
            found = f"<{_address(self._name, address(row))}>"
            return f"{phrase(name)} {found}" if name else found

        return write

    def _bare_mailbox(self, text: str) -> Piece:
        """An address without brackets; where a column is all of it, its value may be a name and an address."""
        joined, pieces = self._joined(text), split_fields(text)
        is_column = len(pieces) == 3 and not pieces[0] and not pieces[2]

        def write(row: Row) -> str:
            value = flat(joined(row))
            name, bracket, address = value.rpartition("<")
            if is_column and bracket and address.endswith(">") and "<" not in name:
                display = flat(decode("".join(map(_unquoted, _TOKEN.findall(name))), lenient=True))
                return f"{phrase(display)} <{_address(self._name, address[:-1])}>".lstrip()
            return _address(self._name, value)

        return write

    def _urls(self, value: str) -> Piece:
        """URLs in brackets, with commas between them; or one without brackets."""
        if "<" not in value:
            return self._url(value)
        pieces: list[str | Piece] = []
        for part in re.split(r"(<[^<>]*>)", value):
            if not has_field(part):
                pieces.append(part)
            elif part[0] != "<":
                raise Unreachable(f"{_named(part)}: outside of the URLs of {self._name}")
            else:
                pieces += ["<", self._url(part[1:-1]), ">"]
        return _sequence(pieces)

    def _url(self, text: str) -> Piece:
        pieces = split_fields(text)
        masked = marked(pieces)
        ends = [at for at, character in enumerate(masked) if character == MARK]
        parts: list[str | Piece] = [str(pieces[0])]
        for end, field, literal in zip(ends, pieces[1::2], pieces[2::2], strict=True):
            assert isinstance(field, MergeField)
            parts.append(_url(self._number(field), url_writer(masked[:end])))
            parts.append(str(literal))
        return _sequence(parts)

    def _identifiers(self, value: str) -> Piece:
        pieces = split_fields(value)
        if len(pieces) == 3 and f"{pieces[0]}{pieces[2]}".strip() in ("", "<>"):
            whole = self._joined(value)

            def write(row: Row) -> str:
                text = whole(row).strip()
                if not text.isascii() or not _ID.match(text):
                    raise UnusableValue(f"{self._name} cannot be '{text[:80]}': expected <id@domain>")
                return f"<{text.strip('<>')}>"

            return write
        parts: list[str | Piece] = []
        for piece in pieces:
            if isinstance(piece, MergeField):
                parts.append(_slot(self._number(piece), _in_identifier))
            else:
                parts.append(piece)
        return _sequence(parts)

    def _parameters(self, value: str) -> Piece:
        parts: list[str | Piece] = []
        for number, part in enumerate(_PARAMETERS.findall(value)):
            separator = ";" if number else ""
            if not has_field(decode(part, lenient=True)):
                parts.append(separator + part)
                continue
            found = _PARAMETER.match(part)
            if found is None or found[1].lower() not in _MERGED_PARAMETERS:
                raise Unreachable(
                    f"{_named(decode(part, lenient=True))}: {self._name} can have it in a file name only"
                )
            joined = self._joined(decode(_unquoted(found[2]), lenient=True))
            parts.append(_parameter(separator, found[1], joined))
        return _sequence(parts)

    # ---- pieces

    def _joined(self, text: str) -> Piece:
        """``text`` with the values of a recipient; a URL in it has them percent-encoded."""
        pieces = split_fields(text)
        parts: list[str | Piece] = [str(pieces[0])]
        writers = text_writers(pieces, as_line)
        for field, literal, write in zip(pieces[1::2], pieces[2::2], writers, strict=True):
            assert isinstance(field, MergeField)
            assert write is not None
            parts.append(_slot(self._number(field), write))
            parts.append(str(literal))
        return _sequence(parts)


def _sequence(parts: Sequence[str | Piece]) -> Piece:
    if len(parts) == 3 and not parts[0] and not parts[2] and not isinstance(parts[1], str):
        return parts[1]
    return lambda row: "".join([part if isinstance(part, str) else part(row) for part in parts])


def _slot(number: int, write: Write) -> Piece:
    return lambda row: write(row[number])


def _url(number: int, write: Write) -> Piece:
    # Some readers divide List-Unsubscribe at any comma.
    return lambda row: write(flat(row[number])).replace(",", "%2C")


def _parameter(separator: str, name: str, value: Piece) -> Piece:
    return lambda row: f"{separator} {parameter(name, flat(value(row)))}"


def _address(name: str, text: str) -> str:
    try:
        return normalise(flat(text).strip(BLANKS))
    except AddressError as exc:
        raise UnusableValue(f"{name} cannot have the address '{text[:80]}': {exc}") from exc


def _in_identifier(value: str) -> str:
    return _ID_UNSAFE.sub(lambda found: quote(found[0], safe="", errors="replace"), value.strip())


def _unquoted(token: str) -> str:
    if len(token) > 1 and token[0] == token[-1] == '"':
        return re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL)
    return token


def _named(text: str) -> str:
    """The merge fields in ``text``, for a message."""
    return ", ".join(str(field) for field in split_fields(text)[1::2])
