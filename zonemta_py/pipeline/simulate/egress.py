"""The permits of one simulated zone: the ``Admission`` of its scheduler, and from which address each message leaves. Pure.

Follows ``delivery.zone_egress``.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from zonemta_py.config.providers import NO_LIMITS, SMARTHOST, ProviderSettings, ProviderTable
from zonemta_py.config.sending import ControllerSettings, PoolAddress
from zonemta_py.config.shaping import ShapingRule, ShapingRules
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.config.zones import ALL, DestinationTable, Zone
from zonemta_py.core.model import PathKey
from zonemta_py.delivery.message_egress import AGAIN_MS
from zonemta_py.delivery.zone_egress import EgressRoute
from zonemta_py.egress.admission import ANY_MAIL, Admitted, WorkerSlot
from zonemta_py.egress.closed_addresses import ClosedAddresses
from zonemta_py.egress.controller import ShapingChange, slowed_warmup
from zonemta_py.egress.limits import FREE, Allowance, Permit, together
from zonemta_py.egress.paths import UNTIL_EVENT, Binding, Limit, Refusal
from zonemta_py.egress.rules import POOL, ProviderReply, ShapingEngine
from zonemta_py.egress.sources import (
    BY_SYSTEM,
    common_families,
    limits_of_addresses,
    names_in_pools,
    others,
    preferred,
    ranked,
    source_name,
    usable,
)
from zonemta_py.egress.waiting import WaitKey, WaitLists, ZoneWaits
from zonemta_py.pipeline.simulate.mail import (
    Earlier,
    SimulatedMail,
    SimulatedSession,
    SimulatedSessions,
    VirtualClock,
)
from zonemta_py.pipeline.simulate.prediction import PathLimits

# ---- The limits that the zones of a simulated relay share: those of ``delivery.egress`` on a virtual clock. Pure.
#
# Permits, wait lists, controller, rules of shaping and warm-up are the relay's own code.

DEFAULT_POOLS = {"default": (PoolAddress(),)}


@dataclass(frozen=True, slots=True)
class SendingSettings:
    """What a configuration and its files say of providers, shaping, warm-up and our addresses; all of it is data."""

    providers: Mapping[str, ProviderSettings] = field(default_factory=dict)
    rules: Sequence[ShapingRule] = ()
    schedules: Sequence[WarmupSchedule] = ()
    controller: ControllerSettings = ControllerSettings(enabled=False)
    pools: Mapping[str, Sequence[PoolAddress]] = field(default_factory=lambda: DEFAULT_POOLS)


class RecordedDomain(NamedTuple):
    """What events say of a domain: its provider when they were recorded (itself: none), and the hosts that were tried."""

    provider: str
    hosts: tuple[str, ...]


class SimulatedEgress(Allowance):
    """One for all zones of a scenario."""

    def __init__(
        self, settings: SendingSettings, domains: Mapping[str, RecordedDomain], clock: VirtualClock
    ) -> None:
        self.wait_lists = WaitLists(self._arm)
        super().__init__(self.wait_lists.capacity_on_path)
        self.clock = clock
        self.engine = ShapingEngine()
        self.table = ProviderTable(settings.providers)
        self.pools = settings.pools
        self.limits = PathLimits()
        self.sessions = SimulatedSessions(self.permits, clock)
        self.waiting: Counter[str] = Counter()  # destinations that wait for a provider
        self._domains = domains
        self._providers: dict[str, str] = {}
        self._free: dict[tuple[str, str], bool] = {}  # by pool and provider
        self._steps: list[tuple[int, PathKey]] = []  # when paces come up, a heap
        self.settled = 0  # how many transactions have ended
        self._armed_ms: int | None = None
        addresses = limits_of_addresses(settings.pools)
        self.permits.configure(lambda name: self.table.settings(name).limits, addresses)
        self.engine.configure(
            settings.controller, ShapingRules(settings.rules), lambda name: self.table.settings(name).limits,
            names_in_pools(settings.pools),
        )  # fmt: skip
        self.warmup.configure(settings.schedules, {})

    # ---- what the zones ask

    def provider_of(self, domain: str) -> str:
        """The provider of ``domain``: by the table if that knows the domain or its hosts, else the recorded one."""
        found = self._providers.get(domain)
        if found is None:
            found = self._providers[domain] = self._find(domain)
        return found

    def _find(self, domain: str) -> str:
        listed = self.table.of_domain(domain)
        recorded = self._domains.get(domain)
        if listed or recorded is None:
            return listed or domain
        by_hosts = self.table.of(domain, recorded.hosts)
        if by_hosts in self.table.providers:
            return by_hosts
        return by_hosts if recorded.provider == domain else recorded.provider

    def is_free(self, pool: str, provider: str) -> bool:
        """Whether nothing can refuse mail from ``pool`` to ``provider``."""
        free = self._free.get((pool, provider))
        if free is None:
            settings = self.table.settings(provider)
            free = self._free[pool, provider] = (
                settings.limits == NO_LIMITS
                and settings.family == "both"
                and not any(self.is_limited(provider, entry) for entry in self.pools[pool])
            )
        return free

    def rerouted_pool(self, provider: str, pool: str) -> str:
        """The pool of mail to ``provider``: ``pool``, or what a rule says instead."""
        return self.engine.rerouted_pool(provider, pool, self.clock.now_ms)

    def sources(self, provider: str, pool: str) -> list[PoolAddress]:
        """The addresses of ``pool`` that may be used with ``provider``."""
        families = common_families(self.table.settings(provider).family, "both")
        return usable(self.pools[pool], families)

    def take(self, provider: str, entries: Sequence[PoolAddress], now_ms: int) -> Permit | Refusal:
        """See ``Allowance``; which limit bound each address is noted."""
        now_s, found = self.clock.now_s, super().take(provider, entries, now_ms)
        if isinstance(found, Permit):
            self.limits.free((provider, found.address), now_s)
            return found
        for entry in entries:
            refused = self.refusal(provider, entry, now_ms)
            if refused is not None:
                self.limits.bind((provider, source_name(entry)), refused.limit.value, now_s)
        return found

    def waits(self, provider: str, number: int) -> None:
        """``number`` more destinations wait for ``provider``; negative: fewer."""
        self.waiting[provider] += number
        if not self.waiting[provider]:
            self.limits.free_provider(provider, self.clock.now_s)

    # ---- what replies change

    def reply(self, reply: ProviderReply, count: int) -> None:
        """``count`` recipients of the transaction that was ``settled`` last have got a reply."""
        for each in self.warmup.of(reply.address, reply.provider) if self.warmup else ():
            for _ in range(count):
                each.tried(reply.provider, self.clock.now_ms)
        if changes := self.engine.reply(reply, str(self.settled), self.clock.now_ms):
            self._apply(changes)

    def _apply(self, changes: Collection[ShapingChange]) -> None:
        """As ``delivery.shaper`` does: the permits follow, and a pace that was lowered slows down the warm-up."""
        for change in changes:
            self.limits.changed(change)
            if change.address:
                self._follow((change.provider, change.address))
            if change.what == POOL:
                for (provider, _), each in self.engine.reroutes.items():
                    if provider == change.provider:
                        self.clock.at_ms(each.until_ms, self._end_reroutes)
            if change.is_raise or change.what == POOL:
                continue
            for warming in self.warmup.of(change.address, change.provider):
                if warming.depends_on(change.provider) and warming.slow(change.time_ms):
                    self.limits.changed(slowed_warmup(change))
        self._free.clear()
        self._arm()
        for provider in {change.provider for change in changes}:
            self.wait_lists.capacity_at_provider(provider)
            self.wait_lists.release_at(provider, self.clock.now_ms)

    def _end_reroutes(self) -> None:
        if changes := self.engine.end_reroutes(self.clock.now_ms):
            self._apply(changes)

    def _follow(self, key: PathKey) -> None:
        self.permits.path(*key).ceiling.follow(self.engine.controller.paces.get(key))
        due_ms = self.engine.controller.due_ms(key)
        if due_ms is not None:
            heappush(self._steps, (due_ms, key))

    # ---- time

    def _arm(self) -> None:
        due = [self._steps[0][0]] if self._steps else []
        if self.wait_lists.due_ms is not None:
            due.append(self.wait_lists.due_ms)
        if due and (self._armed_ms is None or min(due) < self._armed_ms):
            self._armed_ms = min(due)
            self.clock.at_ms(self._armed_ms, self._on_timer)

    def _on_timer(self) -> None:
        now_ms = self.clock.now_ms
        if self._armed_ms is None or self._armed_ms > now_ms:
            return  # an earlier timer has done it
        self._armed_ms = None
        changes: list[ShapingChange] = []
        while self._steps and self._steps[0][0] <= now_ms:
            _, key = heappop(self._steps)
            changes += self.engine.controller.advance(key, now_ms)
        if changes:
            self._apply(changes)
        self.wait_lists.run_due(now_ms)
        self._arm()


# ---- simulated admission

LOCAL = ""  # the provider of what is not sent by SMTP
BLOCKED, GREYLISTED = "blocked", "greylisted"


def is_limited(route: EgressRoute) -> bool:
    """Whether limits of providers apply at all."""
    return route.provider not in (SMARTHOST, LOCAL)


class SimulatedAdmission:
    """Of the zone ``name``. ``ready`` is called with a destination that may be served; it returns whether it has mail."""

    def __init__(
        self,
        name: str,
        zone: Zone,
        egress: SimulatedEgress,
        ready: Callable[[str], bool],
        mail: SimulatedMail,
    ) -> None:
        self._name = name
        self._zone = zone
        self._egress = egress
        self._mail = mail
        self._table = DestinationTable(zone)
        self._zone_waits = ZoneWaits(egress.wait_lists, ready, egress.waits)
        self._closed = ClosedAddresses()
        self._ready = ready
        self._sessions: dict[WorkerSlot, SimulatedSession] = {}

    # ---- Admission

    def looks_up(self, destination: str) -> bool:
        """See ``Admission``. The record names the provider."""
        return False

    def admit(self, destination: str) -> Admitted | None:
        """See ``Admission``."""
        route, pools = self.route(destination), self._mail.pools(destination)
        if not is_limited(route) or all(self._is_free(route.with_pool(pool)) for pool in pools):
            self._zone_waits.granted_all(destination)
            return ANY_MAIL
        keys = {pool: self._key(route.with_pool(pool)) for pool in pools}
        return self._zone_waits.admit_first(
            destination, keys, lambda pool: self._admit(destination, route.with_pool(pool))
        )

    def _admit(self, destination: str, route: EgressRoute) -> Permit | None:
        egress, key = self._egress, self._key(route)
        if self._is_free(route):
            self._zone_waits.granted(destination, key)
            return FREE
        if not self._zone_waits.may_try(destination, key):
            return None
        sources = egress.sources(route.provider, route.pool)
        now_ms = egress.clock.now_ms
        order = ranked(sources, f"{destination} {now_ms}")
        permit = self._closed.take(egress, destination, route.provider, route.part, order, now_ms)
        if isinstance(permit, Refusal):
            self._zone_waits.wait(destination, key, permit, now_ms)
            return None
        self._zone_waits.granted(destination, key)
        return permit

    def _is_free(self, route: EgressRoute) -> bool:
        return self._egress.is_free(route.pool, route.provider)

    def _key(self, route: EgressRoute) -> WaitKey:
        return WaitKey(f"{self._name}:{route.wait_list}", route.provider)

    def passed(self, destination: str) -> None:
        """See ``Admission``."""
        self._zone_waits.drop_turns(destination)

    def no_worker_starts(self) -> None:
        """See ``Admission``."""
        self._zone_waits.pass_on()

    def empty(self, destination: str) -> None:
        """See ``Admission``."""
        self._zone_waits.leave(destination)

    def may_continue(self, slot: WorkerSlot) -> bool:
        """See ``Admission``."""
        permit, route = slot.permit, self.route(slot.destination.name)
        if permit.granted:
            return True  # its last message was not sent
        if permit is FREE:
            pools = (
                (slot.pool_key,)
                if slot.pool_key is not None
                else self._mail.pools(slot.destination.name)
            )
            return not is_limited(route) or all(self._is_free(route.with_pool(pool)) for pool in pools)
        if route.provider != permit.provider:
            return False
        return self._egress.renew(permit, self._egress.clock.now_ms) is None

    def has_waiters(self, slot: WorkerSlot) -> bool:
        """See ``Admission``."""
        name = slot.destination.name
        route = self.route(name)
        routes = [route.with_pool(pool) for pool in self._mail.pools(name) if pool != slot.pool_key]
        if slot.pool_key is not None and any(
            self._zone_waits.wait_list(name, self._key(each)) is None for each in routes
        ):
            return True  # those that wait at a wait list are woken there
        wait_lists = self._egress.wait_lists
        wait_list = wait_lists.get(self._key(route.with_pool(slot.pool_key)))
        if wait_list is not None and wait_list.waiting:
            return True
        return wait_lists.wait_for_session(route.provider, slot.permit.address)

    def ended(self, slot: WorkerSlot) -> None:
        """See ``Admission``. Its session stays open for a while."""
        session, permit = self._sessions.pop(slot, None), slot.permit
        if session is not None:
            self._egress.sessions.keep(session, self._zone.timeouts.idle)
        if self._closed.ended(slot, had_session=session is not None):
            self._zone_waits.leave_own_list(slot.destination.name)
            self._ready(slot.destination.name)
        if permit is not FREE:
            slot.permit = FREE
            self._egress.finish(permit, 0, 0, self._egress.clock.now_ms)
            self._egress.permits.release(permit)

    def binding(self, destination: str, now_s: float, pool: str) -> Binding | None:
        """See ``Admission``."""
        key = self._key(self.route(destination).with_pool(pool))
        wait_list = self._zone_waits.wait_list(destination, key)
        if wait_list is None or wait_list.refusal is None:
            return None
        until_s = max(0.0, (wait_list.refusal.until_ms - self._egress.clock.begin_ms) / 1000)
        return Binding(wait_list.refusal.limit, now_s, until_s, wait_list.refusal.reason)

    @property
    def has_waiting(self) -> bool:
        """Whether a destination waits for a limit of its provider or of our addresses."""
        return bool(self._zone_waits)

    # ---- one message

    def route(self, destination: str) -> EgressRoute:
        """Where mail of ``destination`` goes now."""
        settings = self._table.settings(destination)
        if destination.startswith(ALL) or settings.smarthost:
            return EgressRoute(SMARTHOST, settings.pool, settings.pool)
        if self._zone.transport != "smtp":
            return EgressRoute(LOCAL, settings.pool, settings.pool)
        provider = self._egress.provider_of(destination)
        return EgressRoute(provider, self._egress.rerouted_pool(provider, settings.pool), settings.pool)

    def choose(self, slot: WorkerSlot, message: str, earlier: Earlier) -> str | Refusal:
        """The address for a message, whose permit the worker has then. A greylisted one keeps its address, a blocked one leaves it."""
        egress, route = self._egress, self.route(slot.destination.name)
        own_pool, route = (
            route.pool,
            route.with_pool(self._mail.pool_key(slot.destination.name, earlier)),
        )
        name, now_ms, permitted = slot.destination.name, egress.clock.now_ms, slot.permit.address
        usable = egress.sources(route.provider, route.pool)
        usable = self._closed.open_of(name, usable, now_ms, permitted) or usable
        held = "" if slot.redraw_source else slot.source or slot.permit.address
        sources = every = preferred(usable, message, earlier.source, held)
        if not is_limited(route) or not sources or (slot.permit is FREE and route.pool == own_pool):
            return source_name(sources[0]) if sources else BY_SYSTEM
        if earlier.reply_class == BLOCKED and len(sources) > 1:
            sources = others(sources, message, earlier.source)
        kept = [
            each
            for each in sources
            if earlier.reply_class == GREYLISTED and source_name(each) == earlier.source
        ]
        found = self._take(slot, route.provider, kept or sources)
        wanted = kept or sources
        if (
            isinstance(found, Refusal)
            and len(wanted) < len(every)
            and egress.refuses_for_long(route.provider, wanted, egress.clock.now_ms)
        ):
            return self._take(slot, route.provider, every)
        return found

    def _take(self, slot: WorkerSlot, provider: str, sources: list[PoolAddress]) -> str | Refusal:
        """The first of ``sources`` that the worker has a permit for, or gets one."""
        now_ms = self._egress.clock.now_ms
        refusals: list[Refusal] = []
        for each in sources:
            if slot.permit is not FREE and source_name(each) == slot.permit.address:
                return slot.permit.address
            permit = self._egress.take(provider, [each], now_ms)
            if isinstance(permit, Permit):
                self.ended(slot)
                slot.permit = permit
                return permit.address
            refusals.append(permit)
        if refusals:
            return together(refusals, now_ms)
        return Refusal(Limit.NO_SOURCE, UNTIL_EVENT, "every address of the pool is disabled")

    def again_s(self, refusal: Refusal) -> float:
        """When a message for which no address had room is tried again."""
        clock = self._egress.clock
        if refusal.until_ms == UNTIL_EVENT:
            return clock.now_s + AGAIN_MS / 1000
        return clock.now_s + max(1.0, min((refusal.until_ms - clock.now_ms) / 1000, 3600.0))

    # ---- sessions

    def open_session(self, slot: WorkerSlot) -> bool | None:
        """A session for the message of the worker: whether it is a new one; None: none may be opened now."""
        permit, session = slot.permit, self._sessions.get(slot)
        if permit is FREE:
            return False
        session_path, opened = (permit.provider, permit.address), False
        if session is None or not session.left or session.path != session_path:
            session = self._egress.sessions.take(session_path)
        if session is None:
            if permit.connects == 0:
                return None
            most = self._egress.table.settings(permit.provider).limits.messages_per_session
            own = self._table.settings(slot.destination.name).messages_per_connection
            session, opened = SimulatedSession(session_path, min(own, most) if most else own), True
            self._egress.sessions.make_room(permit)
        self._sessions[slot] = session
        session.left -= 1
        return opened

    def not_permitted(self, slot: WorkerSlot) -> None:
        """A session was needed and not allowed: its destination waits until one is."""
        egress, route, name = self._egress, self.route(slot.destination.name), slot.permit.address
        clock = egress.clock
        egress.finish(slot.permit, 0, 0, clock.now_ms)
        self._closed.close(slot, clock.now_ms)
        egress.limits.bind((route.provider, name), Limit.PROVIDER_CONNECT_RATE.value, clock.now_s)
