"""Which destination of a zone is served next: in turn, within the limits of the zone. Pure.

Destinations with mail are in turn queues. A destination that may not be served now leaves its turn queue and returns
by an event: a session opens, a worker ends, or a suspension is over. There is no polling, and a blocked
destination does not delay the others. Times are monotonic seconds.
"""

from collections import OrderedDict
from collections.abc import Callable

from zonemta_py.config.plain import rate_text
from zonemta_py.config.values import Rate
from zonemta_py.config.zones import DestinationTable, Zone
from zonemta_py.core.model import PoolKey
from zonemta_py.egress.admission import (
    SUSPENDED_MAX_S,
    Admission,
    Admitted,
    Destination,
    TurnQueue,
    Unlimited,
    WorkerSlot,
)
from zonemta_py.egress.paths import Binding, Limit
from zonemta_py.schedule.turns import TurnQueues

# ---- How much a zone may send now. Pure; times are monotonic seconds.

BURST_S = 0.1
LONG_S = 3600.0  # rates for periods from here on are kept over a restart
AHEAD_S = 10.0  # how long a message that has a session may wait for its token


class TokenBucket:
    """``rate.events`` per ``rate.per_s`` seconds, evenly, with bursts of BURST_S.

    Intervals start when a token was due and not when it was taken, so a late caller does not
    lower the rate.
    """

    def __init__(self, rate: Rate, now_s: float, due_in_s: float = 0.0) -> None:
        """``due_in_s``: when the first token is due, at most one interval from now."""
        self._next_s = now_s + due_in_s
        self.configure(rate, now_s)

    def configure(self, rate: Rate, now_s: float) -> None:
        """Use another rate from now on. A token that was taken stays taken."""
        self.is_long = rate.per_s >= LONG_S
        self._interval_s = rate.per_s / rate.events
        self._burst_s = max(BURST_S, self._interval_s)
        self._next_s = min(self._next_s, now_s + self._interval_s)

    @property
    def due_s(self) -> float:
        """When the next token is due."""
        return self._next_s

    @property
    def ahead_max(self) -> int:
        """How many messages may look for a session at the same time: their tokens are due within AHEAD_S."""
        return 1 + int(AHEAD_S / self._interval_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until a token is available; 0 when one is."""
        return max(0.0, self._next_s - now_s)

    def take(self, now_s: float) -> bool:
        """Take a token if one is available; returns whether it was."""
        if self._next_s > now_s:
            return False
        self.reserve(now_s)
        return True

    def reserve(self, now_s: float) -> float:
        """Take the next token; returns the seconds until it is due."""
        due_s = max(self._next_s, now_s - self._burst_s)
        self._next_s = due_s + self._interval_s
        return max(0.0, due_s - now_s)


# ---- scheduler

TURN = 10  # leases before a worker checks whether other destinations wait for its connection
KNOWN_S = 3600.0  # how long a destination that had a session is known to answer
KNOWN_MAX = 50_000
REMEMBERED_S = 60.0  # how exactly the time of the last session is remembered


class Scheduler:
    """The destinations of one zone, served in turn.

    ``table`` has the settings of each destination. ``on_room`` is called with a destination when a session
    with it makes room for more workers. ``admission`` decides about the limits that zones share.
    """

    def __init__(
        self,
        zone: Zone,
        now_s: float,
        on_room: Callable[[Destination], None],
        next_token_in_s: float = 0.0,
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission if admission is not None else Unlimited()
        self.active = 0  # workers, on all destinations
        self._full_since_s = now_s  # when the last of the connections was taken
        self.needs_token = 0  # of them: workers whose lease has no token yet
        self.bucket: TokenBucket | None = None
        self._on_room = on_room
        self._next_token_in_s = next_token_in_s  # of the run before
        self._destinations: dict[str, Destination] = {}
        self._turn_queues = TurnQueues()
        self._known: OrderedDict[str, float] = OrderedDict()  # when a session last opened, oldest first
        # How often no session was opened since: a probe that finds no mail must not shorten the next try.
        self._failures: OrderedDict[str, int] = OrderedDict()
        self.configure(zone, now_s)

    def configure(self, zone: Zone, now_s: float) -> None:
        """Apply the limits of ``zone``, at start or after a reload."""
        self.zone = zone
        if zone.rate is None:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = TokenBucket(zone.rate, now_s, self._next_token_in_s)
        else:
            self.bucket.configure(zone.rate, now_s)
        self.table = DestinationTable(zone)
        for destination in self._destinations.values():
            destination.connections_max = self._connections_max(destination.name)
        self._turn_queues.trying_max = max(1, zone.connections // 3)

    def _connections_max(self, name: str) -> int:
        return self.table.settings(name).connections_per_domain

    @property
    def sessions(self) -> int:
        """How many workers have a session."""
        return self.active - sum(self._turn_queues.starting)

    # ---- destinations with mail

    def ready(self, name: str, now_s: float, *, urgent: bool = False, answers: bool = False) -> None:
        """The destination has mail. ``urgent``: serve it next; ``answers``: its provider does.

        One that has failed at a provider that answers would keep the turn of others there, if it waited in FAILING.
        """
        destination = self._destinations.get(name)
        if destination is not None and destination.failing and not answers:
            self._turn_queues.add_failing(name, now_s)
        else:
            known = answers or self._is_known(name, destination, now_s)
            if not known and self._admission.looks_up(name):
                return
            self._turn_queues.add(name, now_s, known=known, urgent=urgent)

    def empty(self, name: str) -> None:
        """The destination has no more mail in the ready window."""
        self._turn_queues.remove(name)
        self._admission.empty(name)

    def _is_known(self, name: str, destination: Destination | None, now_s: float) -> bool:
        if destination is not None and destination.active > destination.starting:
            return True
        answered_s = self._known.get(name)
        return answered_s is not None and now_s - answered_s < KNOWN_S

    # ---- workers

    def rate_wait_s(self, now_s: float) -> float:
        """Seconds until the rate allows another message; 0 when it does."""
        return self.bucket.wait_s(now_s) if self.bucket is not None else 0.0

    def has_token_ahead(self) -> bool:
        """Whether one more message may look for a session: few enough do so without a token."""
        return self.bucket is None or self.needs_token < self.bucket.ahead_max

    def next(self, now_s: float) -> WorkerSlot | None:
        """A new worker for the destination that is served next, or None."""
        slot = self._next(now_s) if self._can_start(now_s) else None
        if slot is None:
            self._admission.no_worker_starts()
        return slot

    def _can_start(self, now_s: float) -> bool:
        """Whether the limits of the zone itself allow another worker now."""
        if self.active >= self.zone.connections:
            return False
        return self.bucket is None or (self.has_token_ahead() and self.bucket.wait_s(now_s) <= 0)

    def _next(self, now_s: float) -> WorkerSlot | None:
        for name, turn_queue, since_s in self._turn_queues.take(now_s):
            destination = self._destinations.get(name)
            if destination is not None and not destination.may_start(now_s):
                destination.block(now_s)
                self._admission.passed(name)
                continue
            admitted = self._admission.admit(name)
            if admitted is None:
                self._turn_queues.remove(name)  # its mail will have just come, when it may be sent
                continue
            if destination is None:
                destination = Destination(name, self._connections_max(name))
                self._destinations[name] = destination
            self._turn_queues.started(name, turn_queue, since_s)
            return self._start(destination, turn_queue, admitted, now_s)
        return None

    def _start(
        self, destination: Destination, turn_queue: TurnQueue, admitted: Admitted, now_s: float
    ) -> WorkerSlot:
        within_s = self._turn_queues.session_within_s(
            turn_queue, self._failures.get(destination.name, 0)
        )
        destination.active += 1
        destination.starting += 1
        destination.has_newcomer = True
        self.active += 1
        if self.active >= self.zone.connections:
            self._full_since_s = now_s
        self.needs_token += 1
        return WorkerSlot(destination, turn_queue, *admitted, session_within_s=within_s)

    def next_lease(self, slot: WorkerSlot, now_s: float) -> bool:
        """Whether the worker may take a lease now; it counts as unpaid until a session opens."""
        bucket = self.bucket
        if bucket and (bucket.wait_s(now_s) > 0 or not (slot.needs_token or self.has_token_ahead())):
            return False
        if not self._admission.may_continue(slot):
            return False
        if not slot.needs_token:
            slot.needs_token = True
            self.needs_token += 1
        return True

    def leased(self, slot: WorkerSlot, now_s: float, *, more: bool) -> bool:
        """The worker has taken its lease. Returns whether another should start, given ``more`` mail."""
        destination = slot.destination
        if more:
            self.ready(destination.name, now_s)
        else:
            self.empty(destination.name)
        if slot.first_lease:
            slot.first_lease = destination.has_newcomer = False
            return more
        return False

    def session_opened(self, slot: WorkerSlot, now_s: float) -> float:
        """There is a session for the lease; returns the seconds until its message may be sent.

        The token is taken here, so that leases without a session cost none.
        """
        destination = slot.destination
        destination.session_opened()
        if slot.needs_token:
            slot.needs_token = False
            self.needs_token -= 1
        wait_s = 0.0 if self.bucket is None else self.bucket.reserve(now_s)
        if not slot.established:
            slot.established = True
            slot.session_within_s = (
                0.0  # the next session of this worker keeps no one waiting for its place
            )
            self._failures.pop(destination.name, None)
            self._turn_queues.starting[slot.turn_queue] -= 1
            destination.starting -= 1
            self._remember(destination.name, now_s)
        elif self.bucket is None:
            return 0.0
        if destination.blocked or self.bucket is not None or self._turn_queues:
            destination.blocked = False
            self._on_room(destination)
        return wait_s

    def session_ended(self, slot: WorkerSlot) -> None:
        """The request that used the session has ended."""
        slot.destination.working -= 1

    def _remember(self, name: str, now_s: float) -> None:
        """The destination answers."""
        answered_s = self._known.get(name)
        if answered_s is not None and now_s - answered_s < REMEMBERED_S:
            return
        self._known[name] = now_s
        self._known.move_to_end(name)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        self._turn_queues.answered(name, now_s)

    def ended(self, slot: WorkerSlot, now_s: float, *, has_mail: bool) -> None:
        """A worker ended; the destination has another turn if it has mail."""
        destination = slot.destination
        self.active -= 1
        self.needs_token -= slot.needs_token
        self._admission.ended(slot)  # which gives turns to what can be served now
        if slot.yields:  # those that are woken by this have their turn before it
            self._turn_queues.put_last(destination.name)
        destination.active -= 1
        if slot.first_lease:
            destination.has_newcomer = False
        if slot.established:
            if not destination.failing:
                self._remember(destination.name, now_s)
        else:
            destination.starting -= 1
            self._turn_queues.starting[slot.turn_queue] -= 1
        if has_mail:
            self.ready(destination.name, now_s)
        elif destination.active == 0:
            self._destinations.pop(destination.name, None)  # nothing to remember

    def should_yield(self, slot: WorkerSlot, served: int) -> bool:
        """Whether a worker should end after ``served`` leases: no connection is free and others have mail.

        Other destinations are checked every TURN leases, those with urgent mail after each.
        """
        if served % TURN == 0 and self._admission.has_waiters(slot):
            slot.yields = True
            return True
        if self.active < self.zone.connections:
            return False
        return self._turn_queues.has_waiters(slot.destination.name, only_urgent=served % TURN != 0)

    # ---- unreachable destinations

    def failed(self, destination: Destination, delay_s: float, now_s: float, reason: str) -> float:
        """No session could be opened: suspend the destination. Returns when it may be probed."""
        destination.failed(now_s + min(delay_s, SUSPENDED_MAX_S), now_s, reason)
        self._known.pop(destination.name, None)
        self._failures[destination.name] = self._failures.pop(destination.name, 0) + 1
        if len(self._failures) > KNOWN_MAX:
            self._failures.popitem(last=False)
        self.empty(destination.name)
        return destination.down_until_s

    def resume(self, name: str | None) -> list[str]:
        """Allow a probe of one unreachable destination, or of all, now. Returns their names."""
        suspended = [d for d in self._destinations.values() if d.failing and name in (None, d.name)]
        for destination in suspended:
            destination.down_until_s = 0.0
        return [destination.name for destination in suspended]

    def binding(self, name: str, now_s: float, pool_key: PoolKey = "") -> Binding | None:
        """Which limit keeps the mail of a destination waiting; None: it has its turn next, or workers take it.

        ``pool_key``: see ``Admission.binding``.
        """
        destination = self._destinations.get(name)
        if destination is not None and destination.failing:
            own = destination.binding(now_s)
            if own is not None:
                return own
        turn_queues, since_s = self._turn_queues.of(name), self._turn_queues.since_s(name, now_s)
        if self.bucket is not None:
            wait_s = self.bucket.wait_s(now_s)
            if wait_s > 0 or not self.has_token_ahead():
                assert self.zone.rate is not None
                text = f"the rate is {rate_text(self.zone.rate)}"
                return Binding(Limit.RATE, since_s, now_s + wait_s, text)
        own = self._admission.binding(name, now_s, pool_key)
        if own is None and destination is not None:
            own = destination.binding(now_s)
        # One that has left its turn queue does not wait for a connection.
        if self.active >= self.zone.connections and (turn_queues or own is None):
            full = f"all {self.zone.connections} connections of the zone are in use"
            return Binding(Limit.CONNECTIONS, max(since_s, self._full_since_s), 0.0, full)
        if own is not None:
            return own
        if turn_queues and not any(map(self._turn_queues.has_room, turn_queues)):
            budget = f"{self._turn_queues.trying} connections are being opened to destinations that have not answered lately, of {self._turn_queues.trying_max} that these may have; others of them are before it"
            return Binding(Limit.UNANSWERED_BUDGET, since_s, 0.0, budget)
        return None

    def state(self, name: str) -> Destination | None:
        """The state of a destination, or None if the zone keeps none for it."""
        return self._destinations.get(name)
