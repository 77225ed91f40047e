"""What is traced in this process: the dialogues of a domain, a message or an IP address, as they happen.

As for the log, there is one tracer for a process: TRACER. While nothing is traced, a session asks it for one attribute.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address
from itertools import count

from zonemta_py.core import clock
from zonemta_py.core.codec import Struct
from zonemta_py.smtp.dialogue_lines import LINE_MAX, DialogueLines

LINES_PER_S = 2000  # of a process; further ones are counted
KEPT_LINES = 200  # of a session of a client whose domain is not known yet

_ADDRESS = re.compile(r"(?:MAIL FROM|RCPT TO):\s*<[^<>]*@([^<>]+)>", re.IGNORECASE)
_ID = re.compile(r"[0-9a-f]{24}\Z")


class TraceLine(Struct, frozen=True, array_like=True):
    """A line of a dialogue. ``targets``: what it was traced for. ``side``: in (a client's) or out (with a peer).

    ``speaker``: C (the client), S (the server), or empty for a note. ``session`` is unique in a relay.
    """

    time_ms: int
    targets: tuple[str, ...]
    side: str
    session: str
    peer: str
    speaker: str
    text: str
    message: str = ""


def normal_target(text: str) -> str:
    """A domain, queue id or IP address as it is compared. Raises ValueError for something else."""
    text = text.strip().lower()
    try:
        return str(ip_address(text))
    except ValueError:
        pass
    if _ID.match(text) or re.fullmatch(r"[^\s@<>]{1,253}\.[^\s@<>.]+", text):
        return text
    raise ValueError(f"'{text}' is no domain, queue id or IP address")


class Tracer:
    """What is traced, and where the lines go. ``generation`` changes with what is traced."""

    def __init__(self) -> None:
        self.targets: frozenset[str] = frozenset()
        self.is_active = False
        self.generation = 0
        self._emit: Callable[[TraceLine], None] | None = None
        self._numbers = count(1)
        self._second, self._lines = 0, 0

    def configure(self, targets: Iterable[str], emit: Callable[[TraceLine], None]) -> None:
        """Trace ``targets`` and nothing else, and give the lines to ``emit``."""
        self.targets, self._emit = frozenset(targets), emit
        self.is_active = bool(self.targets)
        self.generation += 1

    def emit(self, line: TraceLine) -> None:
        """Hand on a line, unless there were too many in this second."""
        second = line.time_ms // 1000
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._emit is not None and self._lines <= LINES_PER_S:
            self._emit(line)

    def label(self) -> str:
        """For a session."""
        return f"{os.getpid()}-{next(self._numbers)}"

    def outgoing(
        self, peer: str, names: Iterable[str], message: str, before: "SessionTrace | None"
    ) -> "SessionTrace | None":
        """The trace of a transaction, if one of ``names`` or ``message`` is traced. ``before``: of the same session."""
        targets = self.targets.intersection((*names, message))
        if not targets:
            return None
        label = before.label if before is not None else self.label()
        return SessionTrace(self, "out", label, peer, targets, message)

    def incoming(self, client_ip: str, lines: DialogueLines) -> "SessionTrace":
        """The trace of a client's session, which is kept back until its address or a domain in it is known to be traced."""
        targets = self.targets.intersection((client_ip,))
        return SessionTrace(self, "in", self.label(), client_ip, targets, "", lines)


class SessionTrace:
    """The trace of a session, or of one transaction in it."""

    def __init__(
        self, tracer: Tracer, side: str, label: str, peer: str, targets: Iterable[str],
        message: str, lines: DialogueLines | None = None,
    ) -> None:  # fmt: skip
        self.label = label
        self.generation = tracer.generation
        self._tracer = tracer
        self._side = side
        self._peer = peer
        self._targets = set(targets)
        self._message = message
        self._lines = lines or DialogueLines()
        self._kept: deque[tuple[int, str, str]] = deque(maxlen=KEPT_LINES)

    def client(self, data: bytes) -> None:
        """The client sends ``data``."""
        self._add("C", self._lines.client(data))

    def server(self, data: bytes) -> None:
        """The server sends ``data``."""
        self._add("S", self._lines.server(data))
        self._add("C", self._lines.client(b""))  # what waited for the reply to DATA

    def note(self, text: str) -> None:
        """Something that no side has sent."""
        self._add("", iter((text,)))

    def said(self, speaker: str, text: str) -> None:
        """Whole lines that another part of the relay has read or written."""
        self._add(speaker, iter(text.splitlines()))

    def _add(self, speaker: str, texts: Iterator[str]) -> None:
        for text in texts:
            if speaker == "C" and self._side == "in":
                self._targets |= self._tracer.targets.intersection(
                    domain.lower() for domain in _ADDRESS.findall(text)
                )
            self._kept.append((clock.now_ms(), speaker, text[:LINE_MAX]))
        targets = tuple(self._targets & self._tracer.targets)
        while targets and self._kept:
            time_ms, speaker, text = self._kept.popleft()
            self._tracer.emit(
                TraceLine(
                    time_ms, targets, self._side, self.label, self._peer, speaker, text, self._message
                )
            )


TRACER = Tracer()
