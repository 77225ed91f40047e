"""The sending side of a relay: the workers of every zone, and what they share.

States: made ─ senders, reports and workers start ─▶ delivering ─ drain ─▶ workers have ended ─ close ─▶ closed. ``parts`` are in the order
of their start: the look-ups are closed last.

Invariants:

- A zone has one view: ``ZoneWorkers`` if the relay delivers it, ``ProgramZone`` with ``transport: dequeue``. A reload adds views and
  never removes one; a zone that comes back with another kind of view needs a restart (``_check``).
- The agents of a zone are local (a mailbox, a program), in this process, or ``RemoteAgent`` if there are sender processes.
- A reload uses limits and keys before zones, in the order of ``parts``; the files of providers, warm-ups and shaping are read
  in a thread.
- ``ReadyMail`` is given to the queue before there are workers; the queue's background tasks begin after them.
- Idle sessions are counted in the limits of providers (``_set_idle``), in this process and in the sender processes.

Callers: ``relay.relay`` makes the service, starts ``parts``, and calls ``probe`` for a flush; the admin side reads ``views``.

Example: mail for the zone ``bulk`` arrives. The queue calls its ``ReadyMail`` with ``("bulk", "example.com", False)``, and the workers of
``bulk`` lease it.
"""

import logging
from asyncio import gather, get_running_loop, sleep
from collections.abc import Collection, Iterator, Mapping
from functools import partial

from zonemta_py.config.zones import Zone
from zonemta_py.core.errors import ConfigError, QueueCorrupt
from zonemta_py.core.model import USUAL_KEY, PathKey, PoolKey
from zonemta_py.core.runtime import BackgroundTasks
from zonemta_py.delivery.assembly import AssembledSending
from zonemta_py.delivery.dkim import DkimKeys
from zonemta_py.delivery.egress import Egress, read_egress
from zonemta_py.delivery.local_agent import LocalAgent, is_local
from zonemta_py.delivery.report_composer import DeliveryContext
from zonemta_py.delivery.reports import ReportSender
from zonemta_py.delivery.request import DeliveryAgent
from zonemta_py.delivery.session_pool import SessionsByPath
from zonemta_py.delivery.shaper import EgressFiles
from zonemta_py.delivery.zone_workers import ReadyMail, ZoneWorkers
from zonemta_py.dequeue.channel import Channels
from zonemta_py.egress.paths import Constraint
from zonemta_py.processes.senders import RemoteAgent, SenderPool
from zonemta_py.queue.upkeep.held_mail import HeldMail
from zonemta_py.relay.parts import NewConfig, Part, Prepared
from zonemta_py.routing import DEQUEUE_TRANSPORT
from zonemta_py.schedule.unreachable import UnreachableHosts

SWEEP_EVERY_S = 300.0

log = logging.getLogger(__name__)


def changed_files(old: EgressFiles, new: EgressFiles) -> Iterator[str]:
    """The keys of files in which something else is written now."""
    parts = {
        "providers.file": (old.table.providers, new.table.providers),
        "warmup.file": (tuple(old.schedules), tuple(new.schedules)),
        "shaping.file": (old.rules.rules, new.rules.rules),
    }
    yield from (key for key, (was, will) in parts.items() if was != will)


class ProgramZone:
    """A zone that programs deliver, as an operator sees it."""

    def __init__(self, name: str, channels: Channels) -> None:
        self._name = name
        self._channels = channels

    def ready(self, destination: str, *, low_volume: bool = False) -> None:
        """The queue has mail of the zone."""
        self._channels.wake(self._name)

    def why(self, destination: str, pool: PoolKey = USUAL_KEY) -> Constraint | None:
        """The constraint that no program takes its mail; None while one does."""
        if self._name in self._channels.wakeups:
            return None
        return Constraint(
            "no_program", "no program dequeues this zone", key=f"zones.{self._name}.transport"
        )

    def stopped(self) -> Collection[str]:
        """No destination: no limits of sending apply here."""
        return ()

    def provider(self, destination: str) -> str:
        """No provider, as programs deliver the mail: empty."""
        return ""

    def probe(self, destination: str | None) -> None:
        """No destination is unreachable here: nothing is done."""

    @property
    def sessions(self) -> int:
        """No session of this relay: 0."""
        return 0


AnyZone = ZoneWorkers | ProgramZone


