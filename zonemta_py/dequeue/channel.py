"""A zone that a program delivers: where its messages come from, and where their ends go.

The same for a queue of the program's own and for a relay in it.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from zonemta_py.config.checks import ZONE_NAME
from zonemta_py.config.schema import Zone
from zonemta_py.core.codec import replace
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.delivery import bounces as report
from zonemta_py.delivery.request import DeliveryContext
from zonemta_py.dequeue.disposition import Said, outcomes
from zonemta_py.dequeue.errors import NoSuchZone
from zonemta_py.queue.active import Lease
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.transitions import Outcome, SettleEffects
from zonemta_py.queue.upkeep.requeue import copied, requeued
from zonemta_py.routing import DEQUEUE_DESTINATION, DEQUEUE_TRANSPORT
from zonemta_py.schedule.retry import Policy, guarded, make_policy

RECIPIENTS_MAX = 1_000_000  # of one lease

log = logging.getLogger(__name__)

PUT_OFF_MS = 300_000  # until the next attempt of what could not be settled as its program said

_NOT_CARRIED_OUT = Attempt("dot", 0, "4.3.0", "the program's verdict could not be carried out")


class Stoppable(Protocol):
    """Whoever hands out messages."""

    async def stop(self, grace_s: float) -> None:
        """Begin nothing new, and wait so long at most."""


@dataclass(slots=True)
class Channels:
    """The zones of a queue that programs deliver. ``bells`` ring when there is mail for one."""

    outbound: DeliveryContext
    loop: asyncio.AbstractEventLoop
    everywhere: bool  # every zone is one, configured or not
    bells: dict[str, Callable[[], None]] = field(default_factory=dict)
    crews: set[Stoppable] = field(default_factory=set)

    def zone(self, name: str) -> Zone:
        """The settings of a zone. Raises NoSuchZone."""
        zones = self.outbound.config.zones
        if self.everywhere and ZONE_NAME.match(name):
            return zones.get(name, zones["default"])
        if name not in zones:
            raise NoSuchZone(f"there is no zone '{name}'")
        if zones[name].transport != DEQUEUE_TRANSPORT:
            raise NoSuchZone(
                f"zone '{name}' is delivered by the relay itself; zones.{name}.transport: {DEQUEUE_TRANSPORT} "
                "leaves it to programs"
            )
        return zones[name]

    def accepts(self, zone: str) -> None:
        """Raises NoSuchZone for one that new mail cannot go to."""
        if zone not in self.outbound.config.zones and not (self.everywhere and ZONE_NAME.match(zone)):
            raise NoSuchZone(f"there is no zone '{zone}'")

    async def close(self, grace_s: float) -> None:
        """No message is handed out any more; routines at work have ``grace_s``."""
        await asyncio.gather(*(crew.stop(grace_s) for crew in list(self.crews)))

    def ring(self, zone: str) -> None:
        """There is mail for ``zone``."""
        bell = self.bells.get(zone)
        if bell is not None:
            bell()


class HasChannels(Protocol):
    """An open ``Queue``, or a started ``Relay``."""

    @property
    def channels(self) -> Channels:
        """What its programs may dequeue. Raises LocalError when it is not open."""


class Channel:
    """One zone, while a program dequeues it. ``policy`` says when deferred recipients are tried again."""

    def __init__(self, channels: Channels, zone: str, policy: Policy | None) -> None:
        self.name = zone
        self.channels = channels
        self.settings = settings = channels.zone(zone)
        self._policy = (
            make_policy(settings.retry, log.error) if policy is None else guarded(policy, log.error)
        )
        # A program's own delays are kept to the second.
        self._retry = settings.retry if policy is None else dataclasses.replace(settings.retry, jitter=0)

    @property
    def queue(self) -> Queue:
        """The queue below."""
        return self.channels.outbound.queue

    def lease(self) -> Lease | None:
        """The oldest message that waits, with all of its recipients that do; None: there is none."""
        return self.queue.lease(self.name, DEQUEUE_DESTINATION, RECIPIENTS_MAX)

    async def settle(self, lease: Lease, said: Mapping[str, Said]) -> None:
        """End a message, all in one batch: reports, what is deferred, the end of the old one.

        When it raises, everybody is deferred: QueueCorrupt when the body cannot be copied for those that
        go on, whatever a backoff function raises. QueueUnavailable: they are, after the next start.
        """
        try:
            ended, after = await self._prepared(lease, said)
        except BaseException:
            if self.queue.failure is None:
                self._put_off(lease)
            raise
        await self.queue.settle(lease, ended, after)

    async def _prepared(
        self, lease: Lease, said: Mapping[str, Said]
    ) -> tuple[list[Outcome], SettleEffects]:
        """What the batch will hold."""
        queue, active, now_ms = self.queue, lease.active, self.queue.now()
        ended = self._outcomes(lease, said, now_ms)
        deferred = sum(1 for outcome in ended if outcome.kind is OutcomeKind.DEFERRED)
        if not 0 < deferred < len(ended):
            return ended, report.aftermath(self.channels.outbound, self.settings, active, ended)
        writer = await copied(queue, active)
        try:
            again, ended = requeued(writer, active, ended, now_ms)
            after = report.aftermath(self.channels.outbound, self.settings, active, ended)
            if after.warned:
                again = replace(again, meta=again.meta._replace(warned=True))
            return ended, replace(after, reports=[*after.reports, again])
        except BaseException:
            queue.abort(writer)
            raise

    def _put_off(self, lease: Lease) -> None:
        """Defer everybody, without asking anybody when."""
        due_ms = self.queue.now() + PUT_OFF_MS
        outcomes = [Outcome(r, OutcomeKind.DEFERRED, _NOT_CARRIED_OUT, due_ms) for r in lease.recipients]
        self.queue.settle(lease, outcomes)

    def _outcomes(self, lease: Lease, said: Mapping[str, Said], now_ms: int) -> list[Outcome]:
        spread = self.channels.outbound.rng.random()
        return outcomes(lease.active, lease.recipients, said, self._retry, self._policy, now_ms, spread)
