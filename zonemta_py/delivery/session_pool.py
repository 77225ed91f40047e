"""Idle sessions: kept between transactions for reuse, for a limited time, within the zone's connections.

States of a session in the pool::

    put ─▶ idle ─▶ taken: used by a request, which may put it again
             └──▶ closing ─▶ closed by the peer      at its time, beyond a limit, or when the pool is closed

Invariants:

- An idle session is in every group: by endpoint, destination and zone (``SessionPool``); one of a path also by path and provider
  (``SessionsByPath``).
- Adding, removing and finding the oldest or newest take constant time; all sessions are looked at once in EXPIRY_S at most.
- On a path (a request with an order), a session counts until its peer has closed it, or for QUIT_S: the peer counts it that long.
  A session of no path is closed at once.
- ``take`` returns the one that became idle last, ``trim`` closes those that are idle longest.
- ``on_closed`` is called when a session is being closed, and again when the peer has closed it, with the numbers that remain.

Callers: ``SmtpAgent`` puts and takes, ``SessionOpener`` calls ``trim`` before it connects. Each zone has a pool, the pools of a
process share ``together``; ``on_closed`` tells the process of the queue.

Example: with ``sessions_max`` of 2 at a provider and one request there, ``SessionsByPath.trim`` leaves one idle session.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from math import inf

from zonemta_py.core.model import PathKey
from zonemta_py.delivery.endpoints import Endpoint
from zonemta_py.egress.paths import EgressOrder
from zonemta_py.transports.session import SmtpSession

EXPIRY_S = 1.0  # sessions whose time is over are looked for no more often

OnClosed = Callable[[str, int, PathKey, int], None]

NO_PATH: PathKey = ("", "")  # of a session of no order
QUIT_S = 2.0  # that a peer has to close a session, before another one is opened in its place
_Key = tuple[str, int, str | None, str]


def path_of(order: EgressOrder | None) -> PathKey:
    """The path of a request with ``order``."""
    return NO_PATH if order is None else (order.provider, order.source or "")


def ignore_closed(destination: str, idle: int, path: PathKey, idle_there: int) -> None:
    """The ``on_closed`` of a pool in the process that counts its sessions."""


def _key(endpoint: Endpoint) -> _Key:
    """The properties that sessions must have in common: not the name of the host, because several lead to the same address."""
    return (endpoint.ip, endpoint.port, endpoint.source, endpoint.security)


@dataclass(slots=True, eq=False)
class _IdleSession:
    """``expires_s``: loop time at which it is closed. Those that became idle later have greater numbers."""

    number: int
    key: _Key
    destination: str
    session: SmtpSession
    expires_s: float
    path: PathKey
    pool: "SessionPool"


class _Group:
    """Idle sessions by something that they share, oldest first. Adding, removing and finding an end takes constant time."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, OrderedDict[int, _IdleSession]] = {}

    def add(self, name: Hashable, entry: _IdleSession) -> None:
        entries = self._entries.get(name)
        if entries is None:
            entries = self._entries[name] = OrderedDict()
        entries[entry.number] = entry

    def remove(self, name: Hashable, entry: _IdleSession) -> None:
        entries = self._entries[name]
        del entries[entry.number]
        if not entries:
            del self._entries[name]

    def size(self, name: Hashable) -> int:
        return len(self._entries.get(name, ()))

    def oldest(self, name: Hashable) -> _IdleSession:
        return next(iter(self._entries[name].values()))

    def newest(self, name: Hashable) -> _IdleSession | None:
        entries = self._entries.get(name)
        return next(reversed(entries.values())) if entries else None

    def all(self, name: Hashable) -> list[_IdleSession]:
        return list(self._entries.get(name, {}).values())


class SessionsByPath:
    """The sessions of all zones in a process, by provider and source address.

    One counts until its peer has closed it: the peer counts it that long. ``on_change`` is called with a path and the
    number of sessions on it that no request has.
    """

    def __init__(self, on_change: Callable[[PathKey, int], None] | None = None) -> None:
        self._on_change = on_change
        self._by_path = _Group()
        self._by_provider = _Group()
        self.numbers = count()  # of idle sessions: each greater than those before
        self._closing: dict[asyncio.Task[None], PathKey] = {}
        self._requests: dict[Hashable, int] = {}  # by path, and by provider

    def begin(self, path: PathKey) -> None:
        """A request begins, which has a session or opens one."""
        requests = self._requests
        for name in (path, path[0]):
            requests[name] = requests.get(name, 0) + 1

    def end(self, path: PathKey) -> None:
        """A request has ended; its session is idle or closed."""
        requests = self._requests
        for name in (path, path[0]):
            others = requests[name] - 1
            if others:
                requests[name] = others
            else:
                del requests[name]

    def add(self, entry: _IdleSession) -> None:
        """The session of a path is idle."""
        self._by_path.add(entry.path, entry)
        self._by_provider.add(entry.path[0], entry)
        self._changed(entry.path)

    def remove(self, entry: _IdleSession) -> None:
        """The session of a path is not idle any more."""
        self._by_path.remove(entry.path, entry)
        self._by_provider.remove(entry.path[0], entry)
        self._changed(entry.path)

    def _changed(self, path: PathKey) -> None:
        if self._on_change is not None:
            self._on_change(path, self.count(path) if self._closing else self._by_path.size(path))

    def count(self, path: PathKey) -> int:
        """The number of sessions without a request on ``path``; 0 for NO_PATH."""
        idle = self._by_path.size(path)
        return (
            idle + sum(1 for each in self._closing.values() if each == path) if self._closing else idle
        )

    def quit(self, entry: _IdleSession) -> None:
        """Close a session that is idle."""
        task = asyncio.get_running_loop().create_task(entry.session.quit(QUIT_S))
        self._closing[task] = entry.path
        self.remove(entry)
        task.add_done_callback(lambda task: self._closed(task, entry))

    def _closed(self, task: "asyncio.Task[None]", entry: _IdleSession) -> None:
        del self._closing[task]
        self._changed(entry.path)
        entry.pool.report_closed(entry)

    async def trim(self, path: PathKey, most: tuple[int, int]) -> None:
        """Close idle sessions until ``most`` remain on ``path``, and at its provider (-1: any number), with all requests.

        Returns when the peers have closed what is being closed: for several requests that do this at the same time,
        the limits hold whichever connects first.
        """
        name: Hashable
        for group, name, limit in (
            (self._by_path, path, most[0]), (self._by_provider, path[0], most[1]),
        ):  # fmt: skip
            while limit >= 0 and group.size(name) > max(0, limit - self._requests.get(name, 0)):
                entry = group.oldest(name)
                entry.pool.close_idle(entry)
        closing = [task for task, each in self._closing.items() if each[0] == path[0]]
        if closing:
            await asyncio.wait(closing)


