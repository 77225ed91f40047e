"""Merge fields: ``{{column}}`` in a message becomes the recipient's value. Pure.

In the header block a non-ASCII value becomes an RFC 2047 encoded word, and line ends become spaces, so
that a list cannot inject header fields. In the body a value is inserted as UTF-8. A field that the list
lacks is an error.
"""

import re
from email.header import Header

_FIELD = re.compile(rb"\{\{\s*([^{}]+?)\s*\}\}")


class MergeError(ValueError):
    """The message has a merge field for which the recipient has no value."""


class Template:
    """A message with merge fields; its line ends are converted to CRLF. ``personal``: it has merge fields."""

    def __init__(self, message: bytes) -> None:
        text = re.sub(rb"\r\n|\r|\n", b"\r\n", message)
        if not text.endswith(b"\r\n"):
            text += b"\r\n"
        header, separator, body = text.partition(b"\r\n\r\n")
        if text.startswith(b"\r\n"):
            header, separator, body = b"", b"", text[2:]
        self._header = _split(header + b"\r\n" if header and separator else header)
        self._body = _split(body)
        self.fields = sorted({name for part in (self._header, self._body) for name in part[1::2]})
        self.personal = bool(self.fields)

    def render(self, fields: dict[str, str]) -> tuple[bytes, bytes]:
        """Header block and body for one recipient. Raises MergeError."""
        return _fill(self._header, fields, in_header=True), _fill(self._body, fields, in_header=False)


def _split(part: bytes) -> list[bytes]:
    """Literals and field names in turn; the first and the last element are literals."""
    return _FIELD.split(part)


def _fill(pieces: list[bytes], fields: dict[str, str], *, in_header: bool) -> bytes:
    if len(pieces) == 1:
        return pieces[0]
    out = [pieces[0]]
    for name, literal in zip(pieces[1::2], pieces[2::2], strict=True):
        value = fields.get(name.decode("utf-8", "replace"))
        if value is None:
            raise MergeError(f"there is no value for '{name.decode('utf-8', 'replace')}'")
        out.append(_header_value(value) if in_header else _body_value(value))
        out.append(literal)
    return b"".join(out)


def _header_value(value: str) -> bytes:
    flat = " ".join(value.split())
    if flat.isascii():
        return re.sub(r"[\x00-\x1f\x7f]", " ", flat).encode()
    return Header(flat, "utf-8", maxlinelen=75).encode(linesep="\r\n").encode()


def _body_value(value: str) -> bytes:
    lines = value.replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ").split("\n")
    return "\r\n".join(lines).encode()
