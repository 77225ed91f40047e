r"""The header block of a message: split off, scanned, and edited without changing other bytes. Pure.

States of a ``HeaderSplitter``: held (no empty line yet) ─▶ done; afterwards every byte is of the body.

Invariants:

- Header block, empty line and body together are the bytes of the message, but for lines of an mbox file in front.
- The result does not depend on the cuts of the stream. At most HEADER_MAX bytes and FIELDS_MAX fields are held.
- Offsets of a ``Field`` are of the block that was scanned; an edit returns a new block, to be scanned again.

Callers: intake splits and stamps, delivery signs and converts. Example: ``scan(b"A: 1\r\n")`` has one field, ``a``, with the value at 2.

Source: RFC 5322 sections 2.2 and 3.6; RFC 5321 section 4.4 (trace).
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

HEADER_MAX = 1 << 20  # bytes; larger header blocks are refused
LINE_MAX = 998  # bytes, without CRLF
FIELDS_MAX = 2000  # a block of tiny fields would take fifty times its size in memory

PARAMETERS_MAX = 2000  # bytes of a field with parameters
NESTED_MAX = 100  # parts with parts in a message

_MAILBOX_LINES = re.compile(rb"(?:>*(?i:From)[ \t](?![ \t]*:)[^\n]*(?:\n|\Z))+")
_STRUCTURE = re.compile(
    rb"^(?:content-(?:type|disposition)|mime-version)[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)",
    re.IGNORECASE | re.MULTILINE,
)
_NESTED = re.compile(rb"\s*(?:multipart|message)/", re.IGNORECASE)
_NAME_BYTES = bytes(range(0x21, 0x7F)).replace(b":", b"")


class HeaderTooLarge(ValueError):
    """The header block exceeds HEADER_MAX or FIELDS_MAX."""


class Field(NamedTuple):
    """One header field: its name in lower case and its offsets in the block.

    ``start`` is the offset of its first byte, ``value`` of the byte after the colon, ``end`` of the
    byte after its last CRLF.
    """

    name: bytes
    start: int
    value: int
    end: int


def scan(block: bytes) -> tuple[list[Field], int]:
    """The fields of ``block`` in order, and the offset where they end.

    The offset is that of the first line that is neither a field nor a continuation line, or the
    length of the block. The block consists of whole lines; the last may lack CRLF.
    Raises HeaderTooLarge.
    """
    fields: list[Field] = []
    at = 0
    name, start, value = b"", 0, -1
    for line in block.split(b"\r\n"):
        if not line:
            break
        if line[0] not in b" \t":
            if value >= 0:
                fields.append(Field(name, start, value, at))
                value = -1
                if len(fields) > FIELDS_MAX:
                    raise HeaderTooLarge(f"more than {FIELDS_MAX} header fields")
            head, colon, _ = line.partition(b":")
            name = head.rstrip(b" \t").lower()
            if not colon or not name or name.translate(None, _NAME_BYTES):
                return fields, at
            start, value = at, at + len(head) + 1
        elif value < 0:
            return fields, at
        at += len(line) + 2
    at = min(at, len(block))
    if value >= 0:
        fields.append(Field(name, start, value, at))
    return fields, at


def is_header(block: bytes) -> bool:
    """True if ``block`` consists of fields only, with CRLF at the end of every line and nowhere a part of it.

    A bare LF ends the message for some receivers, and what follows is a message of the author's (CVE-2023-51764).
    """
    lines = block.replace(b"\r\n", b"")
    plain = b"\r" not in lines and b"\n" not in lines and b"\0" not in lines
    return not block or (plain and block.endswith(b"\r\n") and scan(block)[1] == len(block))


def fold(block: bytes) -> bytes:
    """``block`` with lines of more than LINE_MAX bytes folded where they have white space.

    Source: RFC 5322 section 2.2.3. The unfolded fields do not change.
    """
    if len(block) <= LINE_MAX or all(len(line) <= LINE_MAX for line in block.split(b"\r\n")):
        return block
    return b"\r\n".join(b"\r\n".join(_folded(line)) for line in block.split(b"\r\n"))


def _folded(line: bytes) -> Iterator[bytes]:
    while len(line) > LINE_MAX:
        text = len(line) - len(line.lstrip(b" \t"))  # a line of white space only would end the field
        at = max(line.rfind(b" ", text, LINE_MAX), line.rfind(b"\t", text, LINE_MAX))
        if at < 0:  # no white space early enough
            ends = [end for end in (line.find(b" ", LINE_MAX), line.find(b"\t", LINE_MAX)) if end > 0]
            at = min(ends, default=0)
        if at <= 0 or not line[at:].strip(b" \t"):
            break
        yield line[:at]
        line = line[at:]
    yield line


def mailbox_lines_end(message: bytes) -> int:
    """The offset after the lines of an mbox file at the beginning of ``message``; 0 without such lines."""
    lines = _MAILBOX_LINES.match(message)
    return lines.end() if lines is not None else 0


def names_in(block: bytes) -> set[bytes]:
    """The lower-case names of the lines of ``block`` that look like fields, wherever they are."""
    heads = (line.partition(b":") for line in block.split(b"\r\n"))
    return {head.strip(b" \t").lower() for head, colon, _ in heads if colon}


def is_bounded(message: bytes) -> bool:
    """True if the ``email`` package parses ``message`` in time proportional to its size.

    It needs quadratic time for parameters, and for each line as many steps as there are parts around it.
    """
    nested = 0
    for field in _STRUCTURE.finditer(message):
        if len(field[1]) > PARAMETERS_MAX:
            return False
        nested += _NESTED.match(field[1]) is not None
    return nested <= NESTED_MAX


class HeaderSplitter:
    """Splits a message into header block and body; the stream may be cut anywhere.

    The block ends at the first empty line, which belongs to neither part, or before the first line
    that is not a header field. When ``done``, ``header`` is empty or ends with CRLF, and ``fields``
    are its fields. ``behind``: if a line that is not a field ended it, that line and all before the next empty one.

    Lines of an mbox file before the first field (``From x Mon Sep 17 00:00:00 2001``) are dropped: sendmail programs
    and ``git format-patch`` write one. Postfix writes it as X-Mailbox-Line, in which the recipients see it.
    """

    __slots__ = ("_held", "_searched", "behind", "done", "fields", "header")

    def __init__(self) -> None:
        self._held: bytes | bytearray = b""
        self._searched = 0
        self.done = False
        self.header = b""
        self.fields: list[Field] = []
        self.behind = b""

    def feed(self, data: bytes) -> bytes:
        """Add ``data``; returns the bytes that belong to the body. Raises HeaderTooLarge."""
        if self.done:
            return data
        if not self._held:
            self._held = data
        else:
            if isinstance(self._held, bytes):
                self._held = bytearray(self._held)  # bytes would be copied for every piece
            self._held += data
        return self._advance(at_end=False)

    def finish(self) -> bytes:
        """End of the message; returns the remaining bytes of the body. Raises HeaderTooLarge."""
        return b"" if self.done else self._advance(at_end=True)

    def _advance(self, *, at_end: bool) -> bytes:
        held = self._held
        if held.startswith(b"\r\n"):
            return self._cut(0, 2)
        end = held.find(b"\r\n\r\n", max(0, self._searched - 3))
        self._searched = len(held)
        if end >= 0:
            stop_at = end + 2
        elif at_end:
            stop_at = len(held)
        elif len(held) > HEADER_MAX:
            stop_at = held.rfind(b"\r\n") + 2 if b"\r\n" in held else 0
        else:
            return b""
        if isinstance(held, bytearray):
            held = self._held = bytes(held)
        block = held[:stop_at]
        self.fields, stop = scan(block)
        if stop < len(block):
            dropped = 0 if stop else mailbox_lines_end(block)
            if dropped:
                self._held, self._searched = held[dropped:], 0
                return self._advance(at_end=at_end)
            self.behind = block[stop:]
            return self._cut(stop, stop)
        if end >= 0:
            return self._cut(end + 2, end + 4)
        if at_end:
            return self._cut(len(held), len(held))
        raise HeaderTooLarge(f"header block over {HEADER_MAX} bytes")

    def _cut(self, header_end: int, body_start: int) -> bytes:
        if header_end > HEADER_MAX:
            raise HeaderTooLarge(f"header block over {HEADER_MAX} bytes")
        self.done = True
        held = bytes(self._held)
        self.header, body = held[:header_end], held[body_start:]
        if self.header and not self.header.endswith(b"\r\n"):
            self.header += b"\r\n"
        self._held = b""
        return body


def field_value(block: bytes, field: Field) -> str:
    """The unfolded, trimmed value of a field as text; bytes that are not UTF-8 are replaced."""
    raw = block[field.value : field.end]
    return raw.replace(b"\r\n", b"").decode("utf-8", "replace").strip()


def without(block: bytes, fields: Iterable[Field]) -> bytes:
    kept, at = [], 0
    for field in sorted(fields, key=lambda f: f.start):
        kept.append(block[at : field.start])
        at = field.end
    kept.append(block[at:])
    return b"".join(kept)


def received(
    *, helo: str, client_ip: str, by: str, protocol: str, message_id: str, recipient: str, date: str
) -> bytes:
    """A Received field, folded, with CRLF. ``recipient`` is empty for a message with several recipients, ``helo``
    to leave the client out.

    Source: RFC 5321 section 4.4, RFC 3848 (the protocol names).
    """
    literal = f"IPv6:{client_ip}" if ":" in client_ip else client_ip
    target = f"\r\n\tfor <{recipient}>" if recipient else ""
    client = f"from {helo} ([{literal}])\r\n\t" if helo else ""
    return (
        f"Received: {client}by {by} with {protocol} id {message_id}{target};\r\n\t{date}\r\n"
    ).encode()
