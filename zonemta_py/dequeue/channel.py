"""A zone that a program delivers: where its messages come from, and where their ends go.

The same for a queue of the program's own and for a relay in it.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from zonemta_py.codec import replace
from zonemta_py.config.checks import ZONE_NAME
from zonemta_py.config.schema import Zone
from zonemta_py.delivery import report
from zonemta_py.delivery.outbound import Outbound
from zonemta_py.dequeue.disposition import Disposition, Said, outcomes
from zonemta_py.dequeue.errors import NoSuchZone
from zonemta_py.errors import QueueCorrupt
from zonemta_py.model import Fate
from zonemta_py.queue.chunks import MessageWriter
from zonemta_py.queue.lease import Lease
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.requeue import copied, requeued
from zonemta_py.queue.transitions import Outcome
from zonemta_py.schedule.retry import Policy, make_policy

TRANSPORT = "dequeue"
DESTINATION = "*"  # the one queue in which the mail of such a zone waits, whatever its domains
RECIPIENTS_MAX = 1_000_000  # of one lease

_DAMAGED = "the stored message is damaged; the operator has been told"


@dataclass(slots=True)
class Channels:
    """The zones of a queue that programs deliver. ``bells`` ring when there is mail for one."""

    outbound: Outbound
    loop: asyncio.AbstractEventLoop
    everywhere: bool  # every zone is one, configured or not
    bells: dict[str, Callable[[], None]] = field(default_factory=dict)

    def zone(self, name: str) -> Zone:
        """The settings of a zone. Raises NoSuchZone."""
        zones = self.outbound.config.zones
        if self.everywhere and ZONE_NAME.match(name):
            return zones.get(name, zones["default"])
        if name not in zones:
            raise NoSuchZone(f"there is no zone '{name}'")
        if zones[name].transport != TRANSPORT:
            raise NoSuchZone(
                f"zone '{name}' is delivered by the relay itself; zones.{name}.transport: {TRANSPORT} "
                "leaves it to programs"
            )
        return zones[name]

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
        self._policy = policy or make_policy(settings.retry)
        # A program's own delays are kept to the second.
        self._retry = settings.retry if policy is None else dataclasses.replace(settings.retry, jitter=0)

    @property
    def queue(self) -> Queue:
        """The queue below."""
        return self.channels.outbound.queue

    def lease(self) -> Lease | None:
        """The oldest message that waits, with all of its recipients that do; None: there is none."""
        return self.queue.lease(self.name, DESTINATION, RECIPIENTS_MAX)

    async def settle(self, lease: Lease, said: Mapping[str, Said]) -> None:
        """End a message, all in one batch: reports, what is deferred, the end of the old one.

        Raises QueueCorrupt when its body cannot be copied for those that are deferred: then all are.
        Raises QueueUnavailable.
        """
        queue, now_ms = self.queue, self.queue.now()
        ended = self._outcomes(lease, said, now_ms)
        deferred = sum(1 for outcome in ended if outcome.fate is Fate.DEFERRED)
        if not 0 < deferred < len(ended):
            after = report.aftermath(self.channels.outbound, self.settings, lease.live, ended)
            await queue.settle(lease, ended, after)
            return
        try:
            writer = await copied(queue, lease.live)
        except QueueCorrupt:
            everybody = {r.address: Said(Disposition.DEFERRED, _DAMAGED) for r in lease.recipients}
            await self.settle(lease, everybody)
            raise
        await self._split(lease, writer, ended, now_ms)

    async def _split(
        self, lease: Lease, writer: MessageWriter, ended: Sequence[Outcome], now_ms: int
    ) -> None:
        """The deferred ones go on in the message whose body ``writer`` has."""
        again, ended = requeued(writer, lease.live, ended, now_ms)
        after = report.aftermath(self.channels.outbound, self.settings, lease.live, ended)
        if after.warned:
            again = replace(again, meta=again.meta._replace(warned=True))
        await self.queue.settle(lease, ended, replace(after, reports=[*after.reports, again]))

    def _outcomes(self, lease: Lease, said: Mapping[str, Said], now_ms: int) -> list[Outcome]:
        spread = self.channels.outbound.rng.random()
        return outcomes(lease.live, lease.recipients, said, self._retry, self._policy, now_ms, spread)
