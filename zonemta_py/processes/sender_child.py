"""One sender process as the queue's process sees it: its requests, and the idle sessions it holds."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable

from zonemta_py.core.errors import AgentLost, QueueCorrupt, QueueUnavailable
from zonemta_py.core.model import PathKey
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.delivery.session_pool import NO_PATH, path_of
from zonemta_py.processes import sender_protocol as protocol
from zonemta_py.processes.child import ChildProcess
from zonemta_py.processes.link import Traced
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.smtp.mx_order import MxAnswer
from zonemta_py.transports.tracing import TRACER


class SenderChild(ChildProcess):
    """One sender: its requests, and the idle sessions it holds.

    ``idle`` counts them by zone and destination, ``idle_in`` by zone, ``idle_on_path`` by provider and source, ``held`` by
    provider, with the ``requests`` under way. ``on_status`` is called when it finds out that a host is unreachable, or
    reachable again, ``on_idle`` when the number of idle sessions on a path has changed.
    """

    kind = "sender"
    module = "zonemta_py.processes.sender_process"

    def __init__(
        self,
        slot: int,
        on_lost: Callable[["SenderChild"], None],
        on_status: Callable[[protocol.HostStatus, "SenderChild"], None],
        on_idle: Callable[[PathKey], None],
    ) -> None:
        super().__init__(slot, protocol.decode, on_lost)
        self._on_idle = on_idle
        self.idle: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.idle_in: Counter[str] = Counter()
        self.idle_on_path: Counter[PathKey] = Counter()
        self.held: Counter[str] = Counter()
        self.requests: Counter[PathKey] = Counter()
        self._on_status = on_status
        self._pending: dict[int, _PendingRequest] = {}
        self._trims: dict[int, asyncio.Future[None]] = {}
        self._look_ups: dict[int, asyncio.Future[MxAnswer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def active(self) -> int:
        """The number of requests it executes."""
        return len(self._pending)

    async def deliver(
        self, number: int, zone: str, request: DeliveryRequest, context: RequestContext
    ) -> DeliveryResult:
        """Execute a request. Raises AgentLost, RuntimeError for an internal error in the process."""
        if self.gone:
            raise AgentLost(f"sender {self.slot} ended", uncertain=False)
        pending = self._pending[number] = _PendingRequest(zone, request, context)
        self._begin(pending.path, 1)
        inline = None
        try:
            body = context.body()
            if isinstance(body, bytes) and len(body) <= protocol.BODY_INLINE_MAX:
                inline = body
        except QueueCorrupt:
            pass  # reported when the process fetches the body
        self.send(protocol.Deliver(number, zone, request, inline))
        try:
            return await pending.result
        except asyncio.CancelledError:
            self.send(protocol.Cancel(number))
            raise

    async def resolve(self, number: int, zone: str, domain: str) -> MxAnswer:
        """Find the MX hosts of a domain. Raises AgentLost."""
        if self.gone:
            raise AgentLost(f"sender {self.slot} ended", uncertain=False)
        answer: asyncio.Future[MxAnswer] = asyncio.get_running_loop().create_future()
        self._look_ups[number] = answer
        self.send(protocol.Resolve(number, zone, domain))
        return await answer

    def _hold(self, path: PathKey, more: int) -> None:
        provider = path[0]
        if more and path != NO_PATH:
            self.held[provider] += more
            if not self.held[provider]:
                del self.held[provider]

    def _begin(self, path: PathKey, more: int) -> None:
        self._hold(path, more)
        self.requests[path] += more
        if not self.requests[path]:
            del self.requests[path]

    def idle_at(self, provider: str) -> int:
        """The number of idle sessions with ``provider``, from all addresses."""
        return sum(idle for (there, _), idle in self.idle_on_path.items() if there == provider)

    def trim(self, frame: protocol.Trim) -> "asyncio.Future[None]":
        """Close idle sessions; the future is done when they are closed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.gone:
            done.set_result(None)
            return done
        self._trims[frame.number] = done
        self.send(frame)
        return done

    def _handle(self, frame: protocol.Frame) -> None:
        match frame:
            case Traced():
                TRACER.hand_on(frame.line)
            case protocol.Configured():
                self.is_ready()
            case protocol.SessionOpened():
                self._session_opened(frame)
            case protocol.FetchChunk():
                self._fetch_chunk(frame)
            case protocol.Done():
                self._done(frame)
            case protocol.IdleSessions():
                self._set_idle(frame.zone, frame.destination, frame.count)
                self._set_idle_on(frame.path, frame.count_there)
            case protocol.Resolved():
                answer = self._look_ups.pop(frame.number, None)
                if answer is not None and not answer.done():
                    answer.set_result(frame.answer)
            case protocol.Trimmed():
                trimmed = self._trims.pop(frame.number, None)
                if trimmed is not None and not trimmed.done():
                    trimmed.set_result(None)
            case protocol.HostStatus():
                self._on_status(frame, self)

    def _set_idle(self, zone: str, destination: str, count: int) -> None:
        idle = self.idle[zone]
        self.idle_in[zone] += count - idle[destination]
        if count:
            idle[destination] = count
        else:
            idle.pop(destination, None)

    def _set_idle_on(self, path: PathKey, count: int) -> None:
        if path != NO_PATH:
            self._hold(path, count - self.idle_on_path[path])
            self.idle_on_path[path] = count
            if not count:
                del self.idle_on_path[path]
            self._on_idle(path)

    def _session_opened(self, frame: protocol.SessionOpened) -> None:
        number = frame.number
        pending = self._pending.get(number)
        if pending is None:
            return
        pending.context.session_opened(frame.opened)
        started = pending.context.started
        assert isinstance(started, CommitFuture)

        def written(failure: QueueUnavailable | None) -> None:
            pending.durable = failure is None
            self.send(protocol.Cancel(number) if failure else protocol.Durable(number))

        started.add_done_callback(written)

    def _fetch_chunk(self, frame: protocol.FetchChunk) -> None:
        pending = self._pending.get(frame.number)
        if pending is not None:
            task = asyncio.ensure_future(self._send_chunk(frame, pending))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_chunk(self, frame: protocol.FetchChunk, pending: "_PendingRequest") -> None:
        try:
            data = await pending.next_chunk(frame.reading)
        except QueueCorrupt as exc:
            self.send(protocol.Chunk(frame.number, frame.reading, b"", True, str(exc)))
        else:
            self.send(protocol.Chunk(frame.number, frame.reading, data or b"", data is None))

    def _done(self, frame: protocol.Done) -> None:
        pending = self._pending.pop(frame.number, None)
        if pending is None:
            return
        self._begin(pending.path, -1)
        self._set_idle(pending.zone, pending.destination, frame.idle)
        self._set_idle_on(pending.path, frame.idle_there)
        if pending.result.done():
            return
        if frame.result is not None:
            pending.result.set_result(frame.result)
        else:
            pending.result.set_exception(RuntimeError(f"sender {self.slot}: {frame.problem}"))

    def _abandon_work(self) -> None:
        for pending in self._pending.values():
            if not pending.result.done():
                lost = AgentLost(f"sender {self.slot} ended", uncertain=pending.durable)
                pending.result.set_exception(lost)
        self._pending.clear()
        for trimmed in self._trims.values():
            if not trimmed.done():
                trimmed.set_result(None)
        self._trims.clear()
        for answer in self._look_ups.values():
            if not answer.done():
                answer.set_exception(AgentLost(f"sender {self.slot} ended", uncertain=False))
        self._look_ups.clear()
        self.idle.clear()
        self.idle_in.clear()
        paths = list(self.idle_on_path)
        self.idle_on_path.clear()
        self.held.clear()
        self.requests.clear()
        for path in paths:
            self._on_idle(path)


class _PendingRequest:
    """A request that a process executes. ``durable``: the process may have sent the final dot."""

    __slots__ = ("_chunks", "_reading", "context", "destination", "durable", "path", "result", "zone")

    def __init__(self, zone: str, request: DeliveryRequest, context: RequestContext) -> None:
        self.zone = zone
        self.destination = request.destination
        self.path = path_of(request.order)
        self.context = context
        self.result: asyncio.Future[DeliveryResult] = asyncio.get_running_loop().create_future()
        self.durable = False
        self._chunks: AsyncIterator[bytes] | None = None
        self._reading = 0  # of the body, that ``_chunks`` belongs to

    async def next_chunk(self, reading: int) -> bytes | None:
        """The next chunk of the body, None at its end; a new ``reading`` begins with the first.

        Raises QueueCorrupt.
        """
        if reading != self._reading or self._chunks is None:
            self._reading = reading
            body = self.context.body()
            self._chunks = _single(body) if isinstance(body, bytes) else body
        return await anext(self._chunks, None)


async def _single(body: bytes) -> AsyncIterator[bytes]:
    yield body
