"""Open sessions between transactions: kept for reuse, up to a time, within the zone's connections."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from zonemta_py.core.codec import Struct
from zonemta_py.transports.pipelining import SmtpSession


class Endpoint(Struct, frozen=True):
    """Where a session leads and where it leaves from."""

    host: str
    ip: str
    port: int
    source: str | None


@dataclass(slots=True)
class _Idle:
    """One session at rest."""

    way: Endpoint
    destination: str
    session: SmtpSession
    until_s: float


class SessionPool:
    """The idle sessions of one zone, oldest first."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle: dict[tuple[str, int, str | None], deque[_Idle]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._at: Counter[str] = Counter()
        self.size = 0
        self.changed: Callable[[str], None] = lambda destination: None  # sessions of it ended here

    def at(self, destination: str) -> int:
        """How many sessions with ``destination`` rest."""
        return self._at[destination]

    def _count(self, destination: str, more: int) -> None:
        self.size += more
        self._at[destination] += more
        if not self._at[destination]:
            del self._at[destination]

    def take(self, way: Endpoint) -> SmtpSession | None:
        """The session to ``way`` that rested last, if one is still usable."""
        key = (way.ip, way.port, way.source)
        entries = self._idle.get(key)
        while entries:
            entry = entries.pop()
            self._count(entry.destination, -1)
            if not entries:
                del self._idle[key]
            if entry.session.usable:
                return entry.session
            entry.session.close()
        return None

    def holds(self, way: Endpoint) -> bool:
        """Whether ``take`` would find a usable session to ``way``."""
        return any(entry.session.usable for entry in self._idle.get((way.ip, way.port, way.source), ()))

    def put(self, way: Endpoint, destination: str, session: SmtpSession, idle_s: float) -> None:
        """Let ``session`` rest for ``idle_s`` at most."""
        entry = _Idle(way, destination, session, self._loop.time() + idle_s)
        self._idle.setdefault((way.ip, way.port, way.source), deque()).append(entry)
        self._count(destination, 1)
        if self._timer is None:
            self._timer = self._loop.call_later(idle_s, self._sweep)

    def make_room(self, destination: str, room: int, room_at_destination: int) -> None:
        """Close the longest idle so that ``room`` more sessions fit the limits."""
        entries = sorted((e for queue in self._idle.values() for e in queue), key=lambda e: e.until_s)
        here = [entry for entry in entries if entry.destination == destination]
        surplus = here[: max(0, len(here) - max(0, room_at_destination))]
        rest = [entry for entry in entries if entry not in surplus]
        surplus += rest[: max(0, len(rest) - max(0, room))]
        for entry in surplus:
            self._remove(entry)

    def _remove(self, entry: _Idle) -> None:
        key = (entry.way.ip, entry.way.port, entry.way.source)
        queue = self._idle[key]
        queue.remove(entry)
        if not queue:
            del self._idle[key]
        self._count(entry.destination, -1)
        entry.session.close()
        self.changed(entry.destination)

    def _sweep(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        entries = [entry for queue in self._idle.values() for entry in queue]
        for entry in entries:
            if entry.until_s <= now_s or not entry.session.usable:
                self._remove(entry)
        left = [entry.until_s for queue in self._idle.values() for entry in queue]
        if left:
            self._timer = self._loop.call_at(min(left), self._sweep)

    def close(self) -> None:
        """End every idle session."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in list(self._idle.values()):
            for entry in list(queue):
                self._remove(entry)
