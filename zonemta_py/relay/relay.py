"""The relay: its parts, made from one configuration (see ``parts``), and what a program does with it.

States: made (the queue is open) ─ ``start`` ─▶ running ─ ``stop`` ─▶ stopped. A stopped relay is not used again: ``RelayRunner`` makes
another one.

Invariants:

- The order of ``_make_parts`` is that of starting: the queue is recovered first, and the listeners accept when all that delivers
  and logs is there. ``stop`` drains all at once, then closes in reverse: the event log after the last delivery.
- ``_config`` is the configuration in use. It changes in one place, when all parts apply a new one; reloads follow each other.
- A reload that fails leaves the present configuration in use, with all of its parts.
- An error of the constructor or of ``start`` closes the queue again.
- A partition of another relay is delivered by a ``Relay`` of its own, without listeners (``relay.takeover``).

Callers: ``zonemta serve`` by ``RelayRunner``; programs that embed a relay (docs/library.md); ``OrphanRecovery`` for partitions.

Example::

    async with Relay(load_config(Path("zonemta.yaml"))) as relay:
        await relay.enqueue("a@example.org", ["b@example.com"], b"Subject: hi\\n\\nHello\\n")
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from zonemta_py.admin.control import ControlServer
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.relay_port import RunningRelay
from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.hooks import Hooks
from zonemta_py.config.reply_rules import make_classifier
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError, LocalError, NotAccepted
from zonemta_py.core.logs import set_log_level
from zonemta_py.core.version import __version__
from zonemta_py.delivery.egress_operator import EgressOperator
from zonemta_py.delivery.report_composer import BounceFunction, DeliveryContext, PendingReports
from zonemta_py.delivery.reports import BounceReporter
from zonemta_py.delivery.zone_workers import ReadyMail
from zonemta_py.dequeue.channel import Channels
from zonemta_py.events.observers import EventStream, OutcomeLog
from zonemta_py.intake.inject import AcceptedId, EnqueueOptions, enqueue
from zonemta_py.open_queue import configure_queue, open_queue
from zonemta_py.policies import EnvelopePolicy
from zonemta_py.processes.supervisor import cores, process_counts
from zonemta_py.queue.format.records import TENANT_FLOW
from zonemta_py.queue.outbox import Exporter
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.move import flush, settle_removed_zones
from zonemta_py.relay.admin_service import AdminService, AdminSources
from zonemta_py.relay.delivery_service import AnyZone, DeliveryService
from zonemta_py.relay.domain_verifier import DomainVerifier
from zonemta_py.relay.intake_service import IntakeService
from zonemta_py.relay.parts import (
    NewConfig,
    Part,
    Parts,
    Prepared,
    changed_keys,
    check_reloadable,
    read_config,
)
from zonemta_py.relay.preflight import CertificateWatch, warnings
from zonemta_py.relay.takeover import OrphanRecovery, dequeue_zones, takeover_config
from zonemta_py.routing import (
    DEFAULT_ZONE,
    Destinations,
    one_zone,
)
from zonemta_py.schedule.retry import Backoff
from zonemta_py.storage.interface import Store
from zonemta_py.storage.open import open_shared_storage
from zonemta_py.storage.remote import RemoteBodyStore
from zonemta_py.transports.tracing import OtherProcesses, Traces

log = logging.getLogger(__name__)


def use_in_queue(queue: Queue, config: Config) -> None:
    """Let ``queue`` have the zones of ``config``, and the weights of tenants by the name of their mail in ready windows."""
    queue.set_zones(frozenset(config.zones))
    weights = {
        TENANT_FLOW + name: each.weight for name, each in config.tenants.items() if each.weight > 1
    }
    queue.windows.set_weights(weights)


class Relay:
    """A relay in this process: ``async with Relay(config) as relay``, or ``start`` and ``stop``.

    ``backoff``, ``bounce`` and ``policies`` are functions of this program (docs/library.md);
    ``on_events`` is called with the JSON lines of each frame of the event log. ``log_level`` is that of
    the other processes, instead of ``log.level``. Raises ConfigError, QueueLocked, LocalError.
    """

    def __init__(
        self,
        config: Config,
        log_level: str | None = None,
        *,
        backoff: Backoff | Sequence[float] | None = None,
        bounce: BounceFunction | None = None,
        policies: Sequence[EnvelopePolicy] = (),
        on_events: Callable[[bytes], None] | None = None,
        store: Store | None = None,
    ) -> None:
        self._hooks = hooks = Hooks(backoff, bounce, policies)
        receivers, senders = process_counts(config, cores(), hooks)
        new = read_config(config, hooks)
        self._config, self._log_level = new.config, log_level
        config, hostname, router = new.config, new.hostname, new.router
        self._stopped, self._since_ms = False, clock.now_ms()
        self._reloading, pending = asyncio.Lock(), PendingReports()
        self._reporter = BounceReporter(config, hostname, router, hooks, pending)
        self._destinations, ready = Destinations(config.zones), ReadyMail[AnyZone]()
        self._queue = open_queue(
            config,
            store=store,
            standby=config.queue.shared.take_over,
            reports=self._reporter,
            destination_of=self._destinations,
            on_ready=ready,
        )
        target = config.log.target(log_level)
        try:
            use_in_queue(self._queue, config)
            context = DeliveryContext(
                queue=self._queue, config=config, hostname=hostname, router=router, hooks=hooks, pending=pending,
            )  # fmt: skip
            self._delivery = DeliveryService(
                context, new.dkim_keys, ready, senders=senders, log_target=target
            )
            self._intake = IntakeService(
                self._queue, config, hostname, router, hooks, receivers=receivers, log_target=target
            )
        except BaseException:
            self._queue.store.close()
            raise
        self._verifier = DomainVerifier(self._queue, config)
        self._on_events, self._warnings = on_events, list[str]()
        self._parts = Parts(())  # made by ``start``
        self._orphans: OrphanRecovery | None = None
        self.admin: AdminService | None = None
        self._takes_over = store is None and config.queue.shared.take_over
        self._identity = f"{__version__} as {hostname}", receivers, senders

    def _make_parts(self, was_killed: bool) -> list[Part]:
        """All parts in the order of their start. The event log is closed after the last delivery."""
        config, queue, delivery = self._config, self._queue, self._delivery
        stream = EventStream()
        outcomes = OutcomeLog(config.log.outcomes, as_postfix=config.log.format == "postfix")
        own = [self._on_events] if self._on_events is not None else []
        exporter = Exporter(queue, config.events, [stream.publish, outcomes.publish, *own])
        traces = Traces(self._other_processes)
        running = RunningRelay(
            zones=delivery.views, unreachable=delivery.unreachable, reload=self.reload, verify=self._verifier.verify,
            events=config.events.directory, stream=stream, status=self.status, set_log_level=self.set_log_level,
            trace=traces.watch, new_login=self._new_login, tenants=lambda: self._config.tenants,
            egress=EgressOperator(queue, lambda: self._config, delivery),
        )  # fmt: skip
        operations = Operations(queue, running)
        certificates = CertificateWatch(lambda: self._config)
        parts = [
            Part(
                "the queue",
                partial(self._recover, was_killed),
                prepare=self._prepare_queue,
                check=self._check_queue,
            ),
            Part("the log of outcomes", close=outcomes.close),
            Part("traces", drain=traces.drain),
            Part("the event log", exporter.start, close=exporter.close),
            *delivery.parts(),
            Part("the queue's background tasks", queue.begin),
            Part("the mail held for suspensions", delivery.held_mail.start),
            Part("the watch of certificates", certificates.start, close=certificates.close),
            self._verifier.part(),
        ]
        if config.queue.directory.is_dir():  # a program's own store needs none
            control = ControlServer(config.queue.directory, operations)
            parts.append(Part("the control socket", control.start, close=control.close))
        storage = open_shared_storage(config.queue) if self._takes_over else None
        if storage is not None:
            partition = queue.store.name if isinstance(queue.store, RemoteBodyStore) else ""
            self._orphans = OrphanRecovery(
                storage, config.queue.shared, self._takeover_relay, dequeue_zones(config), own=partition
            )
            parts.append(self._orphans.part())
        hostname = config.hostname or socket.getfqdn()
        sources = AdminSources(queue, exporter, delivery, self._intake, stream)
        self.admin = AdminService(config, hostname, operations, sources)
        last = Part("the warnings", prepare=self._prepare_warnings)
        return [*parts, self._intake.part(), self.admin.part(), last]

    async def __aenter__(self) -> "Relay":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def queue(self) -> Queue:
        """The queue, for what a program does besides: ``zonemta_py.queue.kannader``, inspection."""
        return self._queue

    @property
    def config(self) -> Config:
        """The configuration in use."""
        return self._config

    @property
    def addresses(self) -> tuple[HostPort, ...]:
        """The addresses of the SMTP listeners, once started."""
        return tuple(self._intake.addresses)

    @property
    def channels(self) -> Channels:
        """The zones with ``transport: dequeue``, for ``dequeue`` and ``adequeue``. Raises LocalError."""
        channels = self._delivery.channels
        if channels is None or self._stopped:
            raise LocalError("the relay is not started: use it inside `async with Relay(…) as relay:`")
        return channels

    async def enqueue(
        self,
        sender: str,
        recipients: Iterable[str],
        message: bytes | AsyncIterable[bytes],
        **options: Unpack[EnqueueOptions],
    ) -> AcceptedId:
        """Accept a message from this program; returns its queue id once it is on disk.

        ``options``: see ``EnqueueOptions``; with the same ``key`` again a message is not sent twice. Raises
        NotAccepted.
        """
        zone = options.get("zone")
        if zone is not None and zone not in self._config.zones:
            raise NotAccepted(f"501 5.1.3 There is no zone '{zone}'")
        injector = self._intake.injector(one_zone(zone) if zone is not None else None)
        return await enqueue(injector, sender, recipients, message, **options)

    async def start(self, *, was_killed: bool = True) -> None:
        """Start all parts. Raises ConfigError or LocalError, with everything closed again.

        ``was_killed``: see ``Queue.recover``.
        """
        self._warn(warnings(self._config, self._config.hostname or socket.getfqdn()))
        try:
            self._parts = Parts(self._make_parts(was_killed))
            await self._parts.start()
        except BaseException:
            await self.stop(0)
            raise
        name, receivers, senders = self._identity
        log.info(
            "zonemta %s: listening on %s, zones %s, %d receiver and %d sender processes",
            name,
            ", ".join(map(str, self.addresses)) or "no address",
            ", ".join(sorted(self._config.zones)),
            receivers,
            senders,
        )

    def _warn(self, found: Iterable[str]) -> None:
        self._warnings = list(found)
        for warning in self._warnings:
            log.warning("%s", warning)

    async def _recover(self, was_killed: bool) -> None:
        queue, config = self._queue, self._config
        await queue.recover(was_killed=was_killed)
        move_to = DEFAULT_ZONE if config.zone_removed == "default" else None
        await settle_removed_zones(
            queue.store, queue.commits, set(config.zones), move_to, clock.now_ms()
        )

    def _takeover_relay(self, store: Store, name: str) -> "Relay":
        """A relay like this one, without listeners, on the queue of another relay."""
        config = takeover_config(self._config, name)
        config.queue.directory.mkdir(parents=True, exist_ok=True)
        return Relay(
            config,
            self._log_level,
            backoff=self._hooks.backoff,
            bounce=self._hooks.bounce,
            policies=self._hooks.policies,
            store=store,
        )

    def status(self) -> dict[str, Any]:
        """The fields of the operation ``status``: version, addresses, processes, and the reasons for which it is not ready."""
        admin = self.admin
        assert admin is not None
        return {
            "version": __version__,
            "hostname": self._config.hostname or socket.getfqdn(),
            "since_ms": self._since_ms,
            "zones": sorted(self._config.zones),
            "config": str(Path(self._config.path).absolute()) if self._config.path else "",
            "listeners": [str(address) for address in self.addresses],
            "http": admin.addresses(),
            "processes": admin.processes(),
            "not_ready": admin.reasons(),
            "warnings": [*admin.warnings, *self._warnings, *self._delivery.egress.unused_state()],
            "sessions_in": self._intake.sessions,
            "sessions_out": sum(zone.sessions for zone in self._delivery.zones.values()),
            "taken_over": self._orphans.names if self._orphans is not None else [],
        }

    def _new_login(self) -> dict[str, Any]:
        assert self.admin is not None
        return self.admin.new_login()

    def set_log_level(self, level: str) -> None:
        """Log messages of ``level`` (debug, info, warning, error) and above, in all processes."""
        set_log_level(level)
        for pool in self._other_processes():
            pool.set_log_level(level)
        log.warning("messages of the level %s and above are logged from now on", level)

    def _other_processes(self) -> Iterator[OtherProcesses]:
        for pool in (self._intake.receivers, self._delivery.senders):
            if pool is not None:
                yield pool

    async def wait_failed(self) -> None:
        """Return when the queue can no longer be written: stop this relay, and start another (``RelayRunner``)."""
        await self._queue.commits.failed.wait()

    async def reload(self, config: Config | None = None) -> list[str]:
        """Use ``config``, or the file of the present one as it is now; returns the keys that changed.

        Files that it names are read again, in a thread; reloads follow each other. Raises ConfigError for one that
        cannot be used, or needs a restart: the present one stays.
        """
        if config is None and not self._config.path:
            raise ConfigError("the configuration was not read from a file")
        async with self._reloading:
            self._check_running()
            present, source = self._config, config or Path(self._config.path)
            try:
                new, prepared = await asyncio.to_thread(self._parts.prepare, source, self._hooks)
            finally:
                self._check_running()
            self._parts.apply(new, prepared)
            await self._parts.follow(new)
        files = [key for each in prepared for key in each.changed]
        changed = list(dict.fromkeys([*changed_keys(present, new.config), *files]))
        log.info("configuration reloaded, changed: %s", ", ".join(changed) or "no key")
        return changed

    def _check_running(self) -> None:
        if self._stopped:
            raise ConfigError("the relay is stopping, no configuration is read")
        if self.admin is None:
            raise ConfigError("the relay is not started, no configuration is read")

    def _prepare_queue(self, new: NewConfig) -> Prepared:
        classifier = make_classifier(new.config.classify.file)

        def apply() -> None:
            self._config = config = new.config
            configure_queue(self._queue, config, classifier)
            self._reporter.configure(config, new.hostname, new.router)
            self._destinations.configure(config.zones)
            use_in_queue(self._queue, config)

        return Prepared(apply)

    def _check_queue(self, new: NewConfig) -> None:
        check_reloadable(self._config, new.config, self._queue.zones_with_mail())

    def _prepare_warnings(self, new: NewConfig) -> Prepared:
        found = list(warnings(new.config, new.hostname))

        def apply() -> None:
            self._warn(found)
            for warning in self._delivery.egress.unused_state():
                log.warning("%s", warning)

        return Prepared(apply)

    async def flush(self) -> int:
        """Make all deferred recipients ready and probe unreachable destinations; returns the number of recipients that became ready."""
        self._delivery.unreachable.clear()  # before mail is ready that would be refused for it
        woken = await flush(self._queue)
        self._delivery.probe()
        woken += await self._orphans.flush() if self._orphans is not None else 0
        log.info("flushed: %d recipients are ready", woken)
        return woken

    async def stop(self, grace_s: float | None = None) -> None:
        """Stop accepting, finish open transactions within ``shutdown_grace``, close the queue. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._queue.begin_stop()
        try:
            await self._parts.stop(self._config.shutdown_grace if grace_s is None else grace_s)
        finally:
            await self._queue.close()
