"""One zone of a simulated relay: its workers, its mail, and what becomes of it. Pure.

The scheduler, the token bucket and the retry policies are the relay's own code; peers and the queue are simulated.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from zonemta_py.config.values import Rate
from zonemta_py.config.zones import Zone
from zonemta_py.core.model import PathKey
from zonemta_py.delivery.zone_egress import EgressRoute
from zonemta_py.egress.admission import Destination, WorkerSlot
from zonemta_py.egress.controller import OF_SENDER
from zonemta_py.egress.limits import FREE
from zonemta_py.egress.paths import Refusal
from zonemta_py.egress.rules import USUAL, Handling, ProviderReply
from zonemta_py.pipeline.simulate.egress import (
    RecordedDomain,
    SendingSettings,
    SimulatedAdmission,
    SimulatedEgress,
    is_limited,
)
from zonemta_py.pipeline.simulate.mail import Earlier, SimulatedMail, VirtualClock, WaitingMessage
from zonemta_py.pipeline.simulate.prediction import (
    PathLimits,
    PathUse,
    Prediction,
    SimulatedMessage,
    quantiles,
)
from zonemta_py.pipeline.simulate.recorded import BOUNCED, RecordedReply
from zonemta_py.pipeline.simulate.world import PeerModels, SentTransaction, SimulatedWorld
from zonemta_py.schedule.retry import RetryContext, ladder, make_policy, next_attempt
from zonemta_py.schedule.scheduler import Scheduler, TokenBucket


@dataclass(slots=True)
class _Worker:
    slot: WorkerSlot
    served: int = 0  # transactions


class SimulatedZone:
    """``arrive`` gives it mail; the clock does the rest."""

    def __init__(self, name: str, zone: Zone, world: SimulatedWorld) -> None:
        self._zone = zone
        self._world = world
        self._clock = world.clock
        self._mail = SimulatedMail(zone, world.egress.pools)
        self._admission = SimulatedAdmission(name, zone, world.egress, self._wake, self._mail)
        self._scheduler = Scheduler(zone, 0.0, self._on_room, admission=self._admission)
        self._table = self._scheduler.table
        self._policies = [make_policy(each.retry) for each in self._table.zones]
        self._timer_s: float | None = None
        self._backlog = 0
        self._limited_by: str | None = None
        self._touched_s = 0.0
        self._ages: list[tuple[float, int]] = []
        self._result = Prediction()

    def result(self) -> Prediction:
        """The prediction, when nothing happens any more."""
        self._result.quantiles_s = quantiles(self._ages)
        return self._result

    # ---- mail

    def arrive(self, number: int, message: SimulatedMessage) -> None:
        """Mail arrives now."""
        self._touch()
        self._backlog += message.recipients
        self._result.backlog_peak = max(self._result.backlog_peak, self._backlog)
        self._add(WaitingMessage(number, message, message.recipients, 1, self._clock.now_s))

    def _again(self, waiting: WaitingMessage) -> None:
        self._touch()
        waiting.ready_s = self._clock.now_s
        self._add(waiting)

    def _add(self, waiting: WaitingMessage) -> None:
        name = self._table.name_of(waiting.message.destination)
        self._mail.add(name, waiting)
        self._scheduler.ready(name, self._clock.now_s)
        self._start_workers()

    def _touch(self) -> None:
        """Count the time since the last event of the zone."""
        now_s, result = self._clock.now_s, self._result
        if self._limited_by is not None and self._backlog:
            result.limited_s[self._limited_by] += now_s - self._touched_s
        self._touched_s = now_s
        minute = int(now_s // 60)
        while len(result.backlog) <= minute:
            result.backlog.append(self._backlog)
        result.backlog[minute] = max(result.backlog[minute], self._backlog)

    # ---- workers

    def _wait_s(self) -> tuple[float, str | None]:
        """Time until a transaction may begin, and the limit that says so; None: the relay's own."""
        now_s, bucket = self._clock.now_s, self._world.relay_bucket
        wait_s = self._scheduler.rate_wait_s(now_s)
        if bucket is not None and bucket.wait_s(now_s) > wait_s:
            return bucket.wait_s(now_s), None
        return wait_s, "rate"

    def _start_workers(self) -> None:
        """Start workers while limits allow it; follows ``ZoneWorkers.start_workers``."""
        self._limited_by = None
        while True:
            wait_s, limit = self._wait_s()
            if wait_s > 0:
                self._admission.no_worker_starts()
                self._limited_by = limit
                if self._timer_s is None:
                    self._timer_s = self._clock.now_s + wait_s
                    self._clock.at(self._timer_s, self._on_timer)
                return
            slot = self._scheduler.next(self._clock.now_s)
            if slot is None:
                full = self._scheduler.active >= self._zone.connections
                if self._mail.messages:
                    waits = self._admission.has_waiting  # for a limit of a provider
                    other = None if waits else "connections_per_domain"
                    self._limited_by = "connections" if full else other
                return
            self._clock.soon(partial(self._serve, _Worker(slot)))

    def _on_timer(self) -> None:
        self._touch()
        self._timer_s = None
        self._start_workers()

    def _on_room(self, destination: Destination) -> None:
        if self._mail.has(destination.name):
            self._scheduler.ready(destination.name, self._clock.now_s)
        self._start_workers()

    def _wake(self, name: str) -> bool:
        """A destination may be served again; returns whether it has mail."""
        if not self._mail.has(name):
            return False
        self._scheduler.ready(name, self._clock.now_s)
        self._clock.soon(self._woken)
        return True

    def _woken(self) -> None:
        self._touch()
        self._start_workers()

    def _serve(self, worker: _Worker) -> None:
        """Begin a transaction of a worker, or end the worker; follows ``ZoneWorkers._serve``."""
        scheduler, slot, now_s = self._scheduler, worker.slot, self._clock.now_s
        name = slot.destination.name
        if self._wait_s()[0] > 0 or not scheduler.next_lease(slot, now_s):
            self._leave(slot, has_mail=True)
            return
        waiting = self._mail.lease(name, slot.pool_key)
        if waiting is None:
            if not self._mail.has(name):
                scheduler.empty(name)
            self._leave(slot, has_mail=self._mail.has(name))
            return
        if scheduler.leased(slot, now_s, more=self._mail.has(name)):
            self._start_workers()
        source = self._admission.choose(slot, str(waiting.number), waiting.earlier)
        if isinstance(source, Refusal):  # others at its destination are sent meanwhile
            self._clock.at(self._admission.again_s(source), partial(self._again, waiting))
            self._clock.soon(partial(self._serve, worker))
            return
        waiting = self._narrowed(slot, name, waiting)
        opened = self._admission.open_session(slot)
        if opened is None:
            self._admission.not_permitted(slot)
            self._mail.put_back(name, waiting)
            scheduler.ready(name, now_s)
            self._leave(slot, has_mail=True)
            return
        if not waiting.earlier.source:
            slot.note_source(source)
        self._begin(worker, waiting, source, opened=opened)

    def _narrowed(self, slot: WorkerSlot, name: str, waiting: WaitingMessage) -> WaitingMessage:
        """``waiting`` with as many recipients as the schedules of its address allow."""
        permit, egress = slot.permit, self._world.egress
        if not permit.warming:
            return waiting
        most = egress.recipients_max(permit, waiting.recipients, self._clock.now_ms)
        if most < waiting.recipients:
            waiting = self._mail.split(name, waiting, most)
            self._scheduler.ready(name, self._clock.now_s)
        return waiting

    def _begin(self, worker: _Worker, waiting: WaitingMessage, source: str, *, opened: bool) -> None:
        world, slot, clock = self._world, worker.slot, self._clock
        self._scheduler.session_opened(slot, clock.now_s)
        if world.relay_bucket is not None:
            world.relay_bucket.take(clock.now_s)
        if slot.permit.granted:
            world.egress.permits.begin(slot.permit, clock.now_ms, int(opened))
        route, key = self._admission.route(slot.destination.name), ("", "")
        if is_limited(route):
            key = route.provider, source
            use = self._result.paths.get(key)
            if use is None:
                use = self._result.paths[key] = PathUse()
            use.sent(waiting.recipients, clock.now_s - waiting.ready_s, clock.now_s, clock.now_ms)
        if world.on_sent is not None:
            world.on_sent(SentTransaction(clock.now_ms, key, waiting.recipients, opened))
        self._result.transactions += 1
        time_s = world.time_s(waiting.message)
        clock.at(clock.now_s + time_s, partial(self._answered, worker, waiting, key))

    def _leave(self, slot: WorkerSlot, *, has_mail: bool) -> None:
        had_permit = slot.permit is not FREE
        self._scheduler.ended(slot, self._clock.now_s, has_mail=has_mail)
        if had_permit:
            self._clock.soon(self._start_workers)  # after other zones, which this has woken
        else:
            self._start_workers()

    def _answered(self, worker: _Worker, waiting: WaitingMessage, key: PathKey) -> None:
        self._touch()
        slot, egress = worker.slot, self._world.egress
        worker.served += 1
        egress.finish(slot.permit, waiting.recipients, 0, self._clock.now_ms)
        self._settle(slot.destination.name, waiting, key)
        self._scheduler.session_ended(slot)
        if self._scheduler.should_yield(slot, worker.served):
            self._leave(slot, has_mail=True)
        else:
            self._clock.soon(partial(self._serve, worker))

    # ---- what becomes of it

    def _settle(self, name: str, waiting: WaitingMessage, key: PathKey) -> None:
        world = self._world
        replies = world.replies_of(waiting.message, (waiting.recipients, waiting.attempt), key)
        route = self._admission.route(name)
        world.egress.settled += 1
        for reply, count in replies.items():
            handling = USUAL
            if is_limited(route) and (reply is None or reply.code):
                handling = self._report(route, waiting, key, (reply, count))
            if reply is None:
                self._finish(count)
                self._result.delivered += count
                self._ages.append((self._clock.now_s - waiting.message.arrival_s, count))
            elif handling.holds:
                self._finish(count)
                self._result.held += count
            elif handling.bounces or (reply.event == BOUNCED and not handling.defers):
                self._finish(count)
                self._result.bounced += count
            else:
                self._result.deferrals += count
                attempts = waiting.attempt - (not handling.is_counted)
                earlier = Earlier(attempts, reply.reply_class, key[1])
                self._defer(replace(waiting, recipients=count, earlier=earlier), handling)

    def _report(
        self,
        route: EgressRoute,
        waiting: WaitingMessage,
        key: PathKey,
        counted: tuple[RecordedReply | None, int],
    ) -> Handling:
        """Tell the controller and the rules of shaping; returns what these say of the recipients."""
        recorded, count = counted
        egress, domain = self._world.egress, waiting.message.destination
        if recorded is None:
            egress.reply(ProviderReply(*key, route.own_pool, domain, "", 250, "2.0.0", ""), count)
            return USUAL
        reply = ProviderReply(
            *key,
            route.own_pool,
            domain,
            recorded.reply_class,
            recorded.code,
            recorded.status,
            recorded.text,
        )
        if reply.reply_class in OF_SENDER:
            self._result.paths[key].refused += count
        handling = egress.engine.handling(reply)
        egress.reply(reply, count)
        return handling

    def _finish(self, recipients: int) -> None:
        self._backlog -= recipients
        self._result.completed_s = self._clock.now_s

    def _defer(self, waiting: WaitingMessage, handling: Handling) -> None:
        number = self._table.number(self._table.name_of(waiting.message.destination))
        retry, created_ms = self._table.zones[number].retry, int(waiting.message.arrival_s * 1000)
        context = RetryContext(
            created_ms=created_ms,
            attempts=waiting.attempt,
            now_ms=int(self._clock.now_s * 1000),
            end_ms=created_ms + int(retry.give_up_after * 1000),
        )
        policy = ladder(handling.delays_s) if handling.delays_s else self._policies[number]
        due_ms = next_attempt(policy, context, self._world.random.random() * retry.jitter / 100)
        if due_ms is None:
            self._result.expired += waiting.recipients
            self._finish(waiting.recipients)
            return
        waiting.attempt += handling.is_counted
        self._clock.at(due_ms / 1000, partial(self._again, waiting))


