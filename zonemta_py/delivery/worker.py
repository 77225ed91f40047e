"""One lease: its recipients become a request, the result of the request becomes a settle.

States of a lease in ``Worker.deliver``::

    taken ─▶ decided ─▶ requested ─▶ reported ─▶ settled
                │            │            └──▶ released: no session was permitted, or the peer takes no further one
                │            └──▶ released, or interrupted: the process of the agent was lost
                └──▶ settled as deferred, without an attempt: egress refused

Invariants:

- A lease always ends: by a settle, or by a release without an attempt, and after a defect of the relay by ``defer_after_defect``.
  Only a queue that cannot be written, or the end of the process, leaves one open; the next start finds its recipients.
- A ``Worker`` has the settings of its zone and no state of a lease, so one serves all workers of the zone at the same time.
- The start of the transaction is recorded when there is a session (``LeaseContext.session_opened``), before the final dot.
- Outcomes, the reports on them, events and what egress stores are one settle, so all are on disk or none.

Callers: ``ZoneWorkers``, and ``fail_old`` and ``expire_waiting`` in its module.

Example: ``LeaseResult`` says how a lease ended, ``decide_next`` what the worker does then. A failure to connect while other
workers have sessions is the peer's limit of connections (``Next.LEARN_LIMIT``), and not a destination that fails.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from enum import Enum, auto

from zonemta_py.config.zones import Zone
from zonemta_py.core import clock
from zonemta_py.core.codec import Struct, replace
from zonemta_py.core.errors import AgentLost, QueueUnavailable
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.delivery.attempts import of_others, without_limited
from zonemta_py.delivery.outcome import (
    RetryRules,
    apply_action,
    decide_outcome,
    is_given_up,
    requested_priority,
    unsent_attempt,
    verdict_of,
)
from zonemta_py.delivery.report_composer import DeliveryContext
from zonemta_py.delivery.reports import settle_effects
from zonemta_py.delivery.request import DeliveryAgent, DeliveryRequest, DeliveryResult
from zonemta_py.delivery.send_check import SendCheck
from zonemta_py.egress.admission import WorkerSlot
from zonemta_py.egress.limits import FREE
from zonemta_py.egress.message import Decision, EgressEffects, LeasedMail, MessageEgress
from zonemta_py.egress.paths import EgressOrder
from zonemta_py.egress.rules import USUAL, RecipientAction
from zonemta_py.egress.shared import Puts
from zonemta_py.events.schema import Event, Held
from zonemta_py.queue.commit import CommitFuture, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import EnvelopeRecord, RecipientRecord
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.transitions import event_fields
from zonemta_py.schedule.retry import RetryContext, ladder, make_policy, next_attempt
from zonemta_py.schedule.scheduler import Scheduler
from zonemta_py.smtp.address import expand_verp, is_verp
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.reports.dsn import write_notify
from zonemta_py.smtp.verdict import Phase, Verdict, is_unserved
from zonemta_py.transports.session import DsnOptions

log = logging.getLogger(__name__)


# ---- the context of a request


def next_token_in_s(queue: Queue, zone: str) -> float:
    """Seconds until the next token of ``zone`` is due, by what an earlier run stored; 0 when nothing was."""
    due_ms = queue.store.get(keys.rate_key(zone))
    return max(0, int(due_ms) - clock.now_ms()) / 1000 if due_ms is not None else 0.0


class LeaseContext:
    """The ``RequestContext`` of a lease in this process. ``slot``: its worker, in ``scheduler``."""

    __slots__ = (
        "_active",
        "_egress",
        "_lease",
        "_queue",
        "_scheduler",
        "_slot",
        "has_session",
        "started",
    )

    def __init__(
        self,
        queue: Queue,
        egress: MessageEgress,
        lease: Lease,
        scheduler: Scheduler,
        slot: WorkerSlot,
    ) -> None:
        self._queue = queue
        self._egress = egress
        self._lease = lease
        self._active = lease.active
        self._scheduler = scheduler
        self._slot = slot
        self.started: Awaitable[None] = CommitFuture()
        self.has_session = False

    def body(self) -> bytes | AsyncIterator[bytes]:
        """The body, whole when it is small. Raises QueueCorrupt."""
        small = self._queue.bodies.small(self._active)
        return small if small is not None else self._queue.bodies.stream(self._active)

    def session_opened(self, opened: int) -> None:
        """Count the session with the destination, and record the start of the transaction.

        The message waits for its token with the final dot.
        """
        self.has_session = True
        if self._slot.permit is not FREE:
            self._egress.begin(self._slot, opened)
        now_s, scheduler = clock.monotonic_s(), self._scheduler
        wait_s = scheduler.session_opened(self._slot, now_s)
        if scheduler.bucket is not None and scheduler.bucket.is_long:
            self._write_due(scheduler.bucket.due_s - now_s)
        started = self._queue.start(self._lease)
        self.started = _later(started, wait_s) if wait_s else started

    def _write_due(self, wait_s: float) -> None:
        """Store when the zone's next token is due, in the group of the transaction's start."""
        batch = WriteBatch()
        due_ms = clock.now_ms() + round(wait_s * 1000)
        batch.put(keys.rate_key(self._lease.zone), str(due_ms).encode())
        self._queue.commits.submit(batch)

    def close(self) -> None:
        """The request has ended, and with it the use of the session."""
        if self.has_session:
            self._scheduler.session_ended(self._slot)


def _later(started: CommitFuture, wait_s: float) -> CommitFuture:
    """Done ``wait_s`` from now if ``started`` is; a failure is passed on at once."""
    later = CommitFuture()
    loop = asyncio.get_running_loop()
    due_s = loop.time() + wait_s

    def written(failure: QueueUnavailable | None) -> None:
        if failure is not None:
            later.finish(failure)
        else:
            loop.call_at(due_s, later.finish)

    started.add_done_callback(written)
    return later


# ---- the lease

SUSPEND_S = 300.0  # for a destination whose retry policy gives up after the first failure

REASON_MAX = 200  # characters


class LeaseResult(Struct, frozen=True):
    """How a lease ended: the future of its settle, and why the destination did not serve it, if so.

    ``at_connection_limit``: the destination serves no session in addition to the open ones; the lease
    was released without an attempt, unless the peer closed the connection without a reply. ``recipients_max`` and ``not_permitted``: see
    ``DeliveryResult``.
    """

    settled: CommitFuture
    failure: Attempt | None = None
    at_connection_limit: bool = False
    recipients_max: int = 0
    not_permitted: bool = False


class Next(Enum):
    """The next act of a worker after a delivery."""

    CONTINUE = auto()  # with another lease
    RESUME = auto()  # the destination, which was suspended; then continue
    LEARN_LIMIT = auto()  # of the destination's connections; then end
    SUSPEND = auto()  # the destination; then end
    WAIT = auto()  # until another session is permitted; then end


def decide_next(result: LeaseResult, *, suspended: bool) -> Next:
    """Decide what follows ``result``. ``suspended``: the destination was, and this worker probed it. Pure."""
    if result.not_permitted:
        return Next.WAIT
    if result.at_connection_limit:
        return Next.LEARN_LIMIT
    if result.failure is not None:
        return Next.SUSPEND
    return Next.RESUME if suspended else Next.CONTINUE


class Worker:
    """Delivers leases of one zone."""

    def __init__(
        self, context: DeliveryContext, zone: Zone, scheduler: Scheduler, egress: MessageEgress
    ) -> None:
        self._context = context
        self._egress = egress
        self._zone = zone
        self._scheduler = scheduler
        self._table = scheduler.table
        self.check = SendCheck(context, scheduler.table.settings, egress.provider)
        tenants = context.config.tenants
        self._own_pools = {name for name, each in tenants.items() if each.pool is not None}
        self._rules = [
            RetryRules(each.retry, make_policy(each.retry, log.error, context.hooks.backoff_function))
            for each in self._table.zones
        ]

    async def deliver(
        self, lease: Lease, idle_limits: tuple[int, int], slot: WorkerSlot, agent: DeliveryAgent
    ) -> LeaseResult:
        """Attempt ``lease`` through ``agent`` and settle it. ``idle_limits``: see ``DeliveryRequest``.

        Raises QueueUnavailable, and what the agent raises except AgentLost.
        """
        queue, meta = self._context.queue, lease.active.meta
        expands = self._zone.sender_verp or is_verp(meta.sender)
        if len(lease.recipients) > 1:
            together = 1 if expands else _of_same_address(lease)
            if together < len(lease.recipients):
                queue.narrow(lease, together)
        decision = self._egress.decide(slot, self._mail(lease))
        if decision.refusal is not None:
            due_ms = self._egress.retry_at_ms(decision.refusal, clock.now_ms())
            return LeaseResult(await self.defer_unsent(lease, decision.refusal.reason, due_ms))
        if decision.recipients < len(lease.recipients):
            queue.narrow(lease, decision.recipients)
        request = self._request(lease, idle_limits, slot, decision, expands=expands)
        lease_context = LeaseContext(queue, self._egress, lease, self._scheduler, slot)
        try:
            result = await agent.deliver(request, lease_context)
        except Exception as exc:
            self._egress.lost(slot, decision, is_sent=lease_context.has_session)
            if not isinstance(exc, AgentLost):
                raise
            log.warning("%s: %s; its lease is released", lease.active.id, exc)
            return LeaseResult(queue.interrupt(lease) if exc.uncertain else queue.release(lease))
        finally:
            lease_context.close()
        report = self._egress.report(slot, decision, result)
        if result.not_permitted:
            return LeaseResult(self._release(lease, report.puts), not_permitted=True)
        if result.sessions:
            attempt = next((each for each in result.attempts if each is not None), result.failure)
            queue.traffic.opened(lease.zone, lease.destination, attempt, result.sessions)
        if result.failure is None:
            if slot.destination.dots_lost:
                slot.destination.dots_lost = 0
            settled = await self._settle(lease, report)
            return LeaseResult(settled, recipients_max=result.recipients_max)
        failure = self._destination_failure(lease, slot, report.decision, result)
        if failure is not None and (slot.destination.working or result.has_idle):
            # Other sessions are in use, or became idle a moment ago: the destination works, and is full.
            if result.refuses_sessions or not lease_context.has_session:
                return LeaseResult(self._release(lease, report.puts), at_connection_limit=True)
            # The peer may have closed because of the message: an attempt, so that it is not repeated at once.
            return LeaseResult(await self._settle(lease, report), at_connection_limit=True)
        return LeaseResult(await self._settle(lease, report), failure)

    def _mail(self, lease: Lease) -> LeasedMail:
        """The part of a lease that egress must know."""
        recipients, sender = lease.recipients, lease.active.meta.sender
        first = recipients[0]
        record = first.record
        blocked: Sequence[int] = (record.blocked,)
        if len(recipients) > 1:
            blocked = [each.record.blocked for each in recipients]
        return LeasedMail(
            message=lease.active.id,
            destination=lease.destination,
            domain=record.domain,
            blocked=blocked,
            pool_key=self._context.queue.windows.pool_key(lease.zone, lease.destination, record),
            sender="" if sender == first.address else sender,
            last_source=record.source,
            last_class=self._last_class(record) if record.source else "",
        )

    def _last_class(self, record: RecipientRecord) -> str:
        """The class of the last reply; records of earlier versions do not have it, nor the phase that it depends on."""
        classify = self._context.queue.classifier.classify
        return record.reply_class or classify("", record.code, record.status, record.text)

    def _destination_failure(
        self, lease: Lease, slot: WorkerSlot, decision: Decision, result: DeliveryResult
    ) -> Attempt | None:
        """The failure that suspends the destination; None if only this message, or this source address, failed."""
        if result.permanent or result.failure is None:
            return None
        if result.failure.phase == Phase.DOT and not slot.destination.dot_lost():
            return None
        if lease.active.meta.origin.tenant in self._own_pools and not slot.destination.failing:
            return None  # it may be the tenant's addresses that are refused: others' mail is tried
        [failure] = self._egress.classified(decision, [result.failure])
        if failure is not None and (
            verdict_of(failure) is Verdict.FAILED
            or self._egress.may_use_other_address(decision, failure)
        ):
            return None
        return result.failure

    def _release(self, lease: Lease, puts: Puts) -> CommitFuture:
        """No attempt was made; ``puts`` are stored all the same."""
        self._egress.store(puts)
        return self._context.queue.release(lease)

    async def defer_unsent(self, lease: Lease, reason: str, due_ms: int) -> CommitFuture:
        """Nothing may be sent now: defer a message without an attempt, so that others at its destination are sent.

        If its time is over, it expires.
        """
        context, active, number = self._context, lease.active, self._table.number(lease.destination)
        settings = self._table.zones[number]
        kind = OutcomeKind.DEFERRED
        if is_given_up(active.meta, active.id, settings.retry, clock.now_ms()):
            kind, due_ms = OutcomeKind.EXPIRED, 0
        provider, outcomes = self._egress.undecided(self._mail(lease)).provider, []
        for each in lease.recipients:
            about = self._last_class(each.record) if each.record.text else ""
            attempt = unsent_attempt(each.record.text, reason, about, provider)
            outcomes.append(Outcome(each, kind, attempt, due_ms, attempted=False))
        effects = await settle_effects(context, settings, active, outcomes)
        return context.queue.settle(lease, outcomes, effects)

    def _request(
        self,
        lease: Lease,
        idle_limits: tuple[int, int],
        slot: WorkerSlot,
        decision: Decision,
        *,
        expands: bool,
    ) -> DeliveryRequest:
        active, meta, record = lease.active, lease.active.meta, lease.recipients[0].record
        order = decision.order
        recipients = [recipient.address for recipient in lease.recipients]
        return DeliveryRequest(
            destination=lease.destination,
            message=active.id,
            domain=record.domain,
            sender=expand_verp(meta.sender, recipients[0]) if expands else meta.sender,
            recipients=recipients,
            header=meta.header,
            size_bytes=len(meta.header) + 2 + active.mark.size,
            eight_bit=meta.eight_bit,
            smtputf8=meta.smtputf8,
            dsn=_dsn_options(lease),
            idle_limits=idle_limits,
            body_hash=meta.body_hash,
            session_within_s=slot.session_within_s,
            tenant=meta.origin.tenant,
            order=order,
            asks_hosts=decision.asks_hosts,
            prefers=decision.prefers,
            turn=_turn(record, order) if record.attempts and order is not None else 0,
            lacks_hosts=decision.lacks_hosts,
        )

    async def fail(self, lease: Lease, failure: Attempt) -> CommitFuture:
        """Settle ``lease`` with a failure that another lease of its destination met."""
        decision = self._egress.undecided(self._mail(lease))
        attempts = [of_others(failure)] * len(lease.recipients)
        known = self._egress.classified(decision, attempts)
        return await self._settle(
            lease, EgressEffects(decision, known, self._egress.actions(decision, known), [])
        )

    async def defer_after_defect(self, lease: Lease) -> CommitFuture:
        """Defer the recipients of ``lease``: a defect of the relay prevented the attempt."""
        text = "internal error of the relay; see its log"
        return await self.fail(lease, Attempt(Phase.CONNECT.value, 0, "4.3.0", text))

    def first_delay_s(self, destination: str) -> float:
        """The delay after a message's first failure: also how long a destination that fails is unreachable."""
        now_ms, rules = clock.now_ms(), self._rules[self._table.number(destination)]
        end_ms = now_ms + int(rules.settings.give_up_after * 1000)
        due_ms = next_attempt(rules.policy, RetryContext(now_ms, 1, now_ms, end_ms), 0)
        return (due_ms - now_ms) / 1000 if due_ms is not None else SUSPEND_S

    async def _settle(self, lease: Lease, report: EgressEffects) -> CommitFuture:
        context, active, number = self._context, lease.active, self._table.number(lease.destination)
        rules, known = self._rules[number], report.attempts
        now_ms, priority = clock.now_ms(), requested_priority(active.meta, rules.settings.policy)
        if len(known) > 1:
            known, most = without_limited(known)
            state = self._scheduler.state(lease.destination) if most else None
            if state is not None:
                state.learn_recipients_max(most, clock.monotonic_s())
        outcomes, attempts, held = [], [], False
        for recipient, attempt, action in zip(lease.recipients, known, report.actions, strict=False):
            if attempt is None:
                continue
            own = rules if action is USUAL else _with_action(rules, action)
            spread = context.rng.random()
            outcome = decide_outcome(active.meta, priority, recipient, attempt, own, now_ms, spread)
            if action is not USUAL:
                outcome = apply_action(outcome, action)
                held = held or bool(outcome.held_by)
            outcomes.append(outcome)
            attempts.append(outcome.attempt)
        effects = await settle_effects(context, self._table.zones[number], active, outcomes)
        now_ms = context.queue.now()  # the time of the events: their replay has the same effects
        events, shaped = self._egress.settled(report.decision, attempts, now_ms)
        if held:
            events += _held_events(active.meta, outcomes, now_ms)
        if events or shaped or report.puts:
            puts = [*report.puts, *shaped]
            effects = replace(effects, events=[*effects.events, *events], puts=puts)
        return context.queue.settle(lease, outcomes, effects, now_ms)


