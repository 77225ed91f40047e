"""One sender process from outside: the orders under way there, the sessions that rest there.

The senders' processes as the queue's process sees them: configured, and fed with orders.

Limits and leases stay here. A session is counted where it is: with the worker that uses it, or with
the process in which it rests, so a zone's connections are exact over all processes.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from itertools import count

from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import AgentLost, QueueCorrupt, QueueUnavailable
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.processes import sender_protocol as frames
from zonemta_py.processes.child import Child
from zonemta_py.processes.supervisor import ProcessSupervisor
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.schedule.unreachable import UnreachableHosts


class _Pending:
    """An order under way. ``durable``: its process may have sent the final dot."""

    __slots__ = ("chunks", "destination", "done", "durable", "errand", "reading", "zone")

    def __init__(self, zone: str, destination: str, errand: RequestContext) -> None:
        self.zone = zone
        self.destination = destination
        self.errand = errand
        self.done: asyncio.Future[DeliveryResult] = asyncio.get_running_loop().create_future()
        self.durable = False
        self.chunks: AsyncIterator[bytes] | None = None
        self.reading = 0  # of the body, that ``chunks`` is for


class SenderChild(Child):
    """A sender. ``address`` is called with what it finds dead."""

    kind = "sender"
    module = "zonemta_py.processes.sender_process"

    def __init__(
        self,
        place: int,
        lost: Callable[["SenderChild"], None],
        address: Callable[["SenderChild", frames.Address], None],
    ) -> None:
        super().__init__(place, frames.decode, lost)
        self.resting: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._tell_address = address
        self._pending: dict[int, _Pending] = {}
        self._trims: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def active(self) -> int:
        """Orders under way."""
        return len(self._pending)

    async def deliver(
        self, number: int, zone: str, order: DeliveryRequest, errand: RequestContext
    ) -> DeliveryResult:
        """Have an order carried out. Raises AgentLost."""
        if self.gone:
            raise AgentLost(f"sender {self.place} ended", uncertain=False)
        pending = self._pending[number] = _Pending(zone, order.destination, errand)
        body = None
        try:
            whole = errand.body()
            if isinstance(whole, bytes) and len(whole) <= frames.BODY_INLINE_MAX:
                body = whole
        except QueueCorrupt:
            pass  # found again, and told, when it is asked for
        self.send(frames.Deliver(number, zone, order, body))
        try:
            return await pending.done
        except asyncio.CancelledError:
            self.send(frames.GiveUp(number))
            raise

    def trim(self, frame: frames.Trim) -> "asyncio.Future[None]":
        """Let sessions go; done when they are gone."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.gone:
            done.set_result(None)
            return done
        self._trims[frame.number] = done
        self.send(frame)
        return done

    def _handle(self, frame: frames.Frame) -> None:
        match frame:
            case frames.Opened():
                self._opened(frame.number)
            case frames.More():
                self._more(frame)
            case frames.Done():
                self._done(frame)
            case frames.Resting():
                self._rests(frame.zone, frame.destination, frame.count)
            case frames.Trimmed():
                trimmed = self._trims.pop(frame.number, None)
                if trimmed is not None and not trimmed.done():
                    trimmed.set_result(None)
            case frames.Address():
                self._tell_address(self, frame)

    def _rests(self, zone: str, destination: str, count: int) -> None:
        if count:
            self.resting[zone][destination] = count
        else:
            self.resting[zone].pop(destination, None)

    def _opened(self, number: int) -> None:
        pending = self._pending.get(number)
        if pending is None:
            return
        pending.errand.opened()
        started = pending.errand.started
        assert isinstance(started, CommitFuture)

        def written(failure: QueueUnavailable | None) -> None:
            pending.durable = failure is None
            self.send(frames.GiveUp(number) if failure else frames.Durable(number))

        started.add_done_callback(written)

    def _more(self, frame: frames.More) -> None:
        pending = self._pending.get(frame.number)
        if pending is not None:
            task = asyncio.ensure_future(self._chunk(frame, pending))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _chunk(self, frame: frames.More, pending: _Pending) -> None:
        try:
            if frame.reading != pending.reading or pending.chunks is None:
                pending.reading = frame.reading
                body = pending.errand.body()
                pending.chunks = _one(body) if isinstance(body, bytes) else body
            data = await anext(pending.chunks, None)
        except QueueCorrupt as exc:
            self.send(frames.Chunk(frame.number, frame.reading, b"", True, str(exc)))
        else:
            self.send(frames.Chunk(frame.number, frame.reading, data or b"", data is None))

    def _done(self, frame: frames.Done) -> None:
        pending = self._pending.pop(frame.number, None)
        if pending is None:
            return
        self._rests(pending.zone, pending.destination, frame.resting)
        if pending.done.done():
            return
        if frame.sent is not None:
            pending.done.set_result(frame.sent)
        else:
            pending.done.set_exception(RuntimeError(f"sender {self.place}: {frame.problem}"))

    def _give_up(self) -> None:
        for pending in self._pending.values():
            if not pending.done.done():
                pending.done.set_exception(AgentLost(f"sender {self.place} ended", uncertain=pending.durable))  # fmt: skip
        self._pending.clear()
        for trimmed in self._trims.values():
            if not trimmed.done():
                trimmed.set_result(None)
        self._trims.clear()
        self.resting.clear()


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body


class SenderPool:
    """``size`` sender processes."""

    def __init__(
        self, config: Config, hostname: str, dead: UnreachableHosts, size: int, log_level: str
    ) -> None:
        self._config = config
        self._hostname = hostname
        self._dead = dead
        self._log_level = log_level
        self._numbers = count(1)
        self.staff = ProcessSupervisor("sender", size, self._launch)

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

    async def deliver(self, zone: str, order: DeliveryRequest, errand: RequestContext) -> DeliveryResult:
        """Have ``order`` carried out by the process that has a session, else the least busy one.

        Raises AgentLost when that process ends before it is done.
        """
        while not self.staff.children:
            await self.staff.came.wait()
        children, destination = self.staff.children, order.destination
        chosen = max(children, key=lambda child: (child.resting[zone][destination] > 0, -child.active))
        room = await self._room(zone, order, chosen)
        order_here = order if room == order.room else order.with_room(room)
        return await chosen.deliver(next(self._numbers), zone, order_here, errand)

    async def _room(self, zone: str, order: DeliveryRequest, chosen: SenderChild) -> tuple[int, int]:
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


class RemoteAgent:
    """The senders of one zone, as its workers use them."""

    def __init__(self, fleet: SenderPool, zone: str) -> None:
        self._fleet = fleet
        self._zone = zone

    async def send(self, order: DeliveryRequest, errand: RequestContext) -> DeliveryResult:
        """Carry out ``order``. Raises AgentLost."""
        return await self._fleet.deliver(self._zone, order, errand)

    def close(self) -> None:
        """The processes have the sessions; a new configuration or their end closes them."""
