"""The turns of the destinations of a zone, within the limits of the zone. Pure; times are monotonic seconds.

Destinations with mail are in turn queues (``TurnQueues``). ``next`` takes the first that may have a worker: its ``Destination`` has
room for one (``may_start``), and its ``Admission`` grants it what the limits of providers and addresses allow. States of one:

- in a turn queue: it has mail, and waits for its turn;
- served: workers have it, and it is in the last queue again while it has more mail;
- blocked: it may have no further worker now; it has left its turn queue, and returns when a session opens or a worker ends;
- suspended (``failing``): no session could be opened; it returns when its time is over, and one worker probes it;
- waiting for a limit, in ``egress``: it returns when its ``Admission`` calls ``ready``.

Invariants: nothing is polled, and a blocked destination does not delay the others. Calls of a worker: ``next``, then for each message
``next_lease``, ``leased``, ``session_opened``, ``session_ended``, ``should_yield``, and ``ended``; ``active`` counts those between the
first and the last. A token of the zone's rate (``TokenBucket``) is taken with the session, so leases without one cost none.

Connections without a session have a budget (decisions 65 and 130): a third of the zone's connections for destinations that have not
answered lately, so that mail for dead ones leaves room for the others. A quarter of it is kept for those whose mail has just come,
the newest first, a quarter for those that wait longest; those that have failed have a quarter at most. Unless three quarters are
free, a first try has ALL_TRIED_S to open a session, and less the more of them wait: a place is free again soon.

Callers: ``ZoneWorkers`` of a relay and ``pipeline.simulate``, with their clocks. Example::

    scheduler.ready("a.example", now_s)
    slot = scheduler.next(now_s)  # a worker for a.example, or None
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from zonemta_py.config.plain import rate_text
from zonemta_py.config.values import Rate
from zonemta_py.config.zones import DestinationTable, Zone
from zonemta_py.core.model import USUAL_KEY, PoolKey
from zonemta_py.egress.admission import (
    SUSPENDED_MAX_S,
    Admission,
    Admitted,
    Destination,
    TurnQueue,
    Unlimited,
    WorkerSlot,
)
from zonemta_py.egress.limits import FREE
from zonemta_py.egress.paths import Binding, Limit

# ---- the rate of a zone

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


# ---- the destinations with mail

FRESH_S = 30.0  # how long mail for a destination that has not answered lately has just come
ALL_TRIED_S = 5.0  # for a first try, and for those of all that wait, if that is possible
TRY_MIN_S = 1.25  # for a session: a lost SYN is sent again after 1 s
PROBE_S = 10.0  # for the second try of one that had less: longer than the usual delays of greetings

# Attributes of an enumeration are slow to read, and each message reads several.
URGENT, FRESH, KNOWN, NEW, FAILING = TurnQueue
# The order in which the turn queues are asked, by the turn queue that had the last turn.
TURN_ORDERS = {
    KNOWN: (URGENT, FRESH, NEW, FAILING, KNOWN),
    NEW: (URGENT, FRESH, FAILING, KNOWN, NEW),
    FAILING: (URGENT, FRESH, KNOWN, NEW, FAILING),
}


class TurnQueues:
    """The destinations of a zone with mail, and how many workers without a session have started from each turn queue.

    ``trying_max``: how many such workers there may be for destinations that have not answered lately.
    """

    def __init__(self) -> None:
        self.trying_max = 1
        self.starting = [0] * len(TurnQueue)
        # The values are used in FRESH only: when the mail came.
        self._waiting: tuple[OrderedDict[str, float], ...] = tuple(OrderedDict() for _ in TurnQueue)
        self._order = TURN_ORDERS[FAILING]

    def __bool__(self) -> bool:
        return any(self._waiting)

    def add(self, name: str, now_s: float, *, known: bool, urgent: bool) -> None:
        """The destination has mail; ``known``: it has answered lately, or its provider has. ``urgent``: it is served next."""
        waiting = self._waiting
        if known:
            waiting[KNOWN].setdefault(name, now_s)
            if urgent:
                waiting[URGENT].setdefault(name, now_s)
        else:
            if urgent or name not in waiting[NEW]:
                waiting[FRESH][name] = now_s
                waiting[FRESH].move_to_end(name)
            waiting[NEW].setdefault(name, now_s)

    def add_failing(self, name: str, now_s: float) -> None:
        """The destination has mail, and could not be reached when it was tried last."""
        self._waiting[FAILING].setdefault(name, now_s)

    def answered(self, name: str, now_s: float) -> None:
        """The destination, if it waits as one that had not answered lately, has."""
        self._waiting[FRESH].pop(name, None)
        if self._waiting[NEW].pop(name, None) is not None:
            self._waiting[KNOWN].setdefault(name, now_s)

    def remove(self, name: str) -> None:
        """The destination is to have no turn."""
        for turn_queue in self._waiting:
            if turn_queue:
                turn_queue.pop(name, None)

    def put_last(self, name: str) -> None:
        """The destination, if it has answered lately, has its turn after all others that wait now."""
        for turn_queue in (self._waiting[KNOWN], self._waiting[URGENT]):
            if name in turn_queue:
                turn_queue.move_to_end(name)

    def take(self, now_s: float) -> Iterator[tuple[str, TurnQueue, float]]:
        """The destinations that may have a worker, in turn, and for ``started`` the turn queue and the time; each has left the turn queue."""
        for turn_queue in self._order:
            waiting = self._waiting[turn_queue]
            while waiting and self.has_room(turn_queue):
                name, since_s = waiting.popitem(last=turn_queue is FRESH)
                if turn_queue is FRESH and now_s - since_s > FRESH_S:
                    waiting.clear()  # the others are older
                    break
                yield name, turn_queue, since_s

    def started(self, name: str, turn_queue: TurnQueue, since_s: float) -> None:
        """A worker has started for what ``take`` gave; there may be more mail."""
        self.starting[turn_queue] += 1
        if turn_queue in TURN_ORDERS:
            self._order = TURN_ORDERS[turn_queue]
            self._waiting[turn_queue][name] = since_s

    def has_room(self, turn_queue: TurnQueue) -> bool:
        """True if a worker may start for a destination of ``turn_queue``."""
        if turn_queue is KNOWN or turn_queue is URGENT:
            return True
        fresh, failing = self.starting[FRESH], self.starting[FAILING]
        if self.trying >= self.trying_max:
            return False
        share = max(1, self.trying_max // 4)
        most = max(1, self.trying_max - share)
        if turn_queue is FRESH:
            return fresh < most
        return self.trying - fresh < most and (turn_queue is NEW or failing < share)

    @property
    def trying(self) -> int:
        """How many workers look for a session with destinations that have not answered lately."""
        return self.starting[FRESH] + self.starting[NEW] + self.starting[FAILING]

    def session_within_s(self, turn_queue: TurnQueue, failures: int) -> float:
        """In what time a worker that has started from ``turn_queue`` is to have a session, so that others get its place; 0: as long as the zone says.

        ``failures``: of the destination since it last answered. After two it has all the time that it needs, so a host that greets late gets its mail.
        """
        if turn_queue is KNOWN or turn_queue is URGENT or failures > 1:
            return 0.0
        waiting = len(self._waiting[NEW]) + len(self._waiting[FAILING]) - 1  # without its own
        if self.trying + waiting <= max(1, self.trying_max // 4):
            return 0.0
        if failures:
            return PROBE_S
        return max(TRY_MIN_S, ALL_TRIED_S * min(1.0, self.trying_max / max(1, waiting)))

    def has_waiters(self, name: str, *, only_urgent: bool) -> bool:
        """True if a destination other than ``name`` could have a worker."""
        for turn_queue in (URGENT,) if only_urgent else self._order:
            if any(other != name for other in self._waiting[turn_queue]) and self.has_room(turn_queue):
                return True
        return False

    def of(self, name: str) -> list[TurnQueue]:
        """The turn queues in which the destination waits."""
        return [turn_queue for turn_queue in TurnQueue if name in self._waiting[turn_queue]]

    def since_s(self, name: str, now_s: float) -> float:
        """Since when it waits; now if it does not."""
        return min((each[name] for each in self._waiting if name in each), default=now_s)


# ---- the workers

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
        self._admission.no_mail(name)

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
        """True if one more message may look for a session: few enough do so without a token."""
        return self.bucket is None or self.needs_token < self.bucket.ahead_max

    def next(self, now_s: float) -> WorkerSlot | None:
        """A new worker for the destination that is served next, or None."""
        slot = self._next(now_s) if self._can_start(now_s) else None
        if slot is None:
            self._admission.no_worker_starts()
        return slot

    def _can_start(self, now_s: float) -> bool:
        """True if the limits of the zone itself allow another worker now."""
        if self.active >= self.zone.connections:
            return False
        return self.bucket is None or (self.has_token_ahead() and self.bucket.wait_s(now_s) <= 0)

    def _next(self, now_s: float) -> WorkerSlot | None:
        for name, turn_queue, since_s in self._turn_queues.take(now_s):
            destination = self._destinations.get(name)
            if destination is not None and not destination.may_start(now_s):
                destination.block(now_s)
                self._admission.skipped(name)
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
        """True if the worker may take a lease now; it counts as unpaid until a session opens."""
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

    def ended(self, slot: WorkerSlot, now_s: float, *, has_mail: bool) -> bool:
        """A worker ended; the destination has another turn if it has mail.

        Returns whether the next worker starts later, after those of other zones, which the permit that is free now has woken.
        """
        destination, has_woken = slot.destination, slot.permit is not FREE
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
        return has_woken

    def should_yield(self, slot: WorkerSlot, served: int) -> bool:
        """True if a worker should end after ``served`` leases: no connection is free and others have mail.

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

    def binding(self, name: str, now_s: float, pool_key: PoolKey = USUAL_KEY) -> Binding | None:
        """The limit that keeps the mail of a destination waiting; None: it has its turn next, or workers take it.

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
