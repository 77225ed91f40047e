"""The senders' processes as the queue's process sees them: configured, and fed with orders.

Limits and leases stay here. A session is counted where it is: with the worker that uses it, or with
the process in which it rests, so a zone's connections are exact over all processes.
"""

from collections import Counter
from itertools import count

from zonemta_py import clock
from zonemta_py.config.schema import Config
from zonemta_py.delivery.order import Errand, Order, Sent
from zonemta_py.processes import sender_frames as frames
from zonemta_py.processes.sender_child import SenderChild
from zonemta_py.processes.staff import Staff
from zonemta_py.schedule.dead import DeadAddresses


class Fleet:
    """``size`` sender processes."""

    def __init__(
        self, config: Config, hostname: str, dead: DeadAddresses, size: int, log_level: str
    ) -> None:
        self._config = config
        self._hostname = hostname
        self._dead = dead
        self._log_level = log_level
        self._numbers = count(1)
        self.staff = Staff("sender", size, self._launch)

    async def start(self) -> None:
        """Start them all. Raises OSError."""
        await self.staff.start()

    async def _launch(self, place: int) -> SenderChild:
        child = SenderChild(place, self.staff.lost, self._address)
        await child.start(self._log_level)
        child.send(self._configuration())
        return child

    def _configuration(self) -> frames.Configure:
        return frames.Configure(self._config.text, self._config.path, self._hostname)

    def configure(self, config: Config, hostname: str) -> None:
        """Take over a new configuration; sessions made under the old one end."""
        self._config, self._hostname = config, hostname
        for child in self.staff.children:
            child.send(self._configuration())

    def _address(self, child: SenderChild | None, frame: frames.Address) -> None:
        """A sender found an address dead, or alive again: everybody is told."""
        if frame.spread < 0:
            self._dead.answered(frame.ip)
        else:
            self._dead.timed_out(frame.ip, clock.monotonic_s(), frame.spread)
        for other in self.staff.children:
            if other is not child:
                other.send(frame)

    def forget(self, ip: str | None) -> None:
        """An operator cleared a dead address, or all."""
        for child in self.staff.children:
            child.send(frames.Forget(ip or ""))

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        return [child.pid for child in self.staff.children]

    async def carry(self, zone: str, order: Order, errand: Errand) -> Sent:
        """Have ``order`` carried out by the process that has a session, else the least busy one.

        Raises CarrierLost when that process ends before it is done.
        """
        while not self.staff.children:
            await self.staff.came.wait()
        children, destination = self.staff.children, order.destination
        chosen = max(children, key=lambda child: (child.resting[zone][destination] > 0, -child.active))
        room = await self._room(zone, order, chosen)
        order_here = order if room == order.room else order.with_room(room)
        return await chosen.carry(next(self._numbers), zone, order_here, errand)

    async def _room(self, zone: str, order: Order, chosen: SenderChild) -> tuple[int, int]:
        """How many sessions may rest at ``chosen``; where others keep too many, they let some go first."""
        in_zone, at_destination = order.room
        trims = []
        for child in self.staff.children:
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
        await self.staff.close()


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
