"""The workers of one zone: started when there is mail and a free allowance, gone when there is not."""

import asyncio
import logging
from collections.abc import Callable

from zonemta_py.config.schema import Zone
from zonemta_py.core import clock, faults
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.request import DeliveryContext
from zonemta_py.delivery.worker import Delivery, DeliveryAgent, Worker
from zonemta_py.queue.active import Lease
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.queue.format.records import born
from zonemta_py.schedule.scheduler import Destination, Scheduler

BROKEN_S = 1.0  # a pause after a defect of ours, so that it does not become a busy loop

log = logging.getLogger(__name__)


class ZoneDelivery:
    """Delivers the mail of one zone. ``pump`` is called whenever something may have changed."""

    def __init__(
        self,
        name: str,
        zone: Zone,
        outbound: DeliveryContext,
        make_carrier: Callable[[str, Zone], DeliveryAgent],
    ) -> None:
        self.name = name
        self._outbound = outbound
        self._loop = asyncio.get_running_loop()
        self.scheduler = Scheduler(zone, clock.monotonic_s())
        self._make_carrier = make_carrier
        self._carrier = make_carrier(name, zone)
        self._worker = Worker(outbound, zone)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    def configure(self, zone: Zone) -> None:
        """Take over settings after a reload; sessions made under the old ones end."""
        self.scheduler.configure(zone, clock.monotonic_s())
        self._carrier.close()
        self._carrier = self._make_carrier(self.name, zone)  # a worker under way ends with the old one
        self._worker = Worker(self._outbound, zone)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.look_around()

    def look_around(self) -> None:
        """Take up whatever the window holds already."""
        window = self._outbound.queue.windows.zone(self.name)
        for destination in window.destinations():
            self.scheduler.ready(destination)
        self.pump()

    def ready(self, destination: str, *, light: bool = False) -> None:
        """The window has mail for ``destination``; ``light``: of somebody who should not wait in line."""
        self.scheduler.ready(destination, first=light)
        self.pump()

    def describe(self, destination: str) -> str:
        """Why mail for ``destination`` rests; empty when nothing is known to be wrong."""
        state = self.scheduler.state(destination)
        if state is None or not state.failing:
            return ""
        rest_s = max(0, round(state.down_until_s - clock.monotonic_s()))
        return f"next try in {rest_s} s: {state.reason}"

    def probe(self, destination: str | None) -> None:
        """An operator wants resting destinations tried now: one, or all."""
        for name in self.scheduler.end_rests(destination):
            self.ready(name)

    def pump(self) -> None:
        """Start as many workers as limits and mail allow."""
        while not self._stopping:
            now_s = clock.monotonic_s()
            bucket = self.scheduler.bucket
            if bucket is not None and bucket.wait_s(now_s) > 0:
                self._pump_later(bucket.wait_s(now_s))
                return
            destination = self.scheduler.next(now_s)
            if destination is None:
                return
            task = self._loop.create_task(self._work(destination))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _pump_later(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(delay_s, self._pump_now)

    def _pump_now(self) -> None:
        self._timer = None
        self.pump()

    async def _work(self, destination: Destination) -> None:
        more = True
        try:
            more = await self._serve(destination)
        except QueueUnavailable:
            self._stopping = True  # nothing can be settled, so nothing may be sent
        except Exception:
            log.exception("the worker of %s for %s failed; another follows", self.name, destination.name)
            await asyncio.sleep(BROKEN_S)
        finally:
            self.scheduler.ended(destination, has_mail=more)
            self.pump()

    async def _serve(self, destination: Destination) -> bool:
        """Deliver until there is no mail, no allowance or no destination; True: there may be more."""
        served = 0
        settled: CommitFuture | None = None
        while not self._stopping:
            zone, bucket = self.scheduler.zone, self.scheduler.bucket
            window = self._outbound.queue.windows.zone(self.name)
            now_s = clock.monotonic_s()
            if bucket is not None and bucket.wait_s(now_s) > 0:
                return True
            try:
                lease = self._outbound.queue.lease(
                    self.name, destination.name, zone.recipients_per_transaction
                )
            except QueueCorrupt as exc:
                log.critical("not delivered: %s", exc)
                await asyncio.sleep(0)
                continue
            if lease is None:
                if window.may_refill(destination.name):
                    await asyncio.sleep(0)  # a refill reads so much at a time, and found nothing yet
                    continue
                self.scheduler.empty(destination)
                return False
            faults.reach("lease.taken")
            if self.scheduler.leased(destination, more=window.has_mail(destination.name)):
                self.pump()
            if bucket is not None:
                bucket.take(now_s)
            delivery = await self._deliver(lease, destination)
            if delivery.crowded:
                destination.crowded(clock.monotonic_s())
                return True
            if delivery.failure is not None:
                await delivery.settled
                await self._rest(destination, delivery.failure, zone)
                return True
            if destination.answered():
                self._outbound.queue.windows.zone(self.name).awake(destination.name)
                self.ready(destination.name)
            if settled is not None:
                await settled  # one settle under way per worker, no more
            settled = delivery.settled
            served += 1
            if self.scheduler.should_yield(destination, served):
                return True
        return True

    async def _deliver(self, lease: Lease, destination: Destination) -> Delivery:
        scheduler = self.scheduler
        room = (
            scheduler.zone.connections - scheduler.active,
            scheduler.per_destination - destination.active,
        )
        worker = self._worker
        try:
            return await worker.deliver(lease, room, destination, self._carrier)
        except QueueUnavailable:
            raise
        except Exception:
            log.exception("delivery of %s to %s failed here", lease.active.id, destination.name)
            return Delivery(worker.broken(lease))

    async def _rest(self, destination: Destination, failure: Attempt, zone: Zone) -> None:
        """No session could be had: leave the destination alone for a while and make room for others.

        Its mail stays on disk unattempted, except what is too old, which expires with this failure.
        """
        now_s = clock.monotonic_s()
        self.scheduler.failed(destination, self._worker.first_delay_s(), now_s, failure.text)
        self._outbound.queue.windows.rest(self.name, destination.name)
        self._loop.call_later(destination.down_until_s - now_s, self._rested, destination)
        oldest_ms = clock.now_ms() - int(zone.retry.give_up_after * 1000)
        while lease := self._outbound.queue.lease(
            self.name, destination.name, zone.recipients_per_transaction
        ):
            if born(lease.active.meta, lease.active.id) > oldest_ms:
                self._outbound.queue.release(lease)
                self._outbound.queue.windows.rest(self.name, destination.name)
                return
            await self._worker.give_up(lease, failure)

    def _rested(self, destination: Destination) -> None:
        """The rest is over, or would be if this timer had not come a little early."""
        left_s = destination.down_until_s - clock.monotonic_s()
        if left_s > 0:
            self._loop.call_later(left_s + 0.001, self._rested, destination)
        else:
            self.ready(destination.name)

    async def close(self, grace_s: float) -> None:
        """Finish the transactions under way, at most ``grace_s``, then cut off what is left."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        self._carrier.close()
