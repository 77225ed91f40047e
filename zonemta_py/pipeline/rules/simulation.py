"""Simulates the delivery of a load through a zone: discrete events on a virtual clock. No Spark, no network.

The scheduler, the token bucket and the retry policies are the relay's own code; time, peers and the queue are
simulated. Not simulated: opening of sessions (its time is part of the recorded time of a transaction),
limits of peers that the relay learns, and the work of the relay itself beyond ``relay_limit_per_s``.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from zonemta_py.config.units import Rate
from zonemta_py.config.zones import Zone
from zonemta_py.pipeline.rules.prediction import (
    ATTEMPTS_MAX,
    PeerModel,
    Prediction,
    SimulatedMessage,
    quantiles,
    share_at,
)
from zonemta_py.schedule.destination import Destination
from zonemta_py.schedule.retry import RetryContext, make_policy, next_attempt
from zonemta_py.schedule.rings import WorkerSlot
from zonemta_py.schedule.scheduler import Scheduler
from zonemta_py.schedule.token_bucket import TokenBucket


@dataclass(slots=True)
class _WaitingMessage:
    message: SimulatedMessage
    recipients: int
    attempt: int


@dataclass(slots=True)
class _Answer:
    slot: WorkerSlot
    waiting: _WaitingMessage
    peer: PeerModel
    served: int  # transactions of its worker


def simulate(
    zone: Zone,
    messages: Iterable[SimulatedMessage],
    peers: Mapping[str, PeerModel],
    default_peer: PeerModel,
    relay_limit_per_s: float | None = None,
    seed: int = 0,
) -> Prediction:
    """Deliver ``messages``, which are in the order of their arrival, through ``zone``.

    ``default_peer``: for a destination that is not in ``peers``. ``relay_limit_per_s``: the maximum of
    transactions per second that the relay itself can do, or None.
    """
    return _Simulation(zone, peers, default_peer, relay_limit_per_s, seed).run(iter(messages))


class _Simulation:
    def __init__(
        self,
        zone: Zone,
        peers: Mapping[str, PeerModel],
        default_peer: PeerModel,
        relay_limit_per_s: float | None,
        seed: int,
    ) -> None:
        self._zone = zone
        self._peers = peers
        self._default_peer = default_peer
        self._random = Random(seed)
        self._scheduler = Scheduler(zone, 0.0, self._on_room)
        self._table = self._scheduler.table
        self._policies = [make_policy(each.retry) for each in self._table.zones]
        # The limit of the relay itself is a bucket too, shared by all workers.
        self._relay_bucket = (
            TokenBucket(Rate(max(1, round(relay_limit_per_s * 60)), 60.0), 0.0)
            if relay_limit_per_s
            else None
        )
        self._queues: dict[str, deque[_WaitingMessage]] = {}
        self._ready = 0  # messages that could be sent now
        self._starting: deque[tuple[WorkerSlot, int]] = deque()  # workers, and transactions of each
        self._events: list[tuple[float, int, _WaitingMessage | _Answer | None]] = []
        self._sequence = 0  # orders events of the same time
        self._now_s = 0.0
        self._timer_s: float | None = None
        self._backlog = 0
        self._limited_by: str | None = None
        self._ages: list[tuple[float, int]] = []
        self._result = Prediction()

    def run(self, messages: Iterator[SimulatedMessage]) -> Prediction:
        arriving = next(messages, None)
        began_s = arriving.arrival_s if arriving else 0.0
        while arriving or self._events:
            if arriving and (not self._events or arriving.arrival_s - began_s <= self._events[0][0]):
                self._advance_to(arriving.arrival_s - began_s)
                shifted = SimulatedMessage(self._now_s, arriving.destination, arriving.recipients)
                self._arrive(_WaitingMessage(shifted, arriving.recipients, 1))
                arriving = next(messages, None)
            else:
                due_s, _, event = heappop(self._events)
                self._advance_to(due_s)
                self._handle(event)
            while self._starting:
                self._serve(*self._starting.popleft())
        self._result.quantiles_s = quantiles(self._ages)
        return self._result

    def _advance_to(self, now_s: float) -> None:
        result = self._result
        if self._limited_by is not None and self._backlog:
            result.limited_s[self._limited_by] += now_s - self._now_s
        self._now_s = now_s
        minute = int(now_s // 60)
        while len(result.backlog) <= minute:
            result.backlog.append(self._backlog)
        result.backlog[minute] = max(result.backlog[minute], self._backlog)

    def _schedule(self, due_s: float, event: "_WaitingMessage | _Answer | None") -> None:
        self._sequence += 1
        heappush(self._events, (due_s, self._sequence, event))

    def _handle(self, event: "_WaitingMessage | _Answer | None") -> None:
        """A deferred message is due, a peer answers, or a token bucket has a token again (None)."""
        if isinstance(event, _WaitingMessage):
            self._arrive(event, again=True)
        elif isinstance(event, _Answer):
            self._answered(event)
        else:
            self._timer_s = None
            self._start_workers()

    def _arrive(self, waiting: _WaitingMessage, *, again: bool = False) -> None:
        name = self._table.name_of(waiting.message.destination)
        self._queues.setdefault(name, deque()).append(waiting)
        self._ready += 1
        if not again:
            self._backlog += waiting.recipients
            self._result.backlog_peak = max(self._result.backlog_peak, self._backlog)
        self._scheduler.ready(name, self._now_s)
        self._start_workers()

    def _wait_s(self) -> tuple[float, str | None]:
        """Time until a transaction may begin, and the limit that says so; None: the relay's own."""
        wait_s = self._scheduler.rate_wait_s(self._now_s)
        if self._relay_bucket and self._relay_bucket.wait_s(self._now_s) > wait_s:
            return self._relay_bucket.wait_s(self._now_s), None
        return wait_s, "rate"

    def _start_workers(self) -> None:
        """Start workers while limits allow it; follows ``ZoneWorkers.start_workers``."""
        self._limited_by = None
        while True:
            wait_s, limit = self._wait_s()
            if wait_s > 0:
                self._limited_by = limit
                if self._timer_s is None:
                    self._timer_s = self._now_s + wait_s
                    self._schedule(self._timer_s, None)
                return
            slot = self._scheduler.next(self._now_s)
            if slot is None:
                full = self._scheduler.active >= self._zone.connections
                if self._ready:
                    self._limited_by = "connections" if full else "connections_per_domain"
                return
            self._starting.append((slot, 0))

    def _on_room(self, destination: Destination) -> None:
        if self._queues[destination.name]:
            self._scheduler.ready(destination.name, self._now_s)
        self._start_workers()

    def _serve(self, slot: WorkerSlot, served: int) -> None:
        """Begin a transaction of a worker, or end the worker; follows ``ZoneWorkers._serve``."""
        scheduler, name = self._scheduler, slot.destination.name
        if self._wait_s()[0] > 0 or not scheduler.next_lease(slot, self._now_s):
            self._leave(slot, has_mail=True)
            return
        waiting = self._lease(name)
        if waiting is None:
            scheduler.empty(name)
            self._leave(slot, has_mail=False)
            return
        if scheduler.leased(slot, self._now_s, more=bool(self._queues[name])):
            self._start_workers()
        scheduler.session_opened(slot, self._now_s)
        if self._relay_bucket is not None:
            self._relay_bucket.take(self._now_s)
        peer = self._peers.get(waiting.message.destination, self._default_peer)
        time_s = peer.times_s[self._random.randrange(len(peer.times_s))]
        self._schedule(self._now_s + time_s, _Answer(slot, waiting, peer, served + 1))
        self._result.transactions += 1

    def _lease(self, name: str) -> "_WaitingMessage | None":
        """The next recipients of one message for a destination, up to the limit of a transaction."""
        queue, limit = self._queues.get(name), self._table.settings(name).recipients_per_transaction
        if not queue:
            return None
        waiting = queue[0]
        if waiting.recipients > limit:
            waiting.recipients -= limit
            return _WaitingMessage(waiting.message, limit, waiting.attempt)
        self._ready -= 1
        return queue.popleft()

    def _leave(self, slot: WorkerSlot, *, has_mail: bool) -> None:
        self._scheduler.ended(slot, self._now_s, has_mail=has_mail)
        self._start_workers()

    def _answered(self, answer: "_Answer") -> None:
        self._settle(answer.waiting, answer.peer)
        self._scheduler.session_ended(answer.slot)
        if self._scheduler.should_yield(answer.slot.destination, answer.served):
            self._leave(answer.slot, has_mail=True)
        else:
            self._starting.append((answer.slot, answer.served))

    def _settle(self, waiting: _WaitingMessage, peer: PeerModel) -> None:
        result, attempt = self._result, min(waiting.attempt, ATTEMPTS_MAX)
        deferred_share = share_at(peer.deferred, attempt)
        bounced_share = share_at(peer.bounced, attempt)
        deferred = bounced = 0
        for _ in range(waiting.recipients):
            drawn = self._random.random()
            deferred += drawn < deferred_share
            bounced += deferred_share <= drawn < deferred_share + bounced_share
        delivered = waiting.recipients - deferred - bounced
        result.delivered += delivered
        result.bounced += bounced
        if delivered:
            self._ages.append((self._now_s - waiting.message.arrival_s, delivered))
        self._backlog -= delivered + bounced
        if delivered + bounced:
            result.completed_s = self._now_s
        if deferred:
            result.deferrals += deferred
            self._defer(waiting, deferred)

    def _defer(self, waiting: _WaitingMessage, recipients: int) -> None:
        number = self._table.number(self._table.name_of(waiting.message.destination))
        retry, created_ms = self._table.zones[number].retry, int(waiting.message.arrival_s * 1000)
        context = RetryContext(
            created_ms=created_ms,
            attempts=waiting.attempt,
            now_ms=int(self._now_s * 1000),
            end_ms=created_ms + int(retry.give_up_after * 1000),
        )
        due_ms = next_attempt(
            self._policies[number], context, self._random.random() * retry.jitter / 100
        )
        if due_ms is None:
            self._result.expired += recipients
            self._result.completed_s = self._now_s
            self._backlog -= recipients
            return
        again = _WaitingMessage(waiting.message, recipients, waiting.attempt + 1)
        self._schedule(due_ms / 1000, again)