# ---- Simulates the delivery of a load through the zones of a relay: discrete events on a virtual clock. No Spark, no network.
#
# Not simulated: the time that a session takes to open (it is part of the recorded time of a transaction), limits of peers
# that the relay learns, look-ups, tenants, and the work of the relay itself beyond ``relay_limit_per_s``.


@dataclass(frozen=True, slots=True)
class SimulatedRelay:
    """A configuration to be tried. ``zones``: mail of a zone that is not there goes to ``default``.

    ``relay_limit_per_s``: the maximum of transactions per second that the relay itself can do, or None.
    """

    zones: Mapping[str, Zone]
    sending: SendingSettings = field(default_factory=SendingSettings)
    relay_limit_per_s: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """Messages in the order of their arrival, the first at ``begin_ms`` (unix ms), and what events say of their domains."""

    messages: Iterable[SimulatedMessage]
    peers: PeerModels
    begin_ms: int = 0
    domains: Mapping[str, RecordedDomain] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Predicted:
    """The result of each zone that had mail, and what limits and replies did on each path."""

    zones: Mapping[str, Prediction]
    paths: PathLimits


def simulate(
    relay: SimulatedRelay, load: SimulatedLoad, on_sent: Callable[[SentTransaction], None] | None = None
) -> Predicted:
    """Deliver ``load`` through ``relay``. ``on_sent`` is called with each transaction. Raises KeyError for a zone without settings."""
    clock = VirtualClock(load.begin_ms)
    egress = SimulatedEgress(relay.sending, load.domains, clock)
    # The limit of the relay itself is a bucket too, shared by all workers.
    limit_per_s = relay.relay_limit_per_s
    bucket = TokenBucket(Rate(max(1, round(limit_per_s * 60)), 60.0), 0.0) if limit_per_s else None
    world = SimulatedWorld(
        clock, egress, load.peers, Random(relay.seed), {}, load.domains, bucket, on_sent
    )
    zones: dict[str, SimulatedZone] = {}

    def zone_of(name: str) -> SimulatedZone:
        if name not in zones:
            settings = relay.zones[name] if name in relay.zones else relay.zones["default"]
            zones[name] = SimulatedZone(name, settings, world)
        return zones[name]

    def arrive(number: int, message: SimulatedMessage) -> None:
        zone_of(message.zone).arrive(number, message)

    messages, began_s = enumerate(load.messages), 0.0
    number, arriving = next(messages, (0, None))
    if arriving is not None:
        began_s = arriving.arrival_s
    while arriving is not None or clock.next_s is not None:
        due_s = clock.next_s
        if arriving is None or (due_s is not None and due_s < arriving.arrival_s - began_s):
            clock.run_next()
            continue
        now_s = arriving.arrival_s - began_s
        shifted = SimulatedMessage(now_s, arriving.destination, arriving.recipients, arriving.zone)
        clock.run_at(now_s, partial(arrive, number, shifted))
        number, arriving = next(messages, (0, None))
    return Predicted({name: zone.result() for name, zone in zones.items()}, egress.limits)
