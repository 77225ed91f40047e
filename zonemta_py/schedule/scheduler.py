"""What a zone knows about one destination: its open sessions, and whether it answers. Pure.

A token bucket: how many messages a zone may send now. Pure; time is an argument in seconds.

Which destination of a zone is served next: in turn, within the zone's limits. Plain ``def``.

Destinations with mail stand in a ring. One that may not be served now leaves it and comes back by
an event: a worker that ends, a rest that is over. Nobody polls, and a blocked destination costs
the others nothing.
"""

from collections import OrderedDict

from zonemta_py.config.schema import Zone
from zonemta_py.config.units import Rate

CROWDED_S = 60.0  # how long a learned limit holds before one more session is tried


class Destination:
    """``active`` workers are on it, ``working`` of them hold a session; one may be ``starting``.

    Workers start one after the other, each when the one before has taken a lease: mail that comes
    in ones would wake twenty to fight for it.

    After a failure to connect it rests until ``down_until_s``; while it is down, one worker at a
    time probes it, and the first success ends that. A failure while others work is the peer's limit
    on sessions: it is learned, and held for CROWDED_S.
    """

    __slots__ = (
        "active",
        "down_until_s",
        "failing",
        "limit",
        "limit_until_s",
        "name",
        "reason",
        "starting",
        "working",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.active = 0
        self.working = 0
        self.starting = False
        self.limit = 0
        self.limit_until_s = 0.0
        self.failing = False
        self.down_until_s = 0.0
        self.reason = ""

    def may_start(self, now_s: float, most: int) -> bool:
        """Whether another worker may take its mail now."""
        if self.starting:
            return False
        if self.failing:
            return self.active == 0 and now_s >= self.down_until_s
        if now_s < self.limit_until_s:
            most = min(most, self.limit)
        return self.active < most

    def crowded(self, now_s: float) -> None:
        """The peer takes no session beside those that work."""
        self.limit = max(1, self.working)
        self.limit_until_s = now_s + CROWDED_S

    def failed(self, until_s: float, reason: str) -> None:
        """No session could be had; nobody tries before ``until_s``."""
        self.failing = True
        self.down_until_s = max(self.down_until_s, until_s)
        self.reason = reason

    def answered(self) -> bool:
        """A session was had. True when the destination had been failing."""
        was_failing, self.failing = self.failing, False
        self.reason = ""
        return was_failing


class TokenBucket:
    """Lets ``rate.events`` pass per ``rate.per_s``, evenly, with a burst of a tenth of a second's worth.

    It measures from the time a token was due and not from when it was taken, so a late caller
    does not lower the rate.
    """

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._interval_s = rate.per_s / rate.events
        self._burst_s = max(0.1, self._interval_s)
        self._next_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until a token is due; 0 when one is there."""
        return max(0.0, self._next_s - now_s)

    def take(self, now_s: float) -> bool:
        """Take a token if one is there."""
        if self._next_s > now_s:
            return False
        self._next_s = max(self._next_s, now_s - self._burst_s) + self._interval_s
        return True


REST_MAX_S = 300.0
TURN = 10  # leases before a worker looks whether others wait for its connection


class Scheduler:
    """The turn-taking of one zone."""

    def __init__(self, zone: Zone, now_s: float) -> None:
        self.active = 0  # workers, on all destinations
        self._destinations: dict[str, Destination] = {}
        self._ring: OrderedDict[str, None] = OrderedDict()
        self._pressing = ""  # a destination put first, while it is still in the ring
        self.configure(zone, now_s)

    def configure(self, zone: Zone, now_s: float) -> None:
        """Take over the limits of ``zone``, now or after a reload."""
        self.zone = zone
        self.bucket = TokenBucket(zone.rate, now_s) if zone.rate else None
        smarthost = zone.smarthost is not None
        self.per_destination = zone.connections if smarthost else zone.connections_per_domain

    def ready(self, name: str, *, first: bool = False) -> None:
        """The destination has mail; ``first``: some of it should not wait in line."""
        if name not in self._ring:
            self._ring[name] = None
        if first:
            self._ring.move_to_end(name, last=False)
            self._pressing = name

    def next(self, now_s: float) -> Destination | None:
        """The destination a new worker should serve, counted as started; None: none now."""
        if self.active >= self.zone.connections:
            return None
        for _ in range(len(self._ring)):
            name, _ = self._ring.popitem(last=False)
            if name == self._pressing:
                self._pressing = ""
            destination = self._destinations.get(name)
            if destination is None:
                destination = self._destinations[name] = Destination(name)
            if destination.may_start(now_s, self.per_destination):
                self._ring[name] = None
                destination.active += 1
                destination.starting = True
                self.active += 1
                return destination
        return None

    def leased(self, destination: Destination, *, more: bool) -> bool:
        """A worker has its lease; whether another should start, since there is ``more`` mail."""
        if more:
            self.ready(destination.name)
        else:
            self.empty(destination)
        began, destination.starting = destination.starting, False
        return began and more

    def empty(self, destination: Destination) -> None:
        """The destination has no more mail in the window."""
        self._ring.pop(destination.name, None)

    def ended(self, destination: Destination, *, has_mail: bool) -> None:
        """A worker left; the destination has its turn again if there is mail."""
        destination.active -= 1
        destination.starting = False
        self.active -= 1
        if has_mail:
            self.ready(destination.name)
        elif destination.active == 0:
            self._destinations.pop(destination.name, None)  # nothing here is worth remembering

    def should_yield(self, destination: Destination, served: int) -> bool:
        """Whether a worker should make room after ``served`` leases: all connections are taken and
        others have mail. It looks every TURN, and at once for mail that should not wait in line."""
        if self.active < self.zone.connections:
            return False
        if self._pressing in self._ring:
            return self._pressing != destination.name
        return served % TURN == 0 and any(name != destination.name for name in self._ring)

    def failed(self, destination: Destination, rest_s: float, now_s: float, reason: str) -> float:
        """No session with the destination could be had; returns when it may be probed again."""
        destination.failed(now_s + min(rest_s, REST_MAX_S), reason)
        return destination.down_until_s

    def end_rests(self, name: str | None) -> list[str]:
        """Let resting destinations be probed now: one, or all. Returns which."""
        resting = [d for d in self._destinations.values() if d.failing and name in (None, d.name)]
        for destination in resting:
            destination.down_until_s = 0.0
        return [destination.name for destination in resting]

    def state(self, name: str) -> Destination | None:
        """What is known about a destination, for an operator."""
        return self._destinations.get(name)