class SessionPool:
    """The idle sessions of one zone.

    ``on_closed(destination, idle, path, idle_there)`` is called when the pool has closed a session with ``destination``;
    ``idle`` and ``idle_there`` are the numbers of those that remain. No call but ``close`` looks at all sessions, once a second at most.
    """

    def __init__(
        self, on_closed: OnClosed = ignore_closed, together: SessionsByPath | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._by_key = _Group()
        self._by_destination = _Group()
        self._whole = _Group()  # under None
        self.together = together if together is not None else SessionsByPath()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = inf  # loop time of the timer
        self._not_before_s = 0.0  # so that all are not looked at more often than every EXPIRY_S
        self._on_closed = on_closed

    def count(self, destination: str) -> int:
        """The number of idle sessions with ``destination``."""
        return self._by_destination.size(destination)

    def _remove(self, entry: _IdleSession) -> None:
        self._by_key.remove(entry.key, entry)
        self._by_destination.remove(entry.destination, entry)
        self._whole.remove(None, entry)

    def close_idle(self, entry: _IdleSession) -> None:
        self._remove(entry)
        if entry.path == NO_PATH:
            entry.session.close()
        else:
            self.together.quit(entry)
        self.report_closed(entry)

    def report_closed(self, entry: _IdleSession) -> None:
        """Call ``on_closed``: an idle session is being closed, or the peer has closed it."""
        idle, there = self.count(entry.destination), self.together.count(entry.path)
        self._on_closed(entry.destination, idle, entry.path, there)

    def take(self, endpoint: Endpoint) -> SmtpSession | None:
        """The most recently used usable session with ``endpoint``, removed from the pool, or None."""
        key = _key(endpoint)
        while (entry := self._by_key.newest(key)) is not None:
            self._remove(entry)
            if entry.path != NO_PATH:
                self.together.remove(entry)
            if entry.session.usable:
                return entry.session
            entry.session.close()
        return None

    def has_idle(self, endpoint: Endpoint) -> bool:
        """True if ``take`` would return a session with ``endpoint``."""
        return any(entry.session.usable for entry in self._by_key.all(_key(endpoint)))

    def put(
        self,
        endpoint: Endpoint,
        destination: str,
        session: SmtpSession,
        idle_s: float,
        path: PathKey = NO_PATH,
    ) -> None:
        """Keep ``session`` for at most ``idle_s``, and EXPIRY_S when others end at the same time."""
        expires_s = self._loop.time() + idle_s
        entry = _IdleSession(
            number=next(self.together.numbers), key=_key(endpoint), destination=destination, session=session,
            expires_s=expires_s, path=path, pool=self,
        )  # fmt: skip
        if path != NO_PATH:
            self.together.add(entry)
        self._by_key.add(entry.key, entry)
        self._by_destination.add(destination, entry)
        self._whole.add(None, entry)
        if expires_s < self._due_s:
            self._wake_at(expires_s)

    def _wake_at(self, expires_s: float) -> None:
        """Have the timer end in time for a session that ends at ``expires_s``: sessions have different limits."""
        due_s = max(expires_s, self._not_before_s)
        if due_s < self._due_s:
            if self._timer is not None:
                self._timer.cancel()
            self._due_s = due_s
            self._timer = self._loop.call_at(due_s, self._close_expired)

    def trim(self, destination: str, zone_limit: int, destination_limit: int) -> None:
        """Close the sessions that have been idle longest, beyond ``destination_limit``, then ``zone_limit``.

        A negative limit counts as 0.
        """
        while self._by_destination.size(destination) > max(0, destination_limit):
            self.close_idle(self._by_destination.oldest(destination))
        while self._whole.size(None) > max(0, zone_limit):
            self.close_idle(self._whole.oldest(None))

    def _close_expired(self) -> None:
        self._timer, self._due_s = None, inf
        now_s = self._loop.time()
        self._not_before_s = now_s + EXPIRY_S
        for entry in self._whole.all(None):
            if entry.expires_s <= now_s or not entry.session.usable:
                self.close_idle(entry)
        remaining = [entry.expires_s for entry in self._whole.all(None)]
        if remaining:
            self._wake_at(min(remaining))

    def close(self) -> None:
        """Close every idle session."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._due_s = None, inf
        for entry in self._whole.all(None):
            self.close_idle(entry)
