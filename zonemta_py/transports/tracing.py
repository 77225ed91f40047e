"""Traces of dialogues of a domain, a message or an IP address, as they happen.

``Tracer`` has the targets of this process (as for the log there is one, TRACER), ``SessionTrace`` the lines of one session, ``Traces``
the watchers of a relay over all of its processes.

States of a trace of a client's session: kept back (its address or a domain is not known to be traced) ─▶ emitted.

Invariants:

- While nothing is traced, a session reads one attribute (``is_active``) and does no more.
- Lines have no bodies and no secrets (``smtp.dialogue``).
- A trace never delays mail: at most LINES_PER_S lines in a second leave a process, a slow watcher misses some and gets their number.
- A defect in a trace never ends a session.

Callers: ``intake.connection`` and ``transports.session`` write; ``zonemta trace`` watches by ``Traces.watch``.

Example: ``async for row in traces.watch("b.example")`` yields the lines of all sessions with the MX hosts of b.example.
"""

import asyncio
import logging
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from ipaddress import ip_address
from itertools import count
from typing import Any, Protocol

from zonemta_py.core import clock
from zonemta_py.core.codec import Struct, replace, to_plain
from zonemta_py.core.errors import LocalError
from zonemta_py.smtp.dialogue import DialogueLines, readable

log = logging.getLogger(__name__)


LINES_PER_S = 2000  # of a process; further ones are counted
KEPT_LINES = 60  # of a session of a client whose domain is not known yet
KEPT_LENGTH = 300  # of each


# With brackets, or without them, as a listener may allow.
_ADDRESS = re.compile(
    r"(?:MAIL FROM|RCPT TO):\s*(?:<[^<>]*@|[^<>\s]*@)([^<>\s@]+)\s*(?:[>\s]|\Z)", re.IGNORECASE
)
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

    def as_note(self, text: str) -> "TraceLine":
        """A note instead of the line."""
        return replace(self, speaker="", text=text)


Emit = Callable[[TraceLine], None]


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
    """The targets of traces, and the receivers of their lines: the relays of this process, or the queue's process.

    ``generation`` changes with what is traced, ``activation`` when tracing begins after a pause.
    """

    def __init__(self) -> None:
        self.targets: frozenset[str] = frozenset()
        self.is_active = False
        self.generation = self.activation = 0
        self._owners: dict[object, tuple[frozenset[str], Emit]] = {}
        self._numbers = count(1)
        self._second, self._lines = 0, 0

    def configure(self, owner: object, targets: Iterable[str], emit: Emit) -> None:
        """Trace ``targets`` for ``owner``, instead of its earlier ones, and give it the lines."""
        self._owners.pop(owner, None)
        if wanted := frozenset(targets):
            self._owners[owner] = wanted, emit
        self.targets = frozenset().union(*(each for each, _ in self._owners.values()))
        self.activation += bool(self.targets) and not self.is_active
        self.is_active = bool(self.targets)
        self.generation += 1

    def emit(self, line: TraceLine) -> None:
        """Hand on a line of this process, unless there were too many in this second: then say so."""
        second = clock.now_ms() // 1000
        if second != self._second:
            missed, self._second, self._lines = self._lines - LINES_PER_S, second, 0
            if missed > 0:
                self.hand_on(line.as_note(f"{missed} lines were left out"))
        self._lines += 1
        if self._lines <= LINES_PER_S:
            self.hand_on(line)

    def hand_on(self, line: TraceLine) -> None:
        """Hand on a line of another process."""
        for wanted, emit in list(self._owners.values()):
            if not wanted.isdisjoint(line.targets):
                emit(line)

    def label(self) -> str:
        """A label for a session, unique in the relay."""
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
        return SessionTrace(self, "in", self.label(), client_ip, (), "", lines)