def _of_same_address(lease: Lease) -> int:
    """How many recipients, from the first on, have had their last attempt from the same source address."""
    first = lease.recipients[0].record.source
    for number, recipient in enumerate(lease.recipients):
        if recipient.record.source != first:
            return number
    return len(lease.recipients)


def _with_action(rules: RetryRules, action: RecipientAction) -> RetryRules:
    """The rules of a zone, with the retry ladder that a rule of shaping gives, and what it defers."""
    if action.delays_s:
        rules = rules._replace(policy=ladder(action.delays_s))
    return rules._replace(defers=True) if action.defers else rules


def _held_events(meta: EnvelopeRecord, outcomes: Sequence[Outcome], now_ms: int) -> list[Event]:
    """The events of recipients that a rule of shaping holds."""
    return [
        Held(
            **event_fields(meta, each.recipient.key, each.recipient.record, now_ms),
            reason=f"rule '{each.held_by}' of shaping: {each.attempt.code} {each.attempt.text}"[
                :REASON_MAX
            ],
        )
        for each in outcomes
        if each.held_by
    ]


def _turn(record: RecipientRecord, order: EgressOrder) -> int:
    """With which host an attempt begins. Where new connections are limited, an attempt has one: the next one is for the next host."""
    last = Reply(record.code, record.status, record.text)
    return record.attempts if order.connects >= 0 and is_unserved(Phase.RCPT, last) else 0


def _dsn_options(lease: Lease) -> DsnOptions | None:
    """The client's parameters of RFC 3461, to pass on to a peer that offers DSN; None without any."""
    meta = lease.active.meta
    mail = f" RET={meta.ret}" if meta.ret else ""
    mail += f" ENVID={meta.envid}" if meta.envid else ""
    for recipient in lease.recipients:
        if recipient.record.notify or recipient.record.orcpt:
            break
    else:
        if not mail:
            return None
    rcpts = []
    for recipient in lease.recipients:
        record = recipient.record
        notify = f" NOTIFY={write_notify(record.notify)}" if record.notify else ""
        rcpts.append(notify + (f" ORCPT={record.orcpt}" if record.orcpt else ""))
    return DsnOptions(mail, rcpts)