class DeliveryService:
    """Delivers the mail of a queue, by ``senders`` processes, or in this one if that is 0. ``ready``: reports mail.

    ``views``: the zones, as an operator sees them.
    """

    def __init__(
        self,
        context: DeliveryContext,
        dkim_keys: DkimKeys,
        ready: ReadyMail[AnyZone],
        *,
        senders: int,
        log_target: str,
    ) -> None:
        self._context = context
        config, hostname = context.config, context.hostname
        self._reports = ReportSender(context)
        self.unreachable = UnreachableHosts(self._clear_unreachable)
        sessions = SessionsByPath(self._set_idle)
        self._sending = AssembledSending(self.unreachable, sessions, context.rng)
        self._sending.configure(config, hostname, dkim_keys)
        self.senders: SenderPool | None = None
        if senders:
            self.senders = SenderPool(
                config, hostname, self.unreachable, senders, log_target, self._set_idle
            )
        self._tasks = BackgroundTasks()
        self._zones: dict[str, ZoneWorkers] = {}
        self.views = ready.zones
        self.channels: Channels | None = None

    @property
    def egress(self) -> Egress:
        """The limits of providers and addresses."""
        return self._context.egress

    @property
    def held_mail(self) -> HeldMail:
        """The mail that is held for suspensions."""
        return self._context.held_mail

    @property
    def zones(self) -> Mapping[str, ZoneWorkers]:
        """The workers of each zone that this relay delivers itself."""
        return self._zones

    def parts(self) -> list[Part]:
        """Parts of the relay: start, reload and stop."""
        return [
            Part("DKIM and look-ups", close=self._close, prepare=self._prepare_sending),
            Part(
                "the sender processes",
                self._start_senders,
                close=self._close_senders,
                prepare=self._prepare_senders,
            ),
            Part("reports", self._reports.start, close=self._reports.close),
            Part(
                "delivery",
                self._start_workers,
                drain=self._drain,
                prepare=self._prepare_zones,
                check=self._check,
            ),
        ]

    async def _start_senders(self) -> None:
        if self.senders is not None:
            await self.senders.start()

    async def _close_senders(self) -> None:
        if self.senders is not None:
            await self.senders.close()

    def _set_idle(self, path: PathKey, idle: int) -> None:
        self._context.egress.set_idle(path, idle)

    async def _close(self) -> None:
        self._context.egress.close()
        self._sending.close()

    async def _start_workers(self) -> None:
        self.channels = Channels(self._context, get_running_loop(), all_zones=False)
        for name, zone in self._context.config.zones.items():
            self._add_zone(name, zone)
        self._context.egress.arm()  # it is made on the loop, also if no zone asks: a reload reads it in a thread
        self._tasks.start(self._sweep(), "limits of providers")

    async def _sweep(self) -> None:
        """At times, forget what no longer counts, and give up mail that has waited too long for a limit."""
        while True:
            await sleep(SWEEP_EVERY_S)
            try:
                await self._context.egress.forget_old()
                for zone in list(self._zones.values()):
                    await zone.give_up_old()
            except QueueCorrupt as exc:
                log.critical("what is old was not looked at, repair the queue: %s", exc)

    def _add_zone(self, name: str, zone: Zone) -> None:
        if zone.transport == DEQUEUE_TRANSPORT:
            assert self.channels is not None
            self.views[name] = ProgramZone(name, self.channels)
        else:
            self.views[name] = self._zones[name] = ZoneWorkers(name, zone, self._context, self._agent)

    async def _drain(self, grace_s: float) -> None:
        work = [zone.close(grace_s) for zone in self._zones.values()]
        if self.channels is not None:
            work.append(self.channels.close(grace_s))
        await gather(*work)
        await self._tasks.stop()
        self._context.egress.record_due()

    def _agent(self, name: str, zone: Zone) -> DeliveryAgent:
        """The agent that executes the requests of a zone: in this process, or in the sender processes."""
        if is_local(zone):
            return LocalAgent(zone, self._context.hostname)
        if self.senders is not None:
            return RemoteAgent(self.senders, name)
        return self._sending.agent(zone)

    def _clear_unreachable(self, ip: str | None, destination: str | None) -> None:
        if self.senders is not None:
            self.senders.clear_unreachable(ip, destination)

    def _prepare_sending(self, new: NewConfig) -> Prepared:
        context, egress_files = self._context, read_egress(new.config)

        def apply() -> None:
            context.config, context.router, context.hostname = new.config, new.router, new.hostname
            context.egress.configure(new.config, egress_files)
            self._sending.configure(new.config, new.hostname, new.dkim_keys)

        return Prepared(apply, tuple(changed_files(self.egress.files, egress_files)))

    def _prepare_senders(self, new: NewConfig) -> Prepared:
        if self.senders is None:
            return Prepared()
        return Prepared(partial(self.senders.configure, new.config, new.hostname))

    def _check(self, new: NewConfig) -> None:
        """Raises ConfigError for a zone that was removed, and is back with another transport: programs or workers are there."""
        for name, zone in new.config.zones.items():
            view, for_programs = self.views.get(name), zone.transport == DEQUEUE_TRANSPORT
            if view is not None and isinstance(view, ProgramZone) != for_programs:
                before = "another transport" if for_programs else DEQUEUE_TRANSPORT
                raise ConfigError(
                    f"zones.{name}.transport: the zone had {before} since the start of this relay; a change needs a "
                    "restart; no other change of the file is used before"
                )

    def _prepare_zones(self, new: NewConfig) -> Prepared:
        return Prepared(partial(self._configure_zones, new.config.zones))

    def _configure_zones(self, zones: Mapping[str, Zone]) -> None:
        for name, zone in zones.items():
            if name in self._zones:
                self._zones[name].configure(zone)
            elif name not in self.views:
                self._add_zone(name, zone)
                if name in self._zones:
                    self._zones[name].ready_all()

    def probe(self) -> None:
        """Try unreachable destinations of all zones now."""
        for zone in self._zones.values():
            zone.probe(None)
