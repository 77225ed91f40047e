"""Which destination of a zone is served next: in turn, within the limits of the zone. Pure.

Destinations with mail are in a ring. A destination that may not be served now leaves the ring and returns
by an event: a worker ends, or a suspension is over. There is no polling, and a blocked destination does
not delay the others. Times are monotonic seconds.
"""

from collections import OrderedDict

from zonemta_py.config.units import Rate
from zonemta_py.config.zones import Zone

LIMIT_S = 60.0  # how long a learned connection limit applies before one more session is tried
SUSPENDED_MAX_S = 300.0
TURN = 10  # leases before a worker checks whether other destinations wait for its connection


class Destination:
    """The workers of one destination and whether it answers.

    ``active`` workers serve it, ``working`` of them hold a session. Workers start one after the other,
    each when the one before (``starting``) has taken a lease: a single message wakes a single worker.

    After a failure to connect the destination is suspended until ``down_until_s``; then one worker at a
    time probes it until a session opens. A failure while other workers hold sessions reveals the peer's
    connection limit, which is applied for LIMIT_S.
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
        """Whether another worker may take its mail now. ``most``: workers that the zone allows."""
        if self.starting:
            return False
        if self.failing:
            return self.active == 0 and now_s >= self.down_until_s
        if now_s < self.limit_until_s:
            most = min(most, self.limit)
        return self.active < most

    def limit_reached(self, now_s: float) -> None:
        """The peer accepts no more sessions than those that work."""
        self.limit = max(1, self.working)
        self.limit_until_s = now_s + LIMIT_S

    def failed(self, until_s: float, reason: str) -> None:
        """No session could be opened: suspend until ``until_s``."""
        self.failing = True
        self.down_until_s = max(self.down_until_s, until_s)
        self.reason = reason

    def answered(self) -> bool:
        """A session was opened. Returns whether the destination had been failing."""
        was_failing, self.failing = self.failing, False
        self.reason = ""
        return was_failing


class TokenBucket:
    """How much a zone may send now: ``rate.events`` per ``rate.per_s`` seconds, evenly, with bursts of 0.1 s.

    Intervals start when a token was due and not when it was taken, so a late caller does not
    lower the rate.
    """

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._interval_s = rate.per_s / rate.events
        self._burst_s = max(0.1, self._interval_s)
        self._next_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until a token is available; 0 when one is."""
        return max(0.0, self._next_s - now_s)

    def take(self, now_s: float) -> bool:
        """Take a token if one is available; returns whether it was."""
        if self._next_s > now_s:
            return False
        self._next_s = max(self._next_s, now_s - self._burst_s) + self._interval_s
        return True


class Scheduler:
    """The destinations of one zone, served in turn."""

    def __init__(self, zone: Zone, now_s: float) -> None:
        self.active = 0  # workers, on all destinations
        self._destinations: dict[str, Destination] = {}
        self._ring: OrderedDict[str, None] = OrderedDict()
        self._urgent = ""  # the destination put first, while it is in the ring
        self.configure(zone, now_s)

    def configure(self, zone: Zone, now_s: float) -> None:
        """Apply the limits of ``zone``, at start or after a reload."""
        self.zone = zone
        self.bucket = TokenBucket(zone.rate, now_s) if zone.rate else None
        smarthost = zone.smarthost is not None
        self.per_destination = zone.connections if smarthost else zone.connections_per_domain

    def ready(self, name: str, *, urgent: bool = False) -> None:
        """The destination has mail. ``urgent``: serve it next."""
        if name not in self._ring:
            self._ring[name] = None
        if urgent:
            self._ring.move_to_end(name, last=False)
            self._urgent = name

    def next(self, now_s: float) -> Destination | None:
        """The destination that a new worker should serve, counted as started, or None."""
        if self.active >= self.zone.connections:
            return None
        for _ in range(len(self._ring)):
            name, _ = self._ring.popitem(last=False)
            if name == self._urgent:
                self._urgent = ""
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
        """A worker has taken its lease. Returns whether another should start, given ``more`` mail."""
        if more:
            self.ready(destination.name)
        else:
            self.empty(destination)
        began, destination.starting = destination.starting, False
        return began and more

    def empty(self, destination: Destination) -> None:
        """The destination has no more mail in the ready window."""
        self._ring.pop(destination.name, None)

    def ended(self, destination: Destination, *, has_mail: bool) -> None:
        """A worker ended; the destination has another turn if it has mail."""
        destination.active -= 1
        destination.starting = False
        self.active -= 1
        if has_mail:
            self.ready(destination.name)
        elif destination.active == 0:
            self._destinations.pop(destination.name, None)  # nothing to remember

    def should_yield(self, destination: Destination, served: int) -> bool:
        """Whether a worker should end after ``served`` leases: no connection is free and others have mail.

        Other destinations are checked every TURN leases, an urgent one after each.
        """
        if self.active < self.zone.connections:
            return False
        if self._urgent in self._ring:
            return self._urgent != destination.name
        return served % TURN == 0 and any(name != destination.name for name in self._ring)

    def failed(self, destination: Destination, delay_s: float, now_s: float, reason: str) -> float:
        """No session could be opened: suspend the destination. Returns when it may be probed."""
        destination.failed(now_s + min(delay_s, SUSPENDED_MAX_S), reason)
        return destination.down_until_s

    def resume(self, name: str | None) -> list[str]:
        """Allow a probe of one suspended destination, or of all, now. Returns their names."""
        suspended = [d for d in self._destinations.values() if d.failing and name in (None, d.name)]
        for destination in suspended:
            destination.down_until_s = 0.0
        return [destination.name for destination in suspended]

    def state(self, name: str) -> Destination | None:
        """The state of a destination, or None if the zone keeps none for it."""
        return self._destinations.get(name)