class SessionTrace:
    """The trace of a session, or of one transaction in it."""

    def __init__(
        self, tracer: Tracer, side: str, label: str, peer: str, targets: Iterable[str],
        message: str, lines: DialogueLines | None = None,
    ) -> None:  # fmt: skip
        self.label = label
        self.activation = tracer.activation
        self._tracer = tracer
        self._side = side
        self._peer = peer
        self._targets = set(targets)
        self._message = message
        self._lines = lines or DialogueLines()
        self._kept: deque[tuple[int, str, str]] = deque(maxlen=KEPT_LINES)

    def client(self, data: bytes) -> None:
        """Trace ``data`` of the client."""
        self._add("C", self._lines.client(data))

    def server(self, data: bytes) -> None:
        """Trace ``data`` of the server, and the data of the client that waited for the reply to DATA."""
        self._add("S", self._lines.server(data))
        self._add("C", self._lines.client(b""))  # what waited for the reply to DATA

    def note(self, text: str) -> None:
        """Trace a remark, which no side has sent."""
        self._add("", iter((readable(text.encode("utf-8", "surrogateescape")),)))

    def said(self, speaker: str, text: str) -> None:
        """Trace whole lines that another part of the relay has read or written."""
        lines = text.encode("utf-8", "surrogateescape").split(b"\n")
        self._add(speaker, (readable(line.rstrip(b"\r")) for line in lines if line))

    def _add(self, speaker: str, texts: Iterator[str]) -> None:
        """Add a line. A defect here must not end a session."""
        try:
            self._keep(speaker, texts)
            self._emit_kept()
        except Exception:
            log.exception("a line of a trace is lost")

    def _keep(self, speaker: str, texts: Iterator[str]) -> None:
        for text in texts:
            if speaker == "C" and self._side == "in":
                self._targets |= self._tracer.targets.intersection(
                    domain.lower() for domain in _ADDRESS.findall(text)
                )
            if self._side == "in":
                self._targets |= self._tracer.targets.intersection((self._peer,))
            shown = text if self._targets else text[:KEPT_LENGTH]
            self._kept.append((clock.now_ms(), speaker, shown))
            if self._targets:
                self._emit_kept()

    def _emit_kept(self) -> None:
        targets = tuple(self._targets & self._tracer.targets)
        while targets and self._kept:
            time_ms, speaker, text = self._kept.popleft()
            self._tracer.emit(
                TraceLine(
                    time_ms=time_ms,
                    targets=targets,
                    side=self._side,
                    session=self.label,
                    peer=self._peer,
                    speaker=speaker,
                    text=text,
                    message=self._message,
                )
            )


TRACER = Tracer()


# ---- The watchers of a relay, over all of its processes.

WATCHERS_MAX = 5
BACKLOG_LINES = 10_000  # that a slow watcher has not taken; further ones are counted


class OtherProcesses(Protocol):
    """The other processes of one role."""

    def set_log_level(self, level: str) -> None:
        """Log messages of ``level`` and above."""

    def set_traces(self, targets: list[str]) -> None:
        """Trace ``targets``, and nothing else."""


class Traces:
    """The watchers of a relay. ``others`` returns its other processes."""

    def __init__(self, others: Callable[[], Iterable[OtherProcesses]]) -> None:
        self._others = others
        self._watchers: dict[asyncio.Queue[TraceLine | None], str] = {}
        self._missed: dict[asyncio.Queue[TraceLine | None], int] = {}

    async def watch(self, text: str) -> AsyncIterator[dict[str, Any]]:
        """The lines of the targets in ``text`` as they happen; ``{"missed": number}`` where a slow watcher missed some.

        Raises LocalError.
        """
        try:
            target = normal_target(text)
        except ValueError as exc:
            raise LocalError(str(exc)) from exc
        if len(self._watchers) >= WATCHERS_MAX:
            raise LocalError(f"{WATCHERS_MAX} traces are running already")
        lines: asyncio.Queue[TraceLine | None] = asyncio.Queue(BACKLOG_LINES + 1)
        self._watchers[lines], self._missed[lines] = target, 0
        self._configure()
        try:
            while (line := await lines.get()) is not None:
                missed, self._missed[lines] = self._missed[lines], 0
                if missed:
                    yield {"missed": missed}
                yield to_plain_line(line)
        finally:
            del self._watchers[lines], self._missed[lines]
            self._configure()

    def _configure(self) -> None:
        targets = sorted(set(self._watchers.values()))
        TRACER.configure(self, targets, self._publish)
        for processes in self._others():
            processes.set_traces(targets)

    def _publish(self, line: TraceLine) -> None:
        for lines, target in self._watchers.items():
            if target in line.targets:
                if lines.qsize() < BACKLOG_LINES:
                    lines.put_nowait(line)
                else:
                    self._missed[lines] += 1

    async def drain(self, grace_s: float) -> None:
        """End all: the relay stops."""
        for lines in self._watchers:
            if not lines.full():
                lines.put_nowait(None)


def to_plain_line(line: TraceLine) -> dict[str, Any]:
    """A line as a row of an operation."""
    fields = line.__struct_fields__
    return {name: to_plain(getattr(line, name)) for name in fields if name != "targets"}
