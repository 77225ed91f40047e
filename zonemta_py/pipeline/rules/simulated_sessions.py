"""The sessions of a simulated relay with limited providers: new, in use, and idle for a while. Pure.

A session is one of a provider and a source address, whichever host it is with.
"""

from collections import deque

from zonemta_py.core.model import PathKey
from zonemta_py.pipeline.rules.virtual_clock import VirtualClock
from zonemta_py.schedule.permits import ANY, Permit, Permits


class SimulatedSession:
    """An open session; ``left``: how many messages it takes yet."""

    __slots__ = ("expires_s", "left", "path")

    def __init__(self, path: PathKey, left: int) -> None:
        self.path = path
        self.left = left
        self.expires_s = 0.0


class SimulatedSessions:
    """Those without a worker; the permits know their number."""

    def __init__(self, permits: Permits, clock: VirtualClock) -> None:
        self._permits = permits
        self._clock = clock
        self._idle: dict[PathKey, deque[SimulatedSession]] = {}

    def take(self, path: PathKey) -> SimulatedSession | None:
        """An idle session, the newest one."""
        idle = self._idle.get(path)
        while idle and idle[0].expires_s <= self._clock.now_s:
            idle.popleft()
        session = idle.pop() if idle else None
        self._count(path)
        return session

    def keep(self, session: SimulatedSession, idle_s: float) -> None:
        """The worker has left it."""
        if session.left:
            session.expires_s = self._clock.now_s + idle_s
            self._idle.setdefault(session.path, deque()).append(session)
            self._count(session.path)

    def make_room(self, permit: Permit) -> None:
        """Close idle sessions beyond the limits of the provider: the worker of ``permit`` opens one."""
        for address in (permit.address, ANY):
            path = self._permits.path(permit.provider, address)
            most = path.most()
            while most is not None and path.sessions + self._number(permit.provider, address) > most:
                if not self._close_oldest(permit.provider, address):
                    break

    def _paths(self, provider: str, address: str) -> list[PathKey]:
        return [
            path for path, idle in self._idle.items() if idle and path[0] == provider and address in ("", path[1])
        ]  # fmt: skip

    def _number(self, provider: str, address: str) -> int:
        return sum(len(self._idle[path]) for path in self._paths(provider, address))

    def _close_oldest(self, provider: str, address: str) -> bool:
        paths = self._paths(provider, address)
        if not paths:
            return False
        path = min(paths, key=lambda each: self._idle[each][0].expires_s)
        self._idle[path].popleft()
        self._count(path)
        return True

    def _count(self, path: PathKey) -> None:
        idle = self._idle.get(path)
        self._permits.path(*path).idle = len(idle) if idle else 0
        if not idle:
            self._idle.pop(path, None)
