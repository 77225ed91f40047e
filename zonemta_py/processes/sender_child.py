"""One sender process from outside: the orders under way there, the sessions that rest there."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable

from zonemta_py.delivery.order import Errand, Order, Sent
from zonemta_py.errors import CarrierLost, QueueCorrupt, QueueUnavailable
from zonemta_py.processes import sender_frames as frames
from zonemta_py.processes.child import Child
from zonemta_py.queue.commit import Batch


class _Pending:
    """An order under way. ``durable``: its process may have sent the final dot."""

    __slots__ = ("chunks", "destination", "done", "durable", "errand", "reading", "zone")

    def __init__(self, zone: str, destination: str, errand: Errand) -> None:
        self.zone = zone
        self.destination = destination
        self.errand = errand
        self.done: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        self.durable = False
        self.chunks: AsyncIterator[bytes] | None = None
        self.reading = 0  # of the body, that ``chunks`` is for


class SenderChild(Child):
    """A sender. ``address`` is called with what it finds dead."""

    kind = "sender"
    module = "zonemta_py.processes.sender_main"

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

    async def carry(self, number: int, zone: str, order: Order, errand: Errand) -> Sent:
        """Have an order carried out. Raises CarrierLost."""
        if self.gone:
            raise CarrierLost(f"sender {self.place} ended", uncertain=False)
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
        assert isinstance(started, Batch)

        def written(failure: QueueUnavailable | None) -> None:
            pending.durable = failure is None
            self.send(frames.GiveUp(number) if failure else frames.Durable(number))

        started.then(written)

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
                pending.done.set_exception(CarrierLost(f"sender {self.place} ended", uncertain=pending.durable))  # fmt: skip
        self._pending.clear()
        for trimmed in self._trims.values():
            if not trimmed.done():
                trimmed.set_result(None)
        self._trims.clear()
        self.resting.clear()


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body
