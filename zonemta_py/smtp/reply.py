r"""SMTP replies as values, an incremental reader of replies, and replies in HTTP header fields. Pure.

States of a ``ReplyReader``: between replies ─▶ midway (a line without its end, or a line with a hyphen) ─▶ between replies.

Invariants: the replies do not depend on the cuts of the stream; a reply has printable text of at most TEXT_MAX characters, and a status
of its own class or none; what is not a reply ends the reading, after the replies in front of it.

Callers: ``transports.session`` reads replies of peers; ``intake.http`` and ``transports.http`` write and read X-Smtp-Reply.

Example: ``ReplyReader().feed(b"250 2.1.5 Ok\r\n", replies)`` appends ``Reply(250, "2.1.5", "Ok")`` to ``replies``.

Source: RFC 5321 section 4.2 (replies), RFC 2034 and 3463 (enhanced status codes).
"""

import base64
import binascii
import re
from collections.abc import MutableSequence
from datetime import datetime
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from zonemta_py.core.errors import SessionLost
from zonemta_py.core.text import one_line

LINE_MAX = 8192  # RFC 5321 allows 512, but real servers send more
REPLY_LINES_MAX = 128
COMMON_MAX = 48  # bytes of a reply line that is cached
TEXT_MAX = 1024  # characters kept of a reply: bounds records and reports

_LINE = re.compile(rb"([2-5][0-9][0-9])([ -]?)(.*)\Z", re.DOTALL)
_ENHANCED = re.compile(r"([245]\.\d{1,3}\.\d{1,3})(?:\s+|\Z)")


class Reply(NamedTuple):
    """One reply: ``code`` 200..599, ``status`` such as ``4.7.1`` or empty, and printable text."""

    code: int
    status: str
    text: str

    @property
    def positive(self) -> bool:
        """True if the command succeeded (2xx) or continues (3xx)."""
        return 200 <= self.code < 400

    @property
    def completed(self) -> bool:
        """True if the command succeeded (2xx), which excludes 3xx."""
        return 200 <= self.code < 300

    @property
    def permanent(self) -> bool:
        """True if the failure is permanent (5xx)."""
        return self.code >= 500

    def __str__(self) -> str:
        return " ".join(part for part in (str(self.code or ""), self.status, self.text) if part)


def printable(text: str) -> str:
    """``text`` on one line, valid UTF-8, at most TEXT_MAX characters, for logs, records and reports."""
    if not text.isprintable():
        # Controls, line separators, marks of direction, unassigned code points and surrogates become spaces.
        text = " ".join(one_line(text).split())
    return text.strip()[:TEXT_MAX]


def make_reply(code: int, text: str) -> Reply:
    """A reply from its code and its text, which may begin with an enhanced status code.

    The text is cleaned by ``printable``. An enhanced code of another class than the reply code is not
    trusted and stays in the text.
    """
    clean = printable(text)
    match = _ENHANCED.match(clean)
    if match and match[1][0] == str(code)[0]:
        return Reply(code, match[1], clean[match.end() :])
    return Reply(code, "", clean)


class ReplyReader:
    """Reads replies from a stream that may be cut anywhere."""

    __slots__ = ("_buffer", "_lines")

    def __init__(self) -> None:
        self._buffer = b""
        self._lines: list[str] = []

    def feed(self, data: bytes, replies: MutableSequence[Reply]) -> None:
        """Append the replies that are now complete, in order; then raises SessionLost for data that are not replies.

        What precedes such data counts: it may be the 250 to a message.
        """
        *lines, self._buffer = (self._buffer + data).split(b"\n")
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
                    raise SessionLost("the peer's reply has too many lines")
                continue
            text, self._lines = _join(self._lines), []
            replies.append(make_reply(int(match[1]), text))
        if len(self._buffer) > LINE_MAX:
            raise SessionLost("the peer's reply line is too long")

    @property
    def midway(self) -> bool:
        """True if a reply has begun and is not complete."""
        return bool(self._buffer or self._lines)


