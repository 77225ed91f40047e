"""The sessions of a simulated relay with limited providers: new, in use, and idle for a while. Pure.

A session is one of a provider and a source address, whichever host it is with.
"""

from collections import deque

from zonemta_py.pipeline.rules.virtual_clock import VirtualClock
from zonemta_py.schedule.controller import Key
from zonemta_py.schedule.permits import ANY, Permit, Permits


class SimulatedSession:
    """An open session; ``left``: how many messages it takes yet."""

    __slots__ = ("expires_s", "left", "way")

    def __init__(self, way: Key, left: int) -> None:
        self.way = way
        self.left = left
        self.expires_s = 0.0


class SimulatedSessions:
    """Those without a worker; the permits know their number."""

    def __init__(self, permits: Permits, clock: VirtualClock) -> None:
        self._permits = permits
        self._clock = clock
        self._idle: dict[Key, deque[SimulatedSession]] = {}

    def take(self, way: Key) -> SimulatedSession | None:
        """An idle session, the newest one."""
        idle = self._idle.get(way)
        while idle and idle[0].expires_s <= self._clock.now_s:
            idle.popleft()
        session = idle.pop() if idle else None
        self._count(way)
        return session

    def keep(self, session: SimulatedSession, idle_s: float) -> None:
        """The worker has left it."""
        if session.left:
            session.expires_s = self._clock.now_s + idle_s
            self._idle.setdefault(session.way, deque()).append(session)
            self._count(session.way)

    def make_room(self, permit: Permit) -> None:
        """Close idle sessions beyond the limits of the provider: the worker of ``permit`` opens one."""
        for address in (permit.address, ANY):
            path = self._permits.path(permit.provider, address)
            most = path.most()
            while most is not None and path.sessions + self._number(permit.provider, address) > most:
                if not self._close_oldest(permit.provider, address):
                    break

    def _ways(self, provider: str, address: str) -> list[Key]:
        return [
            way for way, idle in self._idle.items() if idle and way[0] == provider and address in ("", way[1])
        ]  # fmt: skip

    def _number(self, provider: str, address: str) -> int:
        return sum(len(self._idle[way]) for way in self._ways(provider, address))

    def _close_oldest(self, provider: str, address: str) -> bool:
        ways = self._ways(provider, address)
        if not ways:
            return False
        way = min(ways, key=lambda each: self._idle[each][0].expires_s)
        self._idle[way].popleft()
        self._count(way)
        return True

    def _count(self, way: Key) -> None:
        idle = self._idle.get(way)
        self._permits.path(*way).idle = len(idle) if idle else 0
        if not idle:
            self._idle.pop(way, None)
