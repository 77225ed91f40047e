"""The transparency procedure of DATA in both directions; the stream may be cut anywhere. Pure.

Receiving: the first dot of every line is removed, and only ``CRLF . CRLF`` ends the data. A dot next to a
bare CR or LF never ends the data; LineCheck finds bare CR and LF so that the message can be refused
(SMTP smuggling, CVE-2023-51764 and similar), or LineNormaliser makes CRLF of each bare LF: a client that sends those
sends dots as if LF were a line end. Even then a line of one dot next to a bare LF neither ends the data nor passes: the message
is refused, as servers that take LF for a line end would see an end there. Sending: a dot is inserted before every leading dot.

Source: RFC 5321 sections 2.3.8, 4.1.1.4, 4.5.2.
"""

import re
from io import IncrementalNewlineDecoder

_LINE_END = re.compile(rb"\r\n|\r|\n")
_DOT_LINE = re.compile(rb"\r\n\.")
_END = b"\r\n.\r\n"
_BARE_LF = re.compile(rb"(?<!\r)\n\.?")  # with the dot that begins the next line, which is removed
_LONE_DOT = re.compile(rb"(?<!\r)\n\.\r?\n")
_UNDECIDED_LF = re.compile(rb"(?<!\r)\n(?:\.\r?)?\Z")
SLICE = 32_768  # bytes


def _dot_line(data: bytes) -> int:
    """The offset of the first CRLF and dot; -1 without them. Most of a body has no dot at all, which is quick to see."""
    dot = data.find(b".")
    if dot < 0:
        return -1
    found = _DOT_LINE.search(data, max(0, dot - 2))
    return found.start() if found else -1


class DotDecoder:
    """Decodes the stream of DATA to the message.

    When ``done``, ``trailing`` are the bytes after the final dot: the client's next commands. ``lookalike``: a line of
    one dot ended in a bare LF.
    """

    __slots__ = ("_held", "_skip", "done", "lookalike", "trailing")

    def __init__(self) -> None:
        self._held = b"\r\n"  # a virtual line end: the data may begin with the final dot
        self._skip = 2  # bytes of the virtual line end, which are not part of the message
        self.done = self.lookalike = False
        self.trailing = b""

    def feed(self, data: bytes) -> bytes:
        """The bytes of the message that are now certain."""
        window = self._held + data if self._held else data
        dots = _dot_line(window)  # rare; without it there is no end of data either
        end = window.find(_END, dots) if dots >= 0 else -1
        if end >= 0:
            self.done = True
            self.trailing = window[end + 5 :]
            certain = window[: end + 2]
            self._held = b""
        else:
            keep = _undecided(window)
            split = len(window) - keep
            certain, self._held = (window[:split], window[split:]) if keep else (window, b"")
        if dots != end:  # the first CRLF and dot does not end the data
            self.lookalike = self.lookalike or b"\r\n.\n" in certain
            certain = certain.replace(b"\r\n.", b"\r\n")
        if self._skip:
            dropped = min(self._skip, len(certain))
            self._skip -= dropped
            certain = certain[dropped:]
        return certain


def _undecided(window: bytes) -> int:
    """The number of bytes at the end that may begin a final or a stuffed dot."""
    for size in (4, 3, 2, 1):
        if window.endswith(_END[:size]):
            return size
    return 0


class DotEncoder:
    """Encodes a message for DATA; ``finish`` returns the final dot.

    The message has no bare CR or LF (intake refuses them), so the only state is whether the bytes
    so far end in CR, in CRLF or in neither.
    """

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b"\r\n"  # a message that begins with a dot is at a line start

    def feed(self, data: bytes) -> bytes:
        """``data``, of any length, with each leading dot doubled."""
        if not data:
            return data
        out = data
        if _dot_line(data) >= 0:
            out = data.replace(b"\r\n.", b"\r\n..")
        tail = self._tail
        if tail == b"\r\n":
            if data[0] == 0x2E:
                out = b"." + out
        elif tail == b"\r" and data[:2] == b"\n.":
            out = b"\n.." + out[2:]
        end = (tail + data[-2:])[-2:]
        self._tail = end if end == b"\r\n" else (b"\r" if end[-1:] == b"\r" else b"")
        return out

    def finish(self) -> bytes:
        """The final dot, after CRLF if the message does not end with it."""
        return b".\r\n" if self._tail == b"\r\n" else b"\r\n.\r\n"


