"""The sender processes as the queue's process sees them.

Limits and leases stay in the queue's process. A session is counted where it is: in use, by the worker;
idle, by the process that holds it. So the connections of a zone are exact over all processes.
"""

from collections import Counter
from collections.abc import Callable
from itertools import count

from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.model import PathKey
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.delivery.session_pool import path_of
from zonemta_py.processes import sender_protocol as protocol
from zonemta_py.processes.link import LogLevel, SetTraces
from zonemta_py.processes.sender_child import SenderChild
from zonemta_py.processes.supervisor import ProcessSupervisor
from zonemta_py.schedule.unreachable import AddressPair, UnreachableHosts
from zonemta_py.smtp.mx_order import MxAnswer
from zonemta_py.transports.tracing import TRACER


class RemoteAgent:
    """The ``DeliveryAgent`` of a zone whose requests the sender processes execute."""

    def __init__(self, pool: "SenderPool", zone: str) -> None:
        self._pool = pool
        self._zone = zone

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        """Execute ``request``. Raises AgentLost."""
        return await self._pool.deliver(self._zone, request, context)

    async def resolve(self, domain: str) -> MxAnswer:
        """See ``DeliveryAgent``. Raises AgentLost."""
        return await self._pool.resolve(self._zone, domain)

    def close(self) -> None:
        """The processes close their sessions, when they get a new configuration or end."""


class SenderPool:
    """``size`` sender processes."""

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
        """Which processes do not run, for an operator; empty when all do."""
        return self._supervisor.missing()

    @property
    def pids(self) -> list[int]:
        """The running processes."""
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
                trim = protocol.Trim(number, zone, request.destination, keep, keep_there, path, limits)
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
