"""The sender processes as the queue's process sees them.

Limits and leases stay in the queue's process. States of a request (``_PendingRequest``): sent ─▶ session opened ─▶ durable ─▶ done.

Invariants:

- Each request ends with a result, a RuntimeError for an internal error of the process, QueueUnavailable if its start could not be
  written, or AgentLost. AgentLost is ``uncertain`` if the request was durable: the process may have sent the final dot.
- A session is counted where it is: in use, by the worker; idle, by the process that holds it (``idle``, ``idle_on_path``). So the
  connections of a zone are exact over all processes.
- Before a request is sent, idle sessions of the other processes are closed as far as they exceed its limits, and its limits are lowered
  by what the others keep (``_trim_others``).
- Requests to a provider with limited sessions go to the process that has most of them; others to one with an idle session for the
  destination; then to the least busy one. A domain is always looked up in the same process, which caches the answer.
- Hosts that one process finds unreachable, or reachable again, become known to the others and to ``UnreachableHosts`` here.

Callers: ``relay.delivery_service`` makes the pool and a ``RemoteAgent`` for each zone; the workers of a zone call ``deliver``.

Example: a process is killed while it executes two requests, one before and one behind Durable. Both raise AgentLost, only the second
is uncertain; another process is started in the slot.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from itertools import count

from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import AgentLost, QueueCorrupt, QueueUnavailable
from zonemta_py.core.model import PathKey
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.delivery.session_pool import NO_PATH, path_of
from zonemta_py.processes import sender_protocol as protocol
from zonemta_py.processes.link import LogLevel, SetTraces, Traced
from zonemta_py.processes.supervisor import ChildProcess, ProcessSupervisor
from zonemta_py.queue.commit import CommitFuture
from zonemta_py.schedule.unreachable import AddressPair, UnreachableHosts
from zonemta_py.smtp.mx_order import MxAnswer
from zonemta_py.transports.tracing import TRACER

# ---- One sender process as the queue's process sees it: its requests, and the idle sessions it holds.


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
        """Execute a request. Raises AgentLost, QueueUnavailable, RuntimeError for an internal error in the process."""
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
            pending.durable, pending.failure = failure is None, failure
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
            error = RuntimeError(f"sender {self.slot}: {frame.problem}")
            pending.result.set_exception(pending.failure or error)

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
    """A request that a process executes. ``durable``: the process may have sent the final dot. ``failure``: of the write of its start."""

    __slots__ = (
        "_chunks", "_reading", "context", "destination", "durable", "failure", "path", "result", "zone",
    )  # fmt: skip

    def __init__(self, zone: str, request: DeliveryRequest, context: RequestContext) -> None:
        self.zone = zone
        self.destination = request.destination
        self.path = path_of(request.order)
        self.context = context
        self.result: asyncio.Future[DeliveryResult] = asyncio.get_running_loop().create_future()
        self.durable = False
        self.failure: QueueUnavailable | None = None
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


# ---- senders


class RemoteAgent:
    """The ``DeliveryAgent`` of a zone whose requests the sender processes execute."""

    def __init__(self, pool: "SenderPool", zone: str) -> None:
        self._pool = pool
        self._zone = zone

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        """Execute ``request`` in a sender process. Raises AgentLost when that ends first."""
        return await self._pool.deliver(self._zone, request, context)

    async def resolve(self, domain: str) -> MxAnswer:
        """Find the MX hosts of ``domain`` in a sender process. Raises AgentLost."""
        return await self._pool.resolve(self._zone, domain)

    def close(self) -> None:
        """The processes close their sessions, when they get a new configuration or end."""


class SenderPool:
    """The sender processes, ``size`` of them, and the choice of one for a request."""

    def __init__(
        self,
        config: Config,
        hostname: str,
        unreachable: UnreachableHosts,
        size: int,
        log_target: str,
        on_idle: Callable[[PathKey, int], None],
    ) -> None:
        self._on_idle = on_idle
        self._config = config
        self._hostname = hostname
        self._unreachable = unreachable
        self._log_target = log_target
        self._numbers = count(1)
        self._supervisor = ProcessSupervisor("sender", size, self._launch)

    async def start(self) -> None:
        """Start all of them. Raises LocalError."""
        await self._supervisor.start()

    async def _launch(self, slot: int) -> "SenderChild":
        """Start the sender of ``slot``. Raises OSError when it does not become ready."""
        child = SenderChild(slot, self._supervisor.on_lost, self.share_status, self._count_idle)
        await child.start(self._log_target)
        config = self._config
        child.send(self._configuration())
        await child.wait_ready()
        if self._config is not config:  # a reload happened before it was one of the children
            child.send(self._configuration())
        child.send(SetTraces(sorted(TRACER.targets)))
        return child

    def _configuration(self) -> protocol.Configure:
        config = self._config
        return protocol.Configure(config.text, config.path, config.included, self._hostname)

    def configure(self, config: Config, hostname: str) -> None:
        """Use a new configuration; sessions opened under the old one end with their transaction."""
        self._config, self._hostname = config, hostname
        for child in self._supervisor.children:
            child.send(self._configuration())

    def share_status(self, status: protocol.HostStatus, source: "SenderChild | None" = None) -> None:
        """Record what the sender ``source`` found out about a host, and send it to the others."""
        pair = AddressPair(status.source, status.ip, status.port)
        if status.skip_s < 0:
            self._unreachable.answered(pair)
        else:
            self._unreachable.apply(pair, status.destination, clock.monotonic_s(), status.skip_s)
        for child in self._supervisor.children:
            if child is not source:
                child.send(status)

    def clear_unreachable(self, ip: str | None, destination: str | None) -> None:
        """Forget an unreachable address, those of a destination, or all (None)."""
        for child in self._supervisor.children:
            child.send(protocol.ClearUnreachable(ip or "", destination or ""))

    def set_log_level(self, level: str) -> None:
        """Change what all processes log, also those that are started later."""
        self._log_target = ",".join((level, *self._log_target.split(",")[1:]))
        for child in self._supervisor.children:
            child.send(LogLevel(level))

    def set_traces(self, targets: list[str]) -> None:
        """Trace ``targets`` in all processes; ``_launch`` sends them to those that are started later."""
        for child in self._supervisor.children:
            child.send(SetTraces(targets))

    def _count_idle(self, path: PathKey) -> None:
        self._on_idle(path, sum(child.idle_on_path[path] for child in self._supervisor.children))

    def missing(self) -> str:
        """Names of the processes that do not run, for an operator; empty when all do."""
        return self._supervisor.missing()

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [child.pid for child in self._supervisor.children]

    async def deliver(
        self, zone: str, request: DeliveryRequest, context: RequestContext
    ) -> DeliveryResult:
        """Execute ``request`` in a process with an idle session, else in the least busy one.

        Requests to a provider whose sessions or new sessions are limited go to one process as long as it has any of
        them: a session that is idle in another one could only be closed. Raises AgentLost when the process ends first.
        """
        supervisor = self._supervisor
        while not supervisor.children:
            await supervisor.available.wait()
        order, destination = request.order, request.destination
        if order is not None and order.limits_sessions:
            provider = order.provider
            chosen = max(supervisor.children, key=lambda child: (child.held[provider], -child.active))
        else:
            chosen = max(
                supervisor.children,
                key=lambda child: (child.idle[zone][destination] > 0, -child.active),
            )
        within = await self._trim_others(zone, request, chosen)
        return await chosen.deliver(next(self._numbers), zone, within, context)

    async def resolve(self, zone: str, domain: str) -> MxAnswer:
        """Find the MX hosts of ``domain`` in the process that is always asked for it: it caches the answer."""
        supervisor = self._supervisor
        while not supervisor.children:
            await supervisor.available.wait()
        children = supervisor.children
        return await children[hash(domain) % len(children)].resolve(next(self._numbers), zone, domain)

    async def _trim_others(
        self, zone: str, request: DeliveryRequest, chosen: "SenderChild"
    ) -> DeliveryRequest:
        """Close idle sessions in the other processes that exceed the limits; returns the request for ``chosen``."""
        in_zone, at_destination = request.idle_limits
        order, path = request.order, path_of(request.order)
        is_limited = order is not None and order.limits_sessions
        trims, elsewhere, elsewhere_at = [], 0, 0
        for child in self._supervisor.children:
            if child is chosen:
                continue
            idle: Counter[str] = child.idle[zone]
            there, all_there = idle[request.destination], child.idle_in[zone]
            keep_there = min(there, max(0, at_destination))
            keep = min(all_there, max(0, in_zone))
            idle_at = child.idle_at(path[0]) if is_limited else 0
            if keep_there < there or keep < all_there or idle_at:
                number = next(self._numbers)
                limits = (-1, 0 if idle_at else -1)
                trim = protocol.Trim(
                    number=number, zone=zone, destination=request.destination, zone_limit=keep, destination_limit=keep_there,
                    path=path, path_limits=limits,
                )  # fmt: skip
                trims.append(child.trim(trim))
            in_zone -= keep
            at_destination -= keep_there
            elsewhere += child.requests[path]
            elsewhere_at += child.held[path[0]] - idle_at
        for trimmed in trims:
            await trimmed
        there_max, provider_max = (-1, -1) if order is None else order.sessions_max
        sessions_max = _less(there_max, elsewhere), _less(provider_max, elsewhere_at)
        return request.within((in_zone, at_destination), sessions_max)

    async def close(self) -> None:
        """End all processes; their requests raise AgentLost."""
        await self._supervisor.close()


def _less(most: int, elsewhere: int) -> int:
    """``most`` sessions without those of other processes; -1: no limit."""
    return -1 if most < 0 else max(0, most - elsewhere)