def with_crlf(text: bytes) -> bytes:
    """``text`` with CRLF for each line end, CRLF, LF or CR. For text that did not come over SMTP."""
    return _LINE_END.sub(b"\r\n", text)


class LineNormaliser:
    """Writes CRLF for each bare LF of a message that comes over SMTP, and removes the dot that begins the line after it.

    It is needed from the first block with a bare LF; ``after_cr``: the byte before that block was CR. ``lookalike``: a
    line of one dot followed a bare LF.
    """

    __slots__ = ("_after_cr", "_held", "lookalike")

    def __init__(self, *, after_cr: bool) -> None:
        self._after_cr = after_cr
        self._held = b""
        self.lookalike = False

    def feed(self, data: bytes, *, final: bool = False) -> bytes:
        """The normalised bytes that are now certain; ``final``: no more will come."""
        window, first = self._held + data, b""
        if self._after_cr and window[:1] == b"\n":
            window, first = window[1:], b"\n"
        self.lookalike = self.lookalike or _LONE_DOT.search(window) is not None
        undecided = None if final else _UNDECIDED_LF.search(window, max(0, len(window) - 4))
        if undecided is not None:  # a dot may follow
            window, self._held = window[: undecided.start()], window[undecided.start() :]
        else:
            self._held = b""
        if window or first:
            self._after_cr = window.endswith(b"\r")
        return first + _BARE_LF.sub(b"\r\n", window)


class LineCheck:
    """Scans the bytes of a message once, at intake, at memory speed.

    ``bare``: a CR or LF alone, ``bare_cr``: a CR alone. ``nul``: a NUL byte. ``long``: a line over ``line_max`` bytes.
    ``eight_bit``: a byte over 127, which requires 8BITMIME from the next server.
    """

    __slots__ = ("_line", "_line_ends", "_line_max", "bare", "bare_cr", "eight_bit", "long", "nul")

    def __init__(self, line_max: int) -> None:
        self._line_max = line_max
        self._line = 0  # bytes since the last LF
        self._line_ends = IncrementalNewlineDecoder(None, translate=False)
        self.bare = self.bare_cr = self.nul = self.long = self.eight_bit = False

    def feed(self, data: bytes) -> None:
        if not data:
            return
        if not data.isascii():
            self.eight_bit = True
        if b"\0" in data:
            self.nul = True
        for at in range(0, len(data), SLICE):  # the decoder makes copies: the allocator keeps small ones
            self._look_at_line_ends(data[at : at + SLICE].decode("latin-1"))
        first = data.find(b"\n")
        if first < 0:
            self._line += len(data)
            self.long = self.long or self._line > self._line_max
            return
        if self._line + first > self._line_max:
            self.long = True
        last = data.rfind(b"\n")
        if last - first > self._line_max and not self.long:
            self.long = self._has_long_line(data, first, last)
        self._line = len(data) - last - 1
        self.long = self.long or self._line > self._line_max

    def _has_long_line(self, data: bytes, first: int, last: int) -> bool:
        """True if a line between these two line ends is too long: from each, another must be within reach."""
        at, reach = first, self._line_max + 2
        while last - at > reach - 1:
            at = data.rfind(b"\n", at + 1, at + reach)
            if at < 0:
                return True
        return False

    def _look_at_line_ends(self, text: str, *, final: bool = False) -> None:
        """Find bare CR and LF. The decoder of text files notes which kinds of line end it has seen, in one pass."""
        self._line_ends.decode(text, final=final)
        if self._line_ends.newlines not in (None, "\r\n"):
            self.bare, self.bare_cr = True, "\r" in self._line_ends.newlines

    def finish(self) -> None:
        self._look_at_line_ends("", final=True)
