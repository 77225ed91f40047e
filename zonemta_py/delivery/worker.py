"""One lease: from its recipients to an order, from what came of it to a settle."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Protocol

from zonemta_py.config.schema import Zone
from zonemta_py.core import clock
from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import AgentLost
from zonemta_py.core.model import Attempt
from zonemta_py.delivery import bounces as report
from zonemta_py.delivery import outcome as settle
from zonemta_py.delivery.request import DeliveryContext, DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.queue.active import Lease
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.interrupted import cut_off
from zonemta_py.schedule.retry import RetryContext, make_policy, next_attempt
from zonemta_py.schedule.scheduler import Destination
from zonemta_py.smtp import verp
from zonemta_py.smtp.classify import Phase
from zonemta_py.smtp.dsn_params import write_notify
from zonemta_py.transports.pipelining import DsnOptions

REST_S = 300.0  # of a destination, when the policy names no time

log = logging.getLogger(__name__)


class Delivery(Struct, frozen=True):
    """How an attempt ended: the batch of its settle, and why no session was had, if so.

    ``crowded``: none could be had beside those that work, and the lease was given back untried.
    """

    settled: CommitFuture
    failure: Attempt | None = None
    crowded: bool = False


class DeliveryAgent(Protocol):
    """A sender, here or in another process."""

    async def send(self, order: DeliveryRequest, errand: RequestContext) -> DeliveryResult:
        """Carry out ``order``."""

    def close(self) -> None:
        """No order follows; sessions at rest end, and others when theirs is carried out."""


class _Errand:
    """The lease behind an order, for the one who carries it out."""

    __slots__ = ("_destination", "_lease", "_live", "_queue", "started", "working")

    def __init__(self, queue: Queue, lease: Lease, destination: Destination) -> None:
        self._queue = queue
        self._lease = lease
        self._live = lease.active
        self._destination = destination
        self.started: Awaitable[None] = CommitFuture()
        self.working = False

    def body(self) -> bytes | AsyncIterator[bytes]:
        """The body, whole when it is at hand."""
        if self._live.body is not None:
            return self._live.body
        chunks = self._queue.body(self._live)
        if self._queue.store.is_remote():
            return _in_threads(chunks)
        return b"".join(chunks) if self._live.mark.chunks <= 1 else _each(chunks)

    def opened(self) -> None:
        """The worker holds a session: the transaction begins."""
        self.working = True
        self._destination.working += 1
        self.started = self._queue.start(self._lease)

    def over(self) -> None:
        """It does not any more."""
        if self.working:
            self._destination.working -= 1


async def _each(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def _in_threads(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


class Worker:
    """Delivers one lease after another of one zone."""

    def __init__(self, outbound: DeliveryContext, zone: Zone) -> None:
        self._outbound = outbound
        self._zone = zone
        self._policy = make_policy(zone.retry, log.error)

    async def deliver(
        self, lease: Lease, room: tuple[int, int], destination: Destination, carrier: DeliveryAgent
    ) -> Delivery:
        """Attempt ``lease``.

        ``room``: how many sessions may rest in the zone and at the destination while this runs.
        """
        queue, meta = self._outbound.queue, lease.active.meta
        expands = self._zone.sender_verp or verp.is_verp(meta.sender)
        if expands:
            queue.narrow(lease, 1)
        order = self._order(lease, room, expands=expands)
        errand = _Errand(queue, lease, destination)
        try:
            sent = await carrier.send(order, errand)
        except AgentLost as exc:
            log.warning("%s: %s; its lease is given back", lease.active.id, exc)
            return Delivery(cut_off(queue, lease) if exc.uncertain else queue.release(lease))
        finally:
            errand.over()
        if sent.failure is None:
            return Delivery(self._settle(lease, sent.attempts))
        # Others hold a session, or have just put one to rest: the peer is there, and full.
        if not errand.working and (destination.working or sent.held) and not sent.permanent:
            return Delivery(queue.release(lease), crowded=True)
        return Delivery(self._settle(lease, sent.attempts), None if sent.permanent else sent.failure)

    def _order(self, lease: Lease, room: tuple[int, int], *, expands: bool) -> DeliveryRequest:
        active, meta = lease.active, lease.active.meta
        recipients = [recipient.address for recipient in lease.recipients]
        return DeliveryRequest(
            lease.destination,
            active.id,
            lease.recipients[0].record.domain,
            verp.expand(meta.sender, recipients[0]) if expands else meta.sender,
            recipients,
            meta.header,
            len(meta.header) + 2 + active.mark.size,
            meta.eight_bit,
            meta.smtputf8,
            _dsn_options(lease),
            room,
            meta.body_hash,
        )

    def give_up(self, lease: Lease, failure: Attempt) -> CommitFuture:
        """Settle ``lease`` with a failure that another lease of its destination met."""
        return self._settle(lease, [failure] * len(lease.recipients))

    def first_delay_s(self) -> float:
        """How long a message waits after its first failure; a destination that is down rests as long."""
        now_ms = clock.now_ms()
        end_ms = now_ms + int(self._zone.retry.give_up_after * 1000)
        due_ms = next_attempt(self._policy, RetryContext(now_ms, 1, now_ms, end_ms), 0)
        return (due_ms - now_ms) / 1000 if due_ms is not None else REST_S

    def broken(self, lease: Lease) -> CommitFuture:
        """A defect of ours kept ``lease`` from being attempted: its recipients are deferred, not lost."""
        here = Attempt(
            Phase.CONNECT.value, 0, "4.3.0", "internal error of the relay; the operator has been told"
        )
        return self._settle(lease, [here] * len(lease.recipients))

    def _settle(self, lease: Lease, attempts: Sequence[Attempt | None]) -> CommitFuture:
        outbound, active, retry = self._outbound, lease.active, self._zone.retry
        now_ms, priority = clock.now_ms(), settle.priority(active.meta.header, retry.policy)
        outcomes = [
            settle.decide(
                active.meta,
                priority,
                recipient,
                attempt,
                retry,
                self._policy,
                now_ms,
                outbound.rng.random(),
            )
            for recipient, attempt in zip(lease.recipients, attempts, strict=False)
            if attempt is not None
        ]
        after = report.aftermath(outbound, self._zone, active, outcomes)
        return outbound.queue.settle(lease, outcomes, after)


def _dsn_options(lease: Lease) -> DsnOptions | None:
    """What the client asked about reports, for a peer that takes over the duty; None: nothing."""
    meta = lease.active.meta
    mail = f" RET={meta.ret}" if meta.ret else ""
    mail += f" ENVID={meta.envid}" if meta.envid else ""
    if not mail and not any(r.record.notify or r.record.orcpt for r in lease.recipients):
        return None
    rcpts = []
    for recipient in lease.recipients:
        record = recipient.record
        own = f" NOTIFY={write_notify(record.notify)}" if record.notify else ""
        rcpts.append(own + (f" ORCPT={record.orcpt}" if record.orcpt else ""))
    return DsnOptions(mail, rcpts)
