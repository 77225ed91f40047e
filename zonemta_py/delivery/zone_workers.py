"""The workers of one zone: one starts when there is mail and a connection is free, and ends when not.

``start_workers`` is called whenever something may have changed: mail has come (``ready``), a session was opened (``_on_room``), a
worker has ended, a suspension is over, a limit has room. The ``Scheduler`` says for which destination; a task serves it
(``_serve``) lease by lease. States of a worker::

    started ─▶ has a lease ─▶ delivers ─▶ waits for the settle of the lease before ─▶ has a lease … ─▶ ended

It ends when there is no mail, others wait for its place, a limit is reached, or the destination fails.

Invariants:

- Between the scheduler's permission and the lease there is no await (``_take_lease``): no other worker uses the permission.
- Each lease that is taken is settled or released, unless the worker is cancelled; it has one unfinished settle when it delivers.
- After QueueUnavailable no worker starts: what cannot be settled must not be sent.
- Mail of an unreachable destination (``FailingDestinations``) stays on disk without an attempt until a probe opens a session;
  the old part of it fails with what the probe met.
- All mail of a destination that leaves from one pool waits for the same, and the oldest is in front: ``fail_old`` and
  ``expire_waiting``, which let mail expire at its time and report delays, look at the front only.

Callers: ``relay.delivery_service`` makes one for each zone, tells it of mail, reloads and probes, and calls ``give_up_old``.

Example: two messages for a new destination start one worker. Its first session makes room, ``_on_room`` starts a second one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from zonemta_py.config.zones import Zone
from zonemta_py.core import clock, faults
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.core.logs import RepeatedLines
from zonemta_py.core.model import USUAL_KEY, Attempt, PoolKey
from zonemta_py.delivery.attempts import reason_of
from zonemta_py.delivery.outcome import (
    NO_ADDRESS_MS,
    delay_is_reported,
    has_no_address,
    has_reader,
    is_expired,
    is_given_up,
)
from zonemta_py.delivery.report_composer import DeliveryContext
from zonemta_py.delivery.request import DeliveryAgent
from zonemta_py.delivery.worker import LeaseResult, Next, Worker, decide_next, next_token_in_s
from zonemta_py.egress.admission import Destination, WorkerSlot
from zonemta_py.egress.message import MessageEgress
from zonemta_py.egress.paths import Constraint, constraint_of
from zonemta_py.egress.zone import ZoneEgress
from zonemta_py.queue.commit import CommitFuture
from zonemta_py.queue.format.records import starts
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.queue import Queue
from zonemta_py.schedule.scheduler import Scheduler
from zonemta_py.smtp.mx_order import MxAnswer
from zonemta_py.smtp.reports.dsn import wants_delay

log = logging.getLogger(__name__)


# ---- old mail

WARNED_MAX = 10_000  # messages of a destination that are deferred at once: seconds of work

Place = tuple[str, str]  # zone and destination


async def fail_old(queue: Queue, worker: Worker, place: Place, settings: Zone, failure: Attempt) -> bool:
    """Settle the old mail of a destination with the failure that other mail met; returns whether some is left."""
    now_ms, warned = clock.now_ms(), 0
    give_up_after_s: float = settings.retry.give_up_after
    if has_no_address(failure):
        give_up_after_s = min(give_up_after_s, NO_ADDRESS_MS / 1000)
    for pool_key in queue.windows.pool_keys(*place):
        for lease in _leases(queue, place, settings, pool_key):
            meta, message = lease.active.meta, lease.active.id
            if (refusal := worker.check.refusal(lease)) is not None:
                await refusal
                continue
            if not is_expired(starts(meta, message), now_ms, give_up_after_s):
                warned += 1
                if warned > WARNED_MAX or not delay_is_reported(meta, message, settings.retry, now_ms):
                    queue.release(lease)
                    break
            await (await worker.fail(lease, failure))
    return queue.windows.zone(place[0]).has_mail(place[1])


async def expire_waiting(
    queue: Queue, worker: Worker, place: tuple[str, str, PoolKey], settings: Zone, reason: str
) -> None:
    """Settle the old mail of a destination that waits for a limit. Nothing of it was an attempt.

    ``place``: the zone, the destination, and the pool from which the mail leaves.
    """
    zone, destination, pool_key = place
    now_ms, warned = clock.now_ms(), 0
    for lease in _leases(queue, (zone, destination), settings, pool_key):
        meta, message = lease.active.meta, lease.active.id
        if (refusal := worker.check.refusal(lease)) is not None:
            await refusal
            continue
        if not is_given_up(meta, message, settings.retry, now_ms):
            warned += 1
            if warned > WARNED_MAX or not _is_to_be_warned(lease, settings, now_ms):
                queue.release(lease)
                return
        await (await worker.defer_unsent(lease, reason, now_ms + 1))


def _leases(queue: Queue, place: Place, settings: Zone, pool_key: PoolKey) -> Iterator[Lease]:
    """The leases of a destination, each after the end of the one before; damaged messages are left alone."""
    front = b""
    while True:
        try:
            lease = queue.lease(*place, settings.recipients_per_transaction, pool_key)
        except QueueCorrupt as exc:
            log.critical("not given up: %s", exc)
            continue
        if lease is None:
            return
        if lease.recipients[0].key == front:
            queue.release(lease)  # it was to be held, and is damaged on disk: it is in front again
            return
        front = lease.recipients[0].key
        yield lease


def _is_to_be_warned(lease: Lease, settings: Zone, now_ms: int) -> bool:
    meta, message = lease.active.meta, lease.active.id
    if meta.warned or not has_reader(meta):
        return False
    if not any(wants_delay(each.record.notify) for each in lease.recipients):
        return False
    return delay_is_reported(meta, message, settings.retry, now_ms)


# ---- unreachable destinations

SECOND_TRY_S = 30.0


class FailingDestinations:
    """``ready`` is called with a destination that is to be tried."""

    def __init__(
        self, zone: str, queue: Queue, scheduler: Scheduler, ready: Callable[[str], None]
    ) -> None:
        self._zone = zone
        self._queue = queue
        self._scheduler = scheduler
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._lines = RepeatedLines(log)

    def describe(self, destination: str) -> str:
        """Why ``destination`` is unreachable; empty when it is not."""
        state = self._scheduler.state(destination)
        if state is None or not state.failing:
            return ""
        wait_s = max(0, round(state.down_until_s - clock.monotonic_s()))
        return f"next try in {wait_s} s: {state.reason}"

    async def suspend(self, slot: WorkerSlot, failure: Attempt, worker: Worker) -> None:
        """No session could be opened: the destination of ``slot`` is unreachable; free its part of the window.

        One that had little time for a session, because others waited, has a second try soon.
        """
        destination = slot.destination
        queue, scheduler, now_s = self._queue, self._scheduler, clock.monotonic_s()
        settings = scheduler.table.settings(destination.name)
        delay_s = worker.first_delay_s(destination.name)
        if slot.session_within_s and not destination.failing and not failure.code:
            delay_s = min(delay_s, SECOND_TRY_S)
        if not destination.failing:
            self._log(destination, f"is unreachable: {reason_of(failure)}")
        scheduler.failed(destination, delay_s, now_s, reason_of(failure))
        queue.windows.set_unreachable(self._zone, destination.name)
        self._loop.call_later(destination.down_until_s - now_s, self._try_when_due, destination)
        if await fail_old(queue, worker, (self._zone, destination.name), settings, failure):
            queue.windows.set_unreachable(self._zone, destination.name)

    def _try_when_due(self, destination: Destination) -> None:
        """Schedule an unreachable destination; later, if its time was extended or the timer was early."""
        wait_s = destination.down_until_s - clock.monotonic_s()
        if wait_s > 0:
            self._loop.call_later(wait_s + 0.001, self._try_when_due, destination)
        else:
            self._ready(destination.name)

    def resume(self, destination: Destination) -> None:
        """A session was opened: the destination is reachable."""
        suspended_s = clock.monotonic_s() - destination.failing_since_s
        self._log(destination, f"answers again, after {suspended_s:.0f} s")
        destination.answered()
        self._queue.windows.zone(self._zone).set_reachable(destination.name)
        self._ready(destination.name)

    def close(self) -> None:
        """Write the lines that were only counted."""
        self._lines.flush()

    def _log(self, destination: Destination, text: str) -> None:
        """A line about a suspension; of many destinations that fail together some are counted only."""
        line = f"{self._zone}/{destination.name} {text}"
        self._lines.write((destination.name, text[:10]), logging.WARNING, lambda: line)


# ---- the workers

DEFECT_PAUSE_S = 1.0  # after an unexpected exception in a worker: it may repeat


MakeAgent = Callable[[str, Zone], DeliveryAgent]


class NoLease(Enum):
    """Why a worker got no lease."""

    LOOK_AGAIN = auto()  # a message was unreadable, or mail on disk has not been reached yet
    NO_MAIL = auto()
    NOT_NOW = auto()  # no other message may be sent for now


class TakesReadyMail(Protocol):
    """A zone whose mail is delivered: by workers, or by programs."""

    def ready(self, destination: str, *, low_volume: bool = False) -> None:
        """The queue has mail for ``destination``."""


ZoneT = TypeVar("ZoneT", bound=TakesReadyMail)


class ReadyMail(Generic[ZoneT]):
    """The callback of a queue that has mail (``OnReady``): it tells who delivers the zone, once that is in ``zones``."""

    def __init__(self) -> None:
        self.zones: dict[str, ZoneT] = {}

    def __call__(self, zone: str, destination: str, low_volume: bool) -> None:
        """The queue has mail for ``destination``; ``low_volume``: of a submitter with little of it."""
        view = self.zones.get(zone)
        if view is not None:
            view.ready(destination, low_volume=low_volume)


class ZoneWorkers:
    """Delivers the mail of one zone. ``start_workers`` is called whenever something may have changed."""

    def __init__(self, name: str, zone: Zone, context: DeliveryContext, make_agent: MakeAgent) -> None:
        self.name = name
        self._context = context
        self._loop = asyncio.get_running_loop()
        due_in_s = next_token_in_s(context.queue, name)
        self._egress = ZoneEgress(name, zone, context.egress, self._resolve, self._ready_again)
        now_s = clock.monotonic_s()
        self.scheduler = Scheduler(zone, now_s, self._on_room, due_in_s, self._egress)
        self._make_agent = make_agent
        self._agent = make_agent(name, zone)
        self._messages = MessageEgress(context.egress, self._egress.routes, self._egress.closed)
        self._worker = Worker(context, zone, self.scheduler, self._messages)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._failing = FailingDestinations(name, context.queue, self.scheduler, self.ready)

    @property
    def sessions(self) -> int:
        """How many sessions its workers have."""
        return self.scheduler.sessions

    @property
    def look_ups(self) -> int:
        """How many domains are looked up before their first delivery, in all zones."""
        return len(self._context.egress.look_ups)

    # ---- what the relay calls

    def ready(self, destination: str, *, low_volume: bool = False) -> None:
        """The window has mail for ``destination``; that of a low-volume submitter is urgent."""
        self.scheduler.ready(destination, clock.monotonic_s(), urgent=low_volume)
        self.start_workers()

    def ready_all(self) -> None:
        """Schedule every destination that has mail in the window."""
        now_s = clock.monotonic_s()
        for destination in self._context.queue.windows.zone(self.name).destinations():
            self.scheduler.ready(destination, now_s)
        self.start_workers()

    def _resolve(self, domain: str) -> Awaitable[MxAnswer]:
        return self._agent.resolve(domain)

    def _has_mail(self, destination: str) -> bool:
        return self._context.queue.windows.zone(self.name).has_mail(destination)

    def _ready_again(self, destination: str) -> bool:
        """A destination may be served again; returns whether it has mail."""
        has_mail = self._has_mail(destination)
        if has_mail:
            answers = self._egress.provider_answers(destination)
            self.scheduler.ready(destination, clock.monotonic_s(), answers=answers)
            self._loop.call_soon(self.start_workers)  # not now: each that starts wakes the next one
        return has_mail

    def configure(self, zone: Zone) -> None:
        """Use new settings after a reload. Sessions opened under the old ones end with their transaction."""
        now_s = clock.monotonic_s()
        self.scheduler.configure(zone, now_s)
        for destination in self._egress.configure(zone):
            if self._has_mail(destination):  # which may all be on disk
                self.scheduler.ready(destination, now_s)
        self._agent.close()
        self._agent = self._make_agent(self.name, zone)  # a running request ends with the old agent
        self._worker = Worker(self._context, zone, self.scheduler, self._messages)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.ready_all()

    def describe(self, destination: str) -> str:
        """Why ``destination`` is unreachable; empty when it is not."""
        return self._failing.describe(destination)

    def why(self, destination: str, pool: PoolKey = USUAL_KEY) -> Constraint | None:
        """The constraint that keeps mail for ``destination`` that leaves from ``pool`` waiting; None: it has its turn next, or is being sent."""
        now_s = clock.monotonic_s()
        binding = self.scheduler.binding(destination, now_s, pool)
        if binding is None:
            return None
        return constraint_of(binding, self.name, now_s, clock.now_ms())

    def stopped(self) -> Collection[str]:
        """The destinations whose mail waits for the end of what an operator has suspended."""
        return self._egress.stopped()

    def provider(self, destination: str) -> str:
        """Whose limits the mail for ``destination`` has; empty while that is not known, and where there is none."""
        return self._messages.provider(destination)

    def probe(self, destination: str | None) -> None:
        """Try an unreachable destination now, or all of them (None)."""
        for name in self.scheduler.resume(destination):
            self.ready(name)

    async def close(self, grace_s: float) -> None:
        """Finish the running transactions within ``grace_s``, then cancel the remaining ones."""
        self._stopping = True
        self._failing.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        self._agent.close()

    # ---- starting workers

    def start_workers(self) -> None:
        """Start as many workers as limits and mail allow; at the zone's rate limit, later."""
        while not self._stopping:
            now_s = clock.monotonic_s()
            slot = self.scheduler.next(now_s)
            if slot is None:
                bucket = self.scheduler.bucket
                if bucket is not None and self._timer is None:
                    wait_s = bucket.wait_s(now_s)
                    if wait_s > 0:
                        self._timer = self._loop.call_later(wait_s, self._on_timer)
                return
            task = self._loop.create_task(self._work(slot))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _on_timer(self) -> None:
        self._timer = None
        self.start_workers()

    def _on_room(self, destination: Destination) -> None:
        """A session was opened: more workers may follow, for this destination or others."""
        if self._has_mail(destination.name):
            self.scheduler.ready(destination.name, clock.monotonic_s())
        self.start_workers()

    async def _work(self, slot: WorkerSlot) -> None:
        has_mail = True
        try:
            has_mail = await self._serve(slot)
        except QueueUnavailable:
            self._stopping = True  # nothing can be settled, so nothing may be sent
        except Exception:
            log.exception("a worker of %s failed; another follows", self.name)
            await asyncio.sleep(DEFECT_PAUSE_S)
        finally:
            if self.scheduler.ended(slot, clock.monotonic_s(), has_mail=has_mail):
                self._loop.call_soon(self.start_workers)
            else:
                self.start_workers()

    # ---- one worker

    async def _serve(self, slot: WorkerSlot) -> bool:
        """Deliver leases of a destination until there is a reason to end; False: it has no more mail."""
        destination, served = slot.destination, 0
        settled: CommitFuture | None = None
        while not self._stopping:
            lease = self._take_lease(slot, served)
            if lease is NoLease.NOT_NOW:
                break
            if lease is NoLease.NO_MAIL:
                return bool(self._context.queue.windows.zone(self.name).pool_keys(destination.name))
            if lease is NoLease.LOOK_AGAIN:
                await asyncio.sleep(0)
                continue
            if (refusal := self._worker.check.refusal(lease)) is not None:
                await refusal
                continue
            try:
                result = await self._worker.deliver(lease, self._idle_limits(slot), slot, self._agent)
            except QueueUnavailable:
                raise
            except Exception:
                message = lease.active.id
                log.exception("an internal error in the delivery of %s to %s", message, destination.name)
                result = LeaseResult(await self._worker.defer_after_defect(lease))
            if result.recipients_max:
                destination.learn_recipients_max(result.recipients_max, clock.monotonic_s())
            follows = decide_next(result, suspended=destination.failing)
            if follows is not Next.CONTINUE and await self._ends(follows, slot, result):
                return True
            if settled is not None:
                await settled  # a worker has one unfinished settle at most
            settled = result.settled
            served += 1
            if self.scheduler.should_yield(slot, served):
                break
        return True

    async def _ends(self, follows: Next, slot: WorkerSlot, result: LeaseResult) -> bool:
        """Do what follows a result that is not as usual. Returns whether the worker ends."""
        match follows:
            case Next.WAIT:
                await result.settled
                self._egress.not_permitted(slot)
            case Next.LEARN_LIMIT:
                slot.destination.limit_reached(clock.monotonic_s())
            case Next.SUSPEND:
                assert result.failure is not None
                await result.settled
                await self._failing.suspend(slot, result.failure, self._worker)
            case _:
                self._failing.resume(slot.destination)
                return False
        return True

    def _take_lease(self, slot: WorkerSlot, served: int) -> Lease | NoLease:
        """The next lease for a worker that has ``served`` others."""
        scheduler, queue, destination = self.scheduler, self._context.queue, slot.destination
        window = queue.windows.zone(self.name)
        if served and not window.has_mail(destination.name, slot.pool_key):
            queue.windows.feed(self.name)  # as a lease does
            return self._no_mail(destination.name)  # before anything is granted for another message
        now_s = clock.monotonic_s()
        if not scheduler.next_lease(slot, now_s):
            return NoLease.NOT_NOW
        settings = slot.route.settings if slot.route else scheduler.table.settings(destination.name)
        recipients = destination.recipients(settings.recipients_per_transaction, now_s)
        try:
            lease = queue.lease(self.name, destination.name, recipients, slot.pool_key)
        except QueueCorrupt as exc:
            log.critical("not delivered: %s", exc)
            return NoLease.LOOK_AGAIN
        if lease is None:
            if not window.waiting(destination.name) and window.refills.may_refill(destination.name):
                return NoLease.LOOK_AGAIN  # one refill reads a limited number of keys
            return self._no_mail(destination.name)
        if faults.armed:
            faults.reach("lease.taken")
        if scheduler.leased(slot, now_s, more=window.has_mail(destination.name)):
            self.start_workers()
        return lease

    def _no_mail(self, destination: str) -> NoLease:
        """The worker has no mail any more. There may be some that leaves from another pool than its own."""
        window = self._context.queue.windows.zone(self.name)
        if not window.pool_keys(destination):
            self.scheduler.empty(destination)
        if not window.has_mail(destination):
            window.set_reachable(destination)  # nothing waits for its answer any more
        return NoLease.NO_MAIL

    def _idle_limits(self, slot: WorkerSlot) -> tuple[int, int]:
        """How many idle sessions the zone, and the destination, may have meanwhile."""
        scheduler, destination = self.scheduler, slot.destination
        return (
            scheduler.zone.connections - scheduler.active,
            destination.connections_max - destination.active,
        )

    async def give_up_old(self) -> None:
        """Mail that waits for a permit expires at its time, and its senders hear of the delay."""
        for destination, pool, reason in self._egress.waiting():
            zone, place = self.scheduler.table.settings(destination), (self.name, destination, pool)
            await expire_waiting(self._context.queue, self._worker, place, zone, reason)
            self._ready_again(destination)  # a lease may have read mail of other pools from disk
            await asyncio.sleep(0)