@lru_cache(maxsize=1024)
def _single(line: bytes) -> Reply | None:
    """A reply of one line, or None if it is not one. Cached: peers repeat few replies."""
    match = _LINE.match(line.rstrip(b"\r"))
    if match is None or match[2] == b"-":
        return None
    return make_reply(int(match[1]), match[3].decode("utf-8", "replace"))


def _join(lines: list[str]) -> str:
    """The text of a multi-line reply, with its enhanced code once."""
    if len(lines) == 1:
        return lines[0]
    first = _ENHANCED.match(lines[0])
    if first is None:
        return " ".join(line.strip() for line in lines)
    others = [line.removeprefix(first[1]).strip() for line in lines[1:]]
    return " ".join([lines[0].strip(), *others])


# ---- Replies and envelopes in HTTP header fields, in the form of python-slimta's edge and relay.
#
#     X-Smtp-Reply: 250; message="2.0.0 Ok: queued as 019a…"
#
# Source: python-slimta, slimta/edge/wsgi.py and slimta/relay/http.py.

FIELD = "X-Smtp-Reply"
SENDER_FIELD = "X-Envelope-Sender"
RECIPIENT_FIELD = "X-Envelope-Recipient"
EHLO_FIELD = "X-Ehlo"

# A wrong URL or token: an error of configuration, not of the recipient.
UNUSABLE = frozenset((401, 403, 404, 405, 407, 415))
_RETRY = frozenset((408, 429))

_AGAIN = re.compile(r", again at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)\Z")
_KEY_USED = "This submission key was used for another message"
_FIELD = re.compile(r"\s*([2-5]\d\d)\s*(?:;(.*))?\Z", re.DOTALL)
_MESSAGE = re.compile(r"\s*message\s*=\s*\"((?:[^\"\\]|\\.)*)\"")


def write_reply(reply: Reply) -> str:
    """The value of X-Smtp-Reply for ``reply``; characters that are not ASCII are replaced."""
    text = " ".join(part for part in (reply.status, reply.text) if part)
    quoted = text.encode("ascii", "replace").decode().replace("\\", "\\\\").replace('"', '\\"')
    return f'{reply.code}; message="{quoted}"'


def read_reply(value: str) -> Reply | None:
    """The reply in the value of X-Smtp-Reply, or None if it is malformed."""
    match = _FIELD.match(value)
    if match is None:
        return None
    message = _MESSAGE.match(match[2] or "")
    text = re.sub(r"\\(.)", r"\1", message[1]) if message else ""
    return make_reply(int(match[1]), text)


def status_of(reply: Reply) -> int:
    """The HTTP status of a response with ``reply``."""
    if reply.completed:
        return 204
    if reply.code == 450 and _AGAIN.search(reply.text):
        return 429
    if reply.code < 500:
        return 503
    if reply.code == 550 and reply.text.startswith(_KEY_USED):
        return 409
    return 401 if reply.code == 535 else 500


def retry_after_s(reply: Reply, now_ms: int) -> int | None:
    """Seconds until the time that a refusal because of a limit names; None for another reply."""
    match = _AGAIN.search(reply.text) if reply.code == 450 else None
    if match is None:
        return None
    try:
        again_ms = datetime.fromisoformat(match[1]).timestamp() * 1000
    except ValueError:  # a reply of a policy or a scanner
        return None
    return max(1, ceil((again_ms - now_ms) / 1000))


def reply_of(status: int, reason: str) -> Reply:
    """The reply for a response without X-Smtp-Reply."""
    text = printable(f"the HTTP server answered {status} {reason}")
    if 200 <= status < 300:
        return Reply(250, "2.0.0", text)
    if 400 <= status < 500 and status not in UNUSABLE | _RETRY:
        return Reply(550, "5.0.0", text)
    return Reply(451, "4.0.0", text)


def encode_address(address: str) -> str:
    """An address in the encoding of envelope fields, base64."""
    return base64.b64encode(address.encode()).decode()


def decode_address(value: str) -> str:
    """The address in the value of an envelope field. Raises ValueError."""
    try:
        return base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as exc:
        raise ValueError(f"{value[:40]!r} is not base64 of an address") from exc
