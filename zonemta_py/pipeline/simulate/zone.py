"""One zone of a simulated relay, its workers, its mail, and what becomes of it; and the simulation of all zones. Pure.

The scheduler, ``egress``, the token bucket and the retry policies are the relay's own code; peers and the queue are simulated.
Events happen one after the other on a virtual clock: mail arrives, a worker takes a lease (``_serve``), its transaction has its
answers (``_answered``), deferred mail is due again (``_again``), what mail waits for has room (``_wake``).

Not simulated: the time that a session takes to open (it is part of the recorded time of a transaction), limits of peers
that the relay learns, look-ups, tenants, and the work of the relay itself beyond ``relay_limit_per_s``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from zonemta_py.config.values import Rate
from zonemta_py.config.zones import Zone
from zonemta_py.core.model import Attempt, PathKey
from zonemta_py.egress.admission import Destination, WorkerSlot
from zonemta_py.egress.controller import OF_SENDER
from zonemta_py.egress.message import Decision, LeasedMail, MessageEgress
from zonemta_py.egress.paths import Limit
from zonemta_py.egress.rules import USUAL, RecipientAction
from zonemta_py.egress.sources import BY_SYSTEM, preferred, source_name
from zonemta_py.egress.zone import ZoneEgress
from zonemta_py.pipeline.simulate.egress import RecordedDomain, SendingSettings, SimulatedEgress
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
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, MxAnswer
from zonemta_py.smtp.reply_class import ReplyClass
from zonemta_py.smtp.verdict import Phase


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
        egress = world.egress
        egress.mails[name] = self._mail
        self._egress = ZoneEgress(name, zone, egress, _no_look_up, self._wake, egress.waits)
        self._messages = MessageEgress(egress, self._egress.routes, self._egress.closed)
        self._scheduler = Scheduler(zone, 0.0, self._on_room, admission=self._egress)
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
        """Start workers while limits allow it."""
        self._limited_by = None
        while True:
            wait_s, limit = self._wait_s()
            if wait_s > 0:
                self._egress.no_worker_starts()
                self._limited_by = limit
                if self._timer_s is None:
                    self._timer_s = self._clock.now_s + wait_s
                    self._clock.at(self._timer_s, self._on_timer)
                return
            slot = self._scheduler.next(self._clock.now_s)
            if slot is None:
                full = self._scheduler.active >= self._zone.connections
                if self._mail.messages:
                    waits = self._egress.has_waiting  # for a limit of a provider
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
        """Begin a transaction of a worker, or end the worker."""
        scheduler, slot, now_s, world = self._scheduler, worker.slot, self._clock.now_s, self._world
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
        decision = self._messages.decide(slot, self._mail_of(name, waiting))
        if decision.refusal is not None:  # others at its destination are sent meanwhile
            due_ms = self._messages.retry_at_ms(decision.refusal, self._clock.now_ms)
            self._clock.at_ms(due_ms, partial(self._again, waiting))
            self._clock.soon(partial(self._serve, worker))
            return
        if decision.recipients < waiting.recipients:  # as many as the schedules of its address allow
            waiting = self._mail.split(name, waiting, decision.recipients)
            scheduler.ready(name, now_s)
        source = self._source(decision)
        if source is None:
            self._fail(worker, waiting)
            return
        opened = world.egress.sessions.open(slot, self._messages_max(slot), self._zone.timeouts.idle)
        if opened is None:
            self._not_permitted(slot)
            self._mail.put_back(name, waiting)
            scheduler.ready(name, now_s)
            self._leave(slot, has_mail=True)
            return
        if not waiting.earlier.source:
            slot.note_source(source)
        self._begin(worker, waiting, (decision, source), opened=opened)

    def _mail_of(self, name: str, waiting: WaitingMessage) -> LeasedMail:
        earlier = waiting.earlier
        return LeasedMail(
            message=str(waiting.number),
            destination=name,
            domain=waiting.message.destination,
            blocked=[earlier.blocked] * waiting.recipients,
            pool_key=self._mail.pool_key(name, earlier),
            last_source=earlier.source,
            last_class=earlier.reply_class,
        )

    def _source(self, decision: Decision) -> str | None:
        """The address that a message leaves from, by its order or as the agent chooses; None: no address reaches the hosts."""
        route, mail = decision.route, decision.mail
        assert route is not None
        if decision.order is not None and decision.order.source is not None:
            return decision.order.source
        usable = self._egress.routes.sources(route.with_pool(mail.pool_key))
        if not usable:
            return None if decision.provider else BY_SYSTEM
        return source_name(preferred(usable, mail.message, decision.prefers)[0])

    def _messages_max(self, slot: WorkerSlot) -> int:
        """How many messages a new session takes."""
        most = self._world.egress.table.settings(slot.permit.provider).limits.messages_per_session
        own = self._table.settings(slot.destination.name).messages_per_connection
        return min(own, most) if most else own

    def _not_permitted(self, slot: WorkerSlot) -> None:
        """A session was needed and not allowed: its destination waits until one is."""
        egress, permit = self._world.egress, slot.permit
        egress.end(permit, 0, 0)
        self._egress.not_permitted(slot)
        limit = Limit.PROVIDER_CONNECT_RATE.value
        egress.limits.bind((permit.provider, permit.address), limit, self._clock.now_s)

    def _fail(self, worker: _Worker, waiting: WaitingMessage) -> None:
        """No address reaches the hosts: an attempt without a transaction."""
        self._world.egress.end(worker.slot.permit, 0, 0)
        self._result.deferrals += waiting.recipients
        self._defer(waiting, USUAL)
        self._clock.soon(partial(self._serve, worker))

    def _begin(
        self, worker: _Worker, waiting: WaitingMessage, sent: tuple[Decision, str], *, opened: bool
    ) -> None:
        """``sent``: by which decision, and from which address."""
        world, slot, clock = self._world, worker.slot, self._clock
        self._scheduler.session_opened(slot, clock.now_s)
        if world.relay_bucket is not None:
            world.relay_bucket.take(clock.now_s)
        self._messages.begin(slot, int(opened))
        (decision, source), key = sent, ("", "")
        if decision.provider:
            key = decision.provider, source
            use = self._result.paths.get(key)
            if use is None:
                use = self._result.paths[key] = PathUse()
            use.sent(waiting.recipients, clock.now_s - waiting.ready_s, clock.now_s, clock.now_ms)
        if world.on_sent is not None:
            world.on_sent(SentTransaction(clock.now_ms, key, waiting.recipients, opened))
        self._result.transactions += 1
        time_s = world.time_s(waiting.message)
        clock.at(clock.now_s + time_s, partial(self._answered, worker, waiting, (decision, key)))

    def _leave(self, slot: WorkerSlot, *, has_mail: bool) -> None:
        self._world.egress.sessions.leave(slot, self._zone.timeouts.idle)
        if self._scheduler.ended(slot, self._clock.now_s, has_mail=has_mail):
            self._clock.soon(self._start_workers)
        else:
            self._start_workers()

    def _answered(
        self, worker: _Worker, waiting: WaitingMessage, sent: tuple[Decision, PathKey]
    ) -> None:
        self._touch()
        slot = worker.slot
        worker.served += 1
        self._world.egress.end(slot.permit, waiting.recipients, 0)
        self._settle(waiting, *sent)
        self._scheduler.session_ended(slot)
        if self._scheduler.should_yield(slot, worker.served):
            self._leave(slot, has_mail=True)
        else:
            self._clock.soon(partial(self._serve, worker))

    # ---- what becomes of it

    def _settle(self, waiting: WaitingMessage, decision: Decision, key: PathKey) -> None:
        world = self._world
        replies = world.replies_of(waiting.message, (waiting.recipients, waiting.attempt), key)
        attempts = {reply: _attempt_of(reply, key) for reply in replies}
        actions = self._messages.actions(decision, list(attempts.values()))
        each_attempt = [attempts[reply] for reply, count in replies.items() for _ in range(count)]
        self._messages.settled(decision, each_attempt, self._clock.now_ms)
        for (reply, count), action in zip(replies.items(), actions, strict=True):
            if reply is None:
                self._finish(count)
                self._result.delivered += count
                self._ages.append((self._clock.now_s - waiting.message.arrival_s, count))
                continue
            if decision.provider and reply.code and reply.reply_class in OF_SENDER:
                self._result.paths[key].refused += count
            self._refused(replace(waiting, recipients=count), (reply, action), key)

    def _refused(
        self, waiting: WaitingMessage, answer: tuple[RecordedReply, RecipientAction], key: PathKey
    ) -> None:
        """Its recipients got a reply, and what the rules of shaping do with them."""
        (reply, action), count, earlier = answer, waiting.recipients, waiting.earlier
        if action.holds:
            self._finish(count)
            self._result.held += count
        elif action.bounces or (reply.event == BOUNCED and not action.defers):
            self._finish(count)
            self._result.bounced += count
        else:
            self._result.deferrals += count
            waiting.earlier = Earlier(
                waiting.attempt - (not action.is_counted),
                reply.reply_class,
                key[1],
                earlier.blocked + (reply.code >= 500 and reply.reply_class == ReplyClass.BLOCKED),
            )
            self._defer(waiting, action)

    def _finish(self, recipients: int) -> None:
        self._backlog -= recipients
        self._result.completed_s = self._clock.now_s

    def _defer(self, waiting: WaitingMessage, action: RecipientAction) -> None:
        number = self._table.number(self._table.name_of(waiting.message.destination))
        retry, created_ms = self._table.zones[number].retry, int(waiting.message.arrival_s * 1000)
        context = RetryContext(
            created_ms=created_ms,
            attempts=waiting.attempt,
            now_ms=int(self._clock.now_s * 1000),
            end_ms=created_ms + int(retry.give_up_after * 1000),
        )
        policy = ladder(action.delays_s) if action.delays_s else self._policies[number]
        due_ms = next_attempt(policy, context, self._world.random.random() * retry.jitter / 100)
        if due_ms is None:
            self._result.expired += waiting.recipients
            self._finish(waiting.recipients)
            return
        waiting.attempt += action.is_counted
        self._clock.at(due_ms / 1000, partial(self._again, waiting))


def _attempt_of(reply: RecordedReply | None, path: PathKey) -> Attempt:
    """The attempt of recipients that got ``reply``, or were accepted (None)."""
    phase, (provider, source) = Phase.RCPT.value, path
    if reply is None:
        code, status, text, reply_class = 250, "2.0.0", "", ""
    else:
        code, status, text, reply_class = reply.code, reply.status, reply.text, reply.reply_class
    return Attempt(
        phase=phase,
        code=code,
        status=status,
        text=text,
        source_ip=source,
        reply_class=reply_class,
        provider=provider,
    )


async def _no_look_up(domain: str) -> MxAnswer:
    """The record names the provider of each domain."""
    return NO_MX_ANSWER


# ---- all zones


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
        clock=clock,
        egress=egress,
        peers=load.peers,
        random=Random(relay.seed),
        meters={},
        domains=load.domains,
        relay_bucket=bucket,
        on_sent=on_sent,
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
