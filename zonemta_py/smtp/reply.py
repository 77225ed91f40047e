"""SMTP replies as values, and an incremental reader of them.

Source: RFC 5321 section 4.2 (replies), RFC 2034 and 3463 (enhanced status codes).
"""

import re
from functools import lru_cache
from typing import NamedTuple

from zonemta_py.core.errors import SessionLost

LINE_MAX = 8192  # RFC 5321 says 512; real servers send more, hostile ones without end
REPLY_LINES_MAX = 128
COMMON_MAX = 48  # octets of a reply line that is worth remembering
TEXT_MAX = 1024  # what is kept of a reply: enough for any operator, a bound for records and reports

_LINE = re.compile(rb"([2-5][0-9][0-9])([ -]?)(.*)\Z", re.DOTALL)
_ENHANCED = re.compile(r"([245]\.\d{1,3}\.\d{1,3})(?:\s+|\Z)")


class Reply(NamedTuple):
    """One reply: ``code`` 200..599, ``status`` such as ``4.7.1`` or empty, and printable text."""

    code: int
    status: str
    text: str

    @property
    def positive(self) -> bool:
        """Whether the command succeeded (2xx) or may go on (3xx)."""
        return 200 <= self.code < 400

    @property
    def completed(self) -> bool:
        """Whether the command succeeded (2xx): all that MAIL and RCPT can be answered with."""
        return 200 <= self.code < 300

    @property
    def permanent(self) -> bool:
        """Whether asking again is pointless (5xx)."""
        return self.code >= 500

    def __str__(self) -> str:
        return " ".join(part for part in (str(self.code or ""), self.status, self.text) if part)


def printable(text: str) -> str:
    """``text`` on one line, valid UTF-8, TEXT_MAX characters at most: fit for logs, records, reports."""
    if not text.isprintable():
        # Controls, line separators, marks of direction, unassigned code points, surrogates: a space each.
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text.strip()[:TEXT_MAX]


def make_reply(code: int, text: str) -> Reply:
    """A reply from its code and its text, which may begin with an enhanced status code.

    Control characters become spaces (log and report injection), the rest is cut at TEXT_MAX. An
    enhanced code of another class than the reply code is left in the text: it cannot be trusted.
    """
    clean = printable(text)
    match = _ENHANCED.match(clean)
    if match and match[1][0] == str(code)[0]:
        return Reply(code, match[1], clean[match.end() :])
    return Reply(code, "", clean)


class ReplyReader:
    """Replies out of whatever the socket gave, at any split.

    ``feed`` raises SessionLost when the peer does not speak SMTP or sends without end.
    """

    __slots__ = ("_buffer", "_lines")

    def __init__(self) -> None:
        self._buffer = b""
        self._lines: list[str] = []

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that are now complete, in order."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > LINE_MAX:
            raise SessionLost("the peer's reply line has no end")
        replies = []
        for line in lines:
            if len(line) < COMMON_MAX and not self._lines:
                common = _single(line)
                if common is not None:
                    replies.append(common)
                    continue
            match = _LINE.match(line.rstrip(b"\r"))
            if match is None or len(line) > LINE_MAX:
                raise SessionLost(f"not an SMTP reply: {line[:80]!r}")
            self._lines.append(match[3].decode("utf-8", "replace"))
            if match[2] == b"-":
                if len(self._lines) > REPLY_LINES_MAX:
                    raise SessionLost("the peer's reply has no end")
                continue
            replies.append(make_reply(int(match[1]), _join(self._lines)))
            self._lines = []
        return replies

    @property
    def midway(self) -> bool:
        """Whether part of a reply is still held."""
        return bool(self._buffer or self._lines)


@lru_cache(maxsize=1024)
def _single(line: bytes) -> Reply | None:
    """A reply of one line; None when it is not one. Peers say the same few things all day."""
    match = _LINE.match(line.rstrip(b"\r"))
    if match is None or match[2] == b"-":
        return None
    return make_reply(int(match[1]), match[3].decode("utf-8", "replace"))


def _join(lines: list[str]) -> str:
    """One text of a multi-line reply, its enhanced code once."""
    if len(lines) == 1:
        return lines[0]
    first = _ENHANCED.match(lines[0])
    if first is None:
        return " ".join(line.strip() for line in lines)
    rest = [line.removeprefix(first[1]).strip() for line in lines[1:]]
    return " ".join([lines[0].strip(), *rest])
