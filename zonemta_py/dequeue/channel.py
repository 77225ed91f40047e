"""A zone that a program delivers: leases its messages, and settles them as the program says.

The same for a queue of the program's own and for a relay in the program.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from zonemta_py.config.checks import ZONE_NAME
from zonemta_py.config.values import Percent
from zonemta_py.config.zones import Zone
from zonemta_py.core.codec import replace
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.delivery.report_composer import DeliveryContext
from zonemta_py.delivery.reports import settle_effects
from zonemta_py.delivery.send_check import SendCheck
from zonemta_py.dequeue.envelope import NoSuchZone, RecipientVerdict, outcomes
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.outcome import Outcome, SettleEffects
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.move import copy_body, requeue
from zonemta_py.routing import DEQUEUE_DESTINATION, DEQUEUE_TRANSPORT
from zonemta_py.schedule.retry import RetryPolicy, guarded, make_policy
from zonemta_py.storage.open import DiskSpace

RECIPIENTS_MAX = 1_000_000  # of one lease

log = logging.getLogger(__name__)

RETRY_AFTER_FAILURE_MS = 300_000  # delay after a settlement that failed

_NOT_SETTLED = Attempt("dot", 0, "4.3.0", "the program's disposition could not be settled")


class Stoppable(Protocol):
    """Calls routines with messages until it is stopped."""

    async def stop(self, grace_s: float) -> None:
        """Start no further routine; wait up to ``grace_s`` for those that run."""


@dataclass(slots=True)
class Channels:
    """The zones of a queue that programs deliver.

    ``wakeups``: a callback per dequeued zone, called when it has mail. ``pools``: one per dequeue call.
    """

    context: DeliveryContext
    loop: asyncio.AbstractEventLoop
    all_zones: bool  # every zone may be dequeued, configured or not
    wakeups: dict[str, Callable[[], None]] = field(default_factory=dict)
    pools: set[Stoppable] = field(default_factory=set)
    disk_space: DiskSpace = field(init=False)

    def __post_init__(self) -> None:
        queue, settings = self.context.queue, self.context.config.queue
        self.disk_space = DiskSpace(settings.directory, settings.min_free_disk, queue.store.space)

    def zone(self, name: str) -> Zone:
        """The settings of a zone. Raises NoSuchZone."""
        zones = self.context.config.zones
        if self.all_zones and ZONE_NAME.match(name):
            return zones.get(name, zones["default"])
        if name not in zones:
            raise NoSuchZone(f"there is no zone '{name}'")
        if zones[name].transport != DEQUEUE_TRANSPORT:
            raise NoSuchZone(
                f"zone '{name}' is delivered by the relay itself; zones.{name}.transport: {DEQUEUE_TRANSPORT} "
                "leaves it to programs"
            )
        return zones[name]

    def require(self, zone: str) -> None:
        """Raises NoSuchZone for a zone that cannot accept new mail."""
        if zone not in self.context.config.zones and not (self.all_zones and ZONE_NAME.match(zone)):
            raise NoSuchZone(f"there is no zone '{zone}'")

    async def close(self, grace_s: float) -> None:
        """Start no further routine; those that run have ``grace_s`` to end."""
        await asyncio.gather(*(pool.stop(grace_s) for pool in list(self.pools)))

    def wake(self, zone: str) -> None:
        """Report that ``zone`` has mail."""
        wakeup = self.wakeups.get(zone)
        if wakeup is not None:
            wakeup()


class HasChannels(Protocol):
    """An open ``Queue``, or a started ``Relay``."""

    @property
    def channels(self) -> Channels:
        """The zones that programs may dequeue. Raises LocalError when it is not open."""


class Channel:
    """One zone, while a program dequeues it. ``policy`` replaces the retry policy of the zone."""

    def __init__(self, channels: Channels, zone: str, policy: RetryPolicy | None) -> None:
        self.name = zone
        self.channels = channels
        self.settings = settings = channels.zone(zone)
        self._check = SendCheck(channels.context, lambda destination: settings)
        self._policy = (
            make_policy(settings.retry, log.error, channels.context.hooks.backoff_function)
            if policy is None
            else guarded(policy, log.error)
        )
        # The delays of a program's own policy are exact.
        self._retry = (
            settings.retry if policy is None else dataclasses.replace(settings.retry, jitter=Percent(0))
        )

    @property
    def queue(self) -> Queue:
        return self.channels.context.queue

    def lease(self) -> Lease | None:
        """The oldest waiting message with all of its waiting recipients; None when no message waits, or the zone is suspended."""
        if f"zone:{self.name}" in self.queue.suspended:
            return None
        return self.queue.lease(self.name, DEQUEUE_DESTINATION, RECIPIENTS_MAX)

    def skip(self, lease: Lease) -> Coroutine[Any, Any, None] | None:
        """The end of ``lease`` if a program must not get it now; None if it may. See ``SendCheck``."""
        return self._check.refusal(lease)

    async def settle(self, lease: Lease, verdicts: Mapping[str, RecipientVerdict]) -> None:
        """Settle a message in one batch: its reports, the copy for deferred recipients, its removal.

        Raises QueueCorrupt when the body cannot be copied for the deferred recipients; every recipient is
        then deferred. Raises QueueUnavailable; recovery defers the recipients at the next start.
        """
        try:
            ended, after = await self._prepared(lease, verdicts)
        except BaseException:
            self.defer_all(lease)
            raise
        await self.queue.settle(lease, ended, after)

    async def _prepared(
        self, lease: Lease, verdicts: Mapping[str, RecipientVerdict]
    ) -> tuple[list[Outcome], SettleEffects]:
        """The outcomes and effects that the batch writes."""
        queue, active, now_ms = self.queue, lease.active, self.queue.now()
        ended = self._outcomes(lease, verdicts, now_ms)
        deferred = sum(1 for outcome in ended if outcome.kind is OutcomeKind.DEFERRED)
        if not 0 < deferred < len(ended):
            return ended, await settle_effects(self.channels.context, self.settings, active, ended)
        writer = await copy_body(queue, active)
        try:
            again, ended = requeue(writer, active, ended, now_ms)
            after = await settle_effects(self.channels.context, self.settings, active, ended)
            if after.warned:
                again = replace(again, meta=again.meta._replace(warned=True))
            return ended, replace(after, reports=[*after.reports, again])
        except BaseException:
            queue.abort(writer)
            raise

    def defer_all(self, lease: Lease) -> None:
        """Defer every recipient, without calling the retry policy: it may be what failed; nothing if the queue has failed."""
        if self.queue.failure is not None:
            return
        due_ms = self.queue.now() + RETRY_AFTER_FAILURE_MS
        outcomes = [Outcome(r, OutcomeKind.DEFERRED, _NOT_SETTLED, due_ms) for r in lease.recipients]
        self.queue.settle(lease, outcomes)

    def _outcomes(
        self, lease: Lease, verdicts: Mapping[str, RecipientVerdict], now_ms: int
    ) -> list[Outcome]:
        spread = self.channels.context.rng.random()
        return outcomes(
            lease.active, lease.recipients, verdicts, self._retry, self._policy, now_ms, spread
        )
