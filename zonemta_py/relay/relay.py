"""The relay: every part built from one Config, started in order, stopped in reverse."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from zonemta_py import __version__
from zonemta_py.admin.control import ControlServer
from zonemta_py.admin.operations import Operations
from zonemta_py.config.functions import with_functions
from zonemta_py.config.references import plain_function, read_token
from zonemta_py.config.schema import Config, ListenerSettings, Processes
from zonemta_py.config.units import HostPort
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.delivery.bounce_hook import BounceFunction
from zonemta_py.delivery.bounces import BounceReporter
from zonemta_py.delivery.context import DeliveryContext
from zonemta_py.delivery.dkim import Signer, load_keys
from zonemta_py.delivery.endpoints import EndpointResolver
from zonemta_py.delivery.local_agent import LocalAgent, is_local
from zonemta_py.delivery.mx import MxResolver
from zonemta_py.delivery.open_queue import open_queue
from zonemta_py.delivery.request import DeliveryAgent
from zonemta_py.delivery.session_pool import SessionPool
from zonemta_py.delivery.smtp_agent import SmtpAgent, SmtpResources
from zonemta_py.delivery.zone_workers import ZoneWorkers
from zonemta_py.dequeue.channel import Channels
from zonemta_py.intake.inject import Injector, enqueue
from zonemta_py.intake.listener import Intake
from zonemta_py.intake.sockets import bound_address, listening_sockets
from zonemta_py.policies import EnvelopePolicy
from zonemta_py.processes.receivers import ReceiverPool
from zonemta_py.processes.senders import RemoteAgent, SenderPool
from zonemta_py.processes.supervisor import cores, process_counts
from zonemta_py.queue.outbox import Exporter
from zonemta_py.queue.upkeep.rezone import settle_removed_zones
from zonemta_py.queue.upkeep.startup_scan import zones_on_disk
from zonemta_py.relay.preflight import reloadable, verify, warnings
from zonemta_py.relay.takeover import OrphanRecovery
from zonemta_py.routing import DEFAULT_ZONE, DEQUEUE_TRANSPORT, Destinations, make_router
from zonemta_py.schedule.retry import Backoff
from zonemta_py.schedule.unreachable import UnreachableHosts
from zonemta_py.storage.interface import Store
from zonemta_py.storage.open import open_shared_storage

if TYPE_CHECKING:
    from zonemta_py.intake.http import HttpListener

log = logging.getLogger(__name__)


class Relay:
    """A relay in this process. ``addresses`` are where its listeners accept, once started."""

    def __init__(
        self,
        config: Config,
        log_level: str = "info",
        *,
        store: Store | None = None,
        backoff: Backoff | Sequence[float] | None = None,
        bounce: BounceFunction | None = None,
        policies: Sequence[EnvelopePolicy] = (),
    ) -> None:
        self._with_functions = partial(with_functions, backoff=backoff, bounce=bounce, policies=policies)
        config = self._with_functions(config)
        self.log_level = log_level  # of the other processes
        self.config = config
        self.hostname = config.hostname or socket.getfqdn()
        self.router = make_router(config)
        verify(config)
        self._takes_over = store is None and config.queue.shared.take_over
        self._reporter = BounceReporter(config, self.hostname, self.router)
        self._destinations = Destinations(config.zones)
        self.queue = open_queue(
            config,
            store=store,
            standby=config.queue.shared.take_over,
            reports=self._reporter,
            destination_of=self._destinations,
            on_ready=self._on_ready,
        )
        self.stopped = False
        self.intake: Intake | None = None
        self.receivers: ReceiverPool | None = None
        self.addresses: list[HostPort] = []
        self.exporter: Exporter | None = None
        self.control: ControlServer | None = None
        self._zones: dict[str, ZoneWorkers] = {}
        self.fleet: SenderPool | None = None
        self._signer: Signer | None = None
        self._channels: Channels | None = None
        self.take_over: OrphanRecovery | None = None
        self.http: HttpListener | None = None

    async def __aenter__(self) -> "Relay":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def enqueue(
        self,
        sender: str,
        recipients: Iterable[str],
        message: bytes | AsyncIterable[bytes],
        *,
        key: str = "",
        user: str = "",
    ) -> str:
        """Take a message from this program; its queue id once it is on disk. Raises NotAccepted.

        ``key`` is a submission key: the same key again is the same message, and sends nothing.
        """
        return await enqueue(self._handover(), sender, recipients, message, key=key, user=user)

    def _handover(self) -> Injector:
        policies = [plain_function(name) for name in self.config.policies]
        return Injector(self.queue, self.router, self.config, self.hostname, policies)

    @property
    def channels(self) -> Channels:
        """The zones with ``transport: dequeue``, for ``dequeue`` and ``adequeue``. Raises LocalError."""
        if self._channels is None or self.stopped:
            raise LocalError("the relay is not started: use it inside `async with Relay(…) as relay:`")
        return self._channels

    async def start(self) -> None:
        """Open for business. Raises ConfigError or LocalError, with everything closed again."""
        try:
            await self._start()
        except BaseException:
            await self.stop(0)
            raise

    async def _start(self) -> None:
        config, queue = self.config, self.queue
        for warning in warnings(config, self.hostname):
            log.warning("%s", warning)
        await queue.recover()
        move_to = DEFAULT_ZONE if config.zone_removed == "default" else None
        await settle_removed_zones(
            queue.store, queue.commits, set(config.zones), move_to, clock.now_ms()
        )
        self.outbound = DeliveryContext(queue, config, self.hostname, self.router)
        self.dead = UnreachableHosts(self._forget_unreachable)
        self.resolver = MxResolver(config.resolver)
        self._endpoints = EndpointResolver(config, self.hostname, self.resolver, self.outbound.rng)
        self._signer = Signer(config.dkim, load_keys(config.dkim))
        receivers, senders = process_counts(config, cores())
        if senders:
            self.fleet = SenderPool(config, self.hostname, self.dead, senders, self.log_level)
            await self.fleet.start()
        for name, zone in config.zones.items():
            if zone.transport != DEQUEUE_TRANSPORT:
                self._zones[name] = ZoneWorkers(name, zone, self.outbound, self._agent)
        self._channels = Channels(self.outbound, asyncio.get_running_loop(), all_zones=False)
        self.exporter = Exporter(queue, config.events)
        await self.exporter.start()
        await queue.begin()
        self.control = ControlServer(config.queue.directory, Operations(queue, self._zones, self.dead))
        await self.control.start()
        place = open_shared_storage(config.queue) if self._takes_over else None
        if place is not None:
            programs = {
                name for name, zone in config.zones.items() if zone.transport == DEQUEUE_TRANSPORT
            }
            self.take_over = OrphanRecovery(place, config.queue.shared, self._deputy, programs)
            self.take_over.start()
        await self._listen(receivers)
        await self._open_http()
        log.info(
            "zonemta %s as %s: listening on %s, zones %s, %d receivers and %d senders of their own",
            __version__,
            self.hostname,
            ", ".join(map(str, self.addresses)) or "nothing",
            ", ".join(sorted(config.zones)),
            receivers,
            senders,
        )

    async def _open_http(self) -> None:
        """Take mail by HTTP, if that is wanted."""
        config = self.config
        if not config.admin.mail:
            return
        # Only where it is used: loading aiohttp takes a command a quarter of a second.
        from zonemta_py.intake.http import HttpListener

        self.http = HttpListener(
            config.admin.address,
            read_token(config.admin.token_file),
            self._handover,
            message_timeout_s=(*config.listeners, ListenerSettings())[0].message_timeout,
            grace_s=config.shutdown_grace,
        )
        await self.http.start()

    async def _listen(self, processes: int) -> None:
        """Take connections: here, or in so many receivers' processes."""
        config = self.config
        if not config.listeners:
            return  # mail comes from this program alone
        listeners = [
            await listening_sockets(settings.address, processes or 1) for settings in config.listeners
        ]
        for settings, copies in zip(config.listeners, listeners, strict=True):
            self.addresses.append(bound_address(settings.address, copies[0]))
        places = list(zip(*listeners, strict=True))
        if processes:
            self.receivers = ReceiverPool(config, self.hostname, self.queue, places, self.log_level)
            await self.receivers.start()
        else:
            self.intake = Intake(self.queue, places[0])
            await self.intake.start(config, self.intake.prepare(config, self.hostname, self.router))

    def _agent(self, name: str, zone: Zone) -> DeliveryAgent:
        """The agent that executes the requests of a zone: in this process, or in the sender processes."""
        if is_local(zone):
            return LocalAgent(zone, self.hostname)
        if self.fleet is not None:
            return RemoteAgent(self.fleet, name)
        assert self._signer is not None
        resources = SmtpResources(
            self.hostname, self._endpoints, self._signer, self.dead, self.outbound.rng
        )
        return SmtpAgent(zone, resources, SessionPool())

    def _forget_unreachable(self, ip: str | None) -> None:
        if self.fleet is not None:
            self.fleet.clear_unreachable(ip)

    def _deputy(self, store: Store, name: str) -> "Relay":
        """A relay like this one on another's queue."""
        config = self.config
        directory = config.queue.directory / "taken-over" / name
        directory.mkdir(parents=True, exist_ok=True)
        queue = replace(config.queue, directory=directory)
        return Relay(
            replace(
                config,
                listeners=(),
                queue=queue,
                processes=Processes(),
                admin=replace(config.admin, mail=False),
            ),
            self.log_level,
            store=store,
        )

    def _on_ready(self, zone: str, destination: str, low_volume: bool) -> None:
        delivery = self._zones.get(zone)
        if delivery is not None:
            delivery.ready(destination, low_volume=low_volume)
        elif self._channels is not None:
            self._channels.wake(zone)

    def reload(self, load: Callable[[], Config]) -> None:
        """Take over a new configuration, or say why not and keep the old one.

        Listener and queue addresses, the event log and the process layout need a restart.
        """
        try:
            config = self._with_functions(load())
            reloadable(self.config, config, zones_on_disk(self.queue.store))
            verify(config)
            router = make_router(config)
            hostname = config.hostname or socket.getfqdn()
            policies = self.intake.prepare(config, hostname, router) if self.intake is not None else []
            resolver = MxResolver(config.resolver)
            dkim_keys = load_keys(config.dkim)
        except Exception as exc:  # whatever is wrong with it, the relay goes on with what it has
            log.error("the configuration stays as it was: %s", exc)
            return
        self.config, self.router, self.hostname = config, router, hostname
        outbound = self.outbound
        outbound.config, outbound.router, outbound.hostname = config, router, hostname
        self._reporter.configure(config, hostname, router)
        self._destinations.zones = config.zones
        self.resolver = resolver
        assert self._signer is not None
        self._signer.configure(config.dkim, dkim_keys)
        if self.fleet is not None:
            self.fleet.configure(config, hostname)
        self._endpoints = EndpointResolver(config, hostname, resolver, outbound.rng)
        for name, zone in config.zones.items():
            delivery = self._zones.get(name)
            if zone.transport == DEQUEUE_TRANSPORT:
                continue
            if delivery is None:
                self._zones[name] = ZoneWorkers(name, zone, outbound, self._agent)
                self._zones[name].ready_all()
            else:
                delivery.configure(zone)
        if self.intake is not None:
            self.intake.apply(policies)
        if self.receivers is not None:
            self.receivers.configure(config, hostname)
        log.info("configuration reloaded")

    async def flush(self) -> int:
        """Make every deferred recipient due now, and try destinations that rest; returns how many."""
        woken = await self.queue.deferral.flush(None, None, None)
        for zone in self._zones.values():
            zone.probe(None)
        log.info("everything is due now: %d recipients", woken)
        return woken

    async def stop(self, grace_s: float | None = None) -> None:
        """Stop accepting, finish what runs within ``shutdown_grace``, close the queue. Once is enough."""
        if self.stopped:
            return
        self.stopped = True
        grace = self.config.shutdown_grace if grace_s is None else grace_s
        work = [part.drain(grace) for part in (self.intake, self.receivers) if part is not None]
        work += [zone.close(grace) for zone in self._zones.values()]
        if self.take_over is not None:
            work.append(self.take_over.close(grace))
        if self.http is not None:
            work.append(self.http.close())
        if self._channels is not None:
            work.append(self._channels.close(grace))
        for result in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(result, BaseException):
                log.error("a part of the relay did not stop in order: %r", result)
        try:
            if self.control is not None:
                await self.control.close()
            for staff in (self.receivers, self.fleet):
                if staff is not None:
                    await staff.close()
            if self._signer is not None:
                self._signer.close()
            if self.exporter is not None:
                await self.exporter.close()
        finally:
            await self.queue.close()
