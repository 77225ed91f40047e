"""What a zone would do with a load, by the relay's own rules, on a clock that jumps. No Spark, no network.

The scheduler, the token bucket and the retry policies are the relay's: only time, peers and the queue
are played. What is left out: sessions that are opened anew (their time is part of a transaction's, as
it was recorded), learned limits of peers, and the work of the relay itself beyond ``most_per_s``.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from zonemta_py.config.schema import Zone
from zonemta_py.config.units import Rate
from zonemta_py.schedule.retry import RetryContext, make_policy, next_attempt
from zonemta_py.schedule.scheduler import Destination, Scheduler, TokenBucket

SMARTHOST = ""  # the one destination of a zone that has one
ATTEMPTS_TOLD = 5  # attempts from this one on are alike
SHARES = (0.5, 0.95, 0.99)
LIMITS = ("rate", "connections", "connections_per_domain")


@dataclass(frozen=True, slots=True)
class Peer:
    """How a destination answers: quantiles of a transaction's time (s, evenly spaced), and by attempt
    (from the first) the shares of recipients that are deferred and bounced."""

    times_s: Sequence[float]
    deferred: Sequence[float] = (0.0,)
    bounced: Sequence[float] = (0.0,)


@dataclass(frozen=True, slots=True)
class Parcel:
    """Recipients of one message at one destination, accepted at the same time."""

    arrival_s: float
    destination: str
    recipients: int


@dataclass(slots=True)
class Prediction:
    """What became of the load; times from its first arrival. ``limited_s``: how long which limit held mail back."""

    delivered: int = 0
    bounced: int = 0
    expired: int = 0
    deferrals: int = 0
    transactions: int = 0
    completed_s: float = 0.0
    backlog_peak: int = 0
    quantiles_s: tuple[float, ...] = ()
    limited_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0.0))
    backlog: list[int] = field(default_factory=list)  # the most in each minute


@dataclass(slots=True)
class _Waiting:
    parcel: Parcel
    recipients: int
    attempt: int


@dataclass(slots=True)
class _Answer:
    destination: Destination
    waiting: _Waiting
    peer: Peer
    served: int


def simulate(
    zone: Zone,
    parcels: Iterable[Parcel],
    peers: Mapping[str, Peer],
    usual: Peer,
    most_per_s: float | None = None,
    seed: int = 0,
) -> Prediction:
    """Play ``parcels`` (in the order of their arrival) through ``zone``; ``usual`` for an unknown peer."""
    return _Play(zone, peers, usual, most_per_s, seed).run(iter(parcels))


class _Play:
    def __init__(
        self, zone: Zone, peers: Mapping[str, Peer], usual: Peer, most_per_s: float | None, seed: int
    ) -> None:
        self._zone = zone
        self._peers = peers
        self._usual = usual
        self._policy = make_policy(zone.retry)
        self._random = Random(seed)
        self._scheduler = Scheduler(zone, 0.0)
        # What the relay itself manages is a bucket too, shared by all workers.
        self._work = TokenBucket(Rate(max(1, round(most_per_s * 60)), 60.0), 0.0) if most_per_s else None
        self._queues: dict[str, deque[_Waiting]] = {}
        self._ready = 0  # parcels that could be sent now
        self._starting: deque[tuple[Destination, int]] = deque()  # workers, and what each has served
        self._events: list[tuple[float, int, _Waiting | _Answer | None]] = []
        self._number = 0
        self._now_s = 0.0
        self._timer_s: float | None = None
        self._backlog = 0
        self._held_by: str | None = None
        self._ages: list[tuple[float, int]] = []
        self._found = Prediction()

    def run(self, parcels: Iterator[Parcel]) -> Prediction:
        coming = next(parcels, None)
        began_s = coming.arrival_s if coming else 0.0
        while coming or self._events:
            if coming and (not self._events or coming.arrival_s - began_s <= self._events[0][0]):
                self._advance(coming.arrival_s - began_s)
                shifted = Parcel(self._now_s, coming.destination, coming.recipients)
                self._arrive(_Waiting(shifted, coming.recipients, 1))
                coming = next(parcels, None)
            else:
                due_s, _, event = heappop(self._events)
                self._advance(due_s)
                self._happen(event)
            while self._starting:
                self._serve(*self._starting.popleft())
        self._found.quantiles_s = _quantiles(self._ages)
        return self._found

    def _advance(self, now_s: float) -> None:
        found = self._found
        if self._held_by is not None and self._backlog:
            found.limited_s[self._held_by] += now_s - self._now_s
        self._now_s = now_s
        minute = int(now_s // 60)
        while len(found.backlog) <= minute:
            found.backlog.append(self._backlog)
        found.backlog[minute] = max(found.backlog[minute], self._backlog)

    def _at(self, due_s: float, event: "_Waiting | _Answer | None") -> None:
        self._number += 1
        heappush(self._events, (due_s, self._number, event))

    def _happen(self, event: "_Waiting | _Answer | None") -> None:
        """A deferred parcel is due, a peer answers, or a limit lets something pass (None)."""
        if isinstance(event, _Waiting):
            self._arrive(event, again=True)
        elif isinstance(event, _Answer):
            self._answered(event)
        else:
            self._timer_s = None
            self._pump()

    def _arrive(self, waiting: _Waiting, *, again: bool = False) -> None:
        name = SMARTHOST if self._zone.smarthost else waiting.parcel.destination
        self._queues.setdefault(name, deque()).append(waiting)
        self._ready += 1
        if not again:
            self._backlog += waiting.recipients
            self._found.backlog_peak = max(self._found.backlog_peak, self._backlog)
        self._scheduler.ready(name)
        self._pump()

    def _wait_s(self) -> tuple[float, str | None]:
        """How long no transaction may begin, and for whose sake; nobody's: the relay has no more hands."""
        bucket = self._scheduler.bucket
        wait_s = bucket.wait_s(self._now_s) if bucket else 0.0
        if self._work and self._work.wait_s(self._now_s) > wait_s:
            return self._work.wait_s(self._now_s), None
        return wait_s, "rate"

    def _pump(self) -> None:
        """As ``ZoneDelivery.pump``."""
        self._held_by = None
        while True:
            wait_s, why = self._wait_s()
            if wait_s > 0:
                self._held_by = why
                if self._timer_s is None:
                    self._timer_s = self._now_s + wait_s
                    self._at(self._timer_s, None)
                return
            destination = self._scheduler.next(self._now_s)
            if destination is None:
                full = self._scheduler.active >= self._zone.connections
                if self._ready:
                    self._held_by = "connections" if full else "connections_per_domain"
                return
            self._starting.append((destination, 0))

    def _serve(self, destination: Destination, served: int) -> None:
        """As ``ZoneDelivery._serve``, up to where it waits for the peer."""
        if self._wait_s()[0] > 0:
            self._leave(destination, has_mail=True)
            return
        waiting = self._lease(destination.name)
        if waiting is None:
            self._scheduler.empty(destination)
            self._leave(destination, has_mail=False)
            return
        if self._scheduler.leased(destination, more=bool(self._queues[destination.name])):
            self._pump()
        for bucket in (self._scheduler.bucket, self._work):
            if bucket is not None:
                bucket.take(self._now_s)
        peer = self._peers.get(waiting.parcel.destination, self._usual)
        time_s = peer.times_s[self._random.randrange(len(peer.times_s))]
        self._at(self._now_s + time_s, _Answer(destination, waiting, peer, served + 1))
        self._found.transactions += 1

    def _lease(self, name: str) -> "_Waiting | None":
        """The next recipients of one message for a destination, as many as one transaction takes."""
        queue, most = self._queues.get(name), self._zone.recipients_per_transaction
        if not queue:
            return None
        waiting = queue[0]
        if waiting.recipients > most:
            waiting.recipients -= most
            return _Waiting(waiting.parcel, most, waiting.attempt)
        self._ready -= 1
        return queue.popleft()

    def _leave(self, destination: Destination, *, has_mail: bool) -> None:
        self._scheduler.ended(destination, has_mail=has_mail)
        self._pump()

    def _answered(self, answer: "_Answer") -> None:
        self._settle(answer.waiting, answer.peer)
        if self._scheduler.should_yield(answer.destination, answer.served):
            self._leave(answer.destination, has_mail=True)
        else:
            self._starting.append((answer.destination, answer.served))

    def _settle(self, waiting: _Waiting, peer: Peer) -> None:
        found, told = self._found, min(waiting.attempt, ATTEMPTS_TOLD) - 1
        late = _share(peer.deferred, told)
        gone = _share(peer.bounced, told)
        deferred = bounced = 0
        for _ in range(waiting.recipients):
            drawn = self._random.random()
            deferred += drawn < late
            bounced += late <= drawn < late + gone
        delivered = waiting.recipients - deferred - bounced
        found.delivered += delivered
        found.bounced += bounced
        if delivered:
            self._ages.append((self._now_s - waiting.parcel.arrival_s, delivered))
        self._backlog -= delivered + bounced
        if delivered + bounced:
            found.completed_s = self._now_s
        if deferred:
            found.deferrals += deferred
            self._defer(waiting, deferred)

    def _defer(self, waiting: _Waiting, recipients: int) -> None:
        retry, created_ms = self._zone.retry, int(waiting.parcel.arrival_s * 1000)
        context = RetryContext(
            created_ms=created_ms,
            attempts=waiting.attempt,
            now_ms=int(self._now_s * 1000),
            end_ms=created_ms + int(retry.give_up_after * 1000),
        )
        due_ms = next_attempt(self._policy, context, self._random.random() * retry.jitter / 100)
        if due_ms is None:
            self._found.expired += recipients
            self._found.completed_s = self._now_s
            self._backlog -= recipients
            return
        again = _Waiting(waiting.parcel, recipients, waiting.attempt + 1)
        self._at(due_ms / 1000, again)


def _share(shares: Sequence[float], told: int) -> float:
    return shares[min(told, len(shares) - 1)] if shares else 0.0


def _quantiles(ages: list[tuple[float, int]]) -> tuple[float, ...]:
    """SHARES of the ages, each counted so many times."""
    total, seen = sum(count for _, count in ages), 0
    found: list[float] = []
    wanted = [share * total for share in SHARES]
    for age_s, count in sorted(ages):
        seen += count
        while len(found) < len(wanted) and seen >= wanted[len(found)]:
            found.append(age_s)
    return tuple(found)
