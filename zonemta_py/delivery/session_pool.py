"""Idle sessions: kept between transactions for reuse, for a limited time, within the zone's connections."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from zonemta_py.delivery.endpoints import Endpoint
from zonemta_py.transports.pipelining import SmtpSession

OnClosed = Callable[[str, int], None]
_Key = tuple[str, int, str | None, str]


def ignore_closed(destination: str, idle: int) -> None:
    """The ``on_closed`` of a pool in the process that counts its sessions."""


def _key(endpoint: Endpoint) -> _Key:
    """What sessions must have in common: not the name of the host, because several lead to the same address."""
    return (endpoint.ip, endpoint.port, endpoint.source, endpoint.security)


@dataclass(slots=True)
class _IdleSession:
    """``expires_s``: loop time at which it is closed."""

    endpoint: Endpoint
    destination: str
    session: SmtpSession
    expires_s: float


class SessionPool:
    """The idle sessions of one zone.

    ``on_closed(destination, idle)`` is called when the pool has closed a session with ``destination``;
    ``idle`` is the number of those that remain.
    """

    def __init__(self, on_closed: OnClosed = ignore_closed) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle: dict[_Key, deque[_IdleSession]] = {}  # oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._by_destination: Counter[str] = Counter()
        self._on_closed = on_closed

    def count(self, destination: str) -> int:
        """The number of idle sessions with ``destination``."""
        return self._by_destination[destination]

    def _add_to_count(self, destination: str, change: int) -> None:
        self._by_destination[destination] += change
        if not self._by_destination[destination]:
            del self._by_destination[destination]

    def take(self, endpoint: Endpoint) -> SmtpSession | None:
        """The most recently used usable session with ``endpoint``, removed from the pool, or None."""
        key = _key(endpoint)
        entries = self._idle.get(key)
        while entries:
            entry = entries.pop()
            self._add_to_count(entry.destination, -1)
            if not entries:
                del self._idle[key]
            if entry.session.usable:
                return entry.session
            entry.session.close()
        return None

    def has_idle(self, endpoint: Endpoint) -> bool:
        """Whether ``take`` would return a session with ``endpoint``."""
        key = _key(endpoint)
        return any(entry.session.usable for entry in self._idle.get(key, ()))

    def put(self, endpoint: Endpoint, destination: str, session: SmtpSession, idle_s: float) -> None:
        """Keep ``session`` for at most ``idle_s``."""
        entry = _IdleSession(endpoint, destination, session, self._loop.time() + idle_s)
        key = _key(endpoint)
        self._idle.setdefault(key, deque()).append(entry)
        self._add_to_count(destination, 1)
        if self._timer is None:
            self._timer = self._loop.call_later(idle_s, self._close_expired)

    def trim(self, destination: str, zone_limit: int, destination_limit: int) -> None:
        """Close the sessions that have been idle longest, beyond ``destination_limit``, then ``zone_limit``.

        A negative limit counts as 0.
        """
        entries = sorted((e for queue in self._idle.values() for e in queue), key=lambda e: e.expires_s)
        here = [entry for entry in entries if entry.destination == destination]
        surplus = here[: max(0, len(here) - max(0, destination_limit))]
        remaining = [entry for entry in entries if entry not in surplus]
        surplus += remaining[: max(0, len(remaining) - max(0, zone_limit))]
        for entry in surplus:
            self._close(entry)

    def _close(self, entry: _IdleSession) -> None:
        key = _key(entry.endpoint)
        queue = self._idle[key]
        queue.remove(entry)
        if not queue:
            del self._idle[key]
        self._add_to_count(entry.destination, -1)
        entry.session.close()
        self._on_closed(entry.destination, self._by_destination[entry.destination])

    def _close_expired(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        entries = [entry for queue in self._idle.values() for entry in queue]
        for entry in entries:
            if entry.expires_s <= now_s or not entry.session.usable:
                self._close(entry)
        remaining = [entry.expires_s for queue in self._idle.values() for entry in queue]
        if remaining:
            self._timer = self._loop.call_at(min(remaining), self._close_expired)

    def close(self) -> None:
        """Close every idle session."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in list(self._idle.values()):
            for entry in list(queue):
                self._close(entry)
