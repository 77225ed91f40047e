"""The senders' processes as the queue's process sees them: started, fed with orders, started again.

Limits and leases stay here. A session is counted where it is: with the worker that uses it, or with
the process in which it rests, so a zone's connections are exact over all processes.
"""

import asyncio
import logging
from collections import Counter
from itertools import count

from zonemta_py import clock
from zonemta_py.config.schema import Config
from zonemta_py.delivery.order import Errand, Order, Sent
from zonemta_py.errors import LocalError
from zonemta_py.processes import frames
from zonemta_py.processes.child import SenderChild
from zonemta_py.schedule.dead import DeadAddresses

BACK_OFF_S = 0.1
BACK_OFF_MAX_S = 30.0
STEADY_S = 60.0  # a process that lived so long starts again at once

log = logging.getLogger(__name__)


class Fleet:
    """``size`` sender processes."""

    def __init__(
        self, config: Config, hostname: str, dead: DeadAddresses, size: int, log_level: str
    ) -> None:
        self._config = config
        self._hostname = hostname
        self._dead = dead
        self._size = size
        self._log_level = log_level
        self._children: list[SenderChild] = []
        self._came = asyncio.Event()  # a child, where there was none
        self._numbers = count(1)
        self._back_off_s = [BACK_OFF_S] * size
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start them all."""
        if not self._config.text:
            raise LocalError("several processes need a configuration that was read from text")
        for place in range(self._size):
            await self._launch(place)

    async def _launch(self, place: int) -> None:
        child = SenderChild(place, self._lost, self._address)
        await child.start(self._log_level)
        child.send(self._configuration())
        self._children.append(child)
        self._came.set()

    def _configuration(self) -> frames.Configure:
        return frames.Configure(self._config.text, self._config.path, self._hostname)

    def configure(self, config: Config, hostname: str) -> None:
        """Take over a new configuration; sessions made under the old one end."""
        self._config, self._hostname = config, hostname
        for child in self._children:
            child.send(self._configuration())

    def _lost(self, child: SenderChild) -> None:
        """A process is gone, with everything that was under way there."""
        self._children.remove(child)
        if not self._children:
            self._came.clear()
        if self._closing:
            return
        place = child.place
        wait_s = self._back_off_s[place]
        steady = clock.monotonic_s() - child.since_s >= STEADY_S
        self._back_off_s[place] = BACK_OFF_S if steady else min(2 * wait_s, BACK_OFF_MAX_S)
        log.error("sender %d (pid %d) ended; another starts in %.1f s", place, child.pid, wait_s)
        task = asyncio.ensure_future(self._relaunch(place, wait_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relaunch(self, place: int, wait_s: float) -> None:
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self._launch(place)
            except OSError as exc:
                log.critical("sender %d cannot be started: %s", place, exc)
                wait_s = min(2 * wait_s, BACK_OFF_MAX_S)
            else:
                return

    def _address(self, child: SenderChild | None, frame: frames.Address) -> None:
        """A sender found an address dead, or alive again: everybody is told."""
        if frame.spread < 0:
            self._dead.answered(frame.ip)
        else:
            self._dead.timed_out(frame.ip, clock.monotonic_s(), frame.spread)
        for other in self._children:
            if other is not child:
                other.send(frame)

    def forget(self, ip: str | None) -> None:
        """An operator cleared a dead address, or all."""
        for child in self._children:
            child.send(frames.Forget(ip or ""))

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        return [child.pid for child in self._children]

    async def carry(self, zone: str, order: Order, errand: Errand) -> Sent:
        """Have ``order`` carried out by the process that has a session, else the least busy one.

        Raises CarrierLost when that process ends before it is done.
        """
        while not self._children:
            await self._came.wait()
        children, destination = self._children, order.destination
        chosen = max(children, key=lambda child: (child.resting[zone][destination] > 0, -child.active))
        room = await self._room(zone, order, chosen)
        order_here = order if room == order.room else order.with_room(room)
        return await chosen.carry(next(self._numbers), zone, order_here, errand)

    async def _room(self, zone: str, order: Order, chosen: SenderChild) -> tuple[int, int]:
        """How many sessions may rest at ``chosen``; where others keep too many, they let some go first."""
        in_zone, at_destination = order.room
        trims = []
        for child in self._children:
            if child is chosen:
                continue
            resting: Counter[str] = child.resting[zone]
            there, all_there = resting[order.destination], resting.total()
            keep_there = min(there, max(0, at_destination))
            keep = min(all_there, max(0, in_zone))
            if keep_there < there or keep < all_there:
                number = next(self._numbers)
                trims.append(child.trim(frames.Trim(number, zone, order.destination, keep, keep_there)))
            in_zone -= keep
            at_destination -= keep_there
        for trimmed in trims:
            await trimmed
        return in_zone, at_destination

    async def close(self) -> None:
        """End them; what is under way there is lost."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(child.close() for child in list(self._children)))


class RemoteCarrier:
    """The senders of one zone, as its workers use them."""

    def __init__(self, fleet: Fleet, zone: str) -> None:
        self._fleet = fleet
        self._zone = zone

    async def send(self, order: Order, errand: Errand) -> Sent:
        """Carry out ``order``. Raises CarrierLost."""
        return await self._fleet.carry(self._zone, order, errand)

    def close(self) -> None:
        """The processes have the sessions; a new configuration or their end closes them."""
