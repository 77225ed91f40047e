"""The permits of one zone: which of its destinations may send now."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from zonemta_py.config.providers import SMARTHOST
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.zones import ALL, DestinationTable, Zone
from zonemta_py.core import clock
from zonemta_py.delivery.egress import Egress, Resolve
from zonemta_py.delivery.local_agent import is_local
from zonemta_py.egress.admission import ANY_MAIL, Admitted, WorkerSlot
from zonemta_py.egress.closed_addresses import ClosedAddresses
from zonemta_py.egress.limits import FREE, Permit
from zonemta_py.egress.paths import UNTIL_EVENT, Binding, Limit, Refusal
from zonemta_py.egress.providers import BOTH
from zonemta_py.egress.sources import PoolPart, common_families, parse_pool_key, ranked
from zonemta_py.egress.waiting import WaitKey, ZoneWaits
from zonemta_py.queue.ready.windows import ONLY_USUAL

# ---- Where the mail of a zone's destinations goes: to which provider, from which pool, from which addresses.


class EgressRoute(NamedTuple):
    """Where the mail of a destination goes, and from which pool."""

    provider: str
    pool: str
    own_pool: str  # that of the zone, where a rule sends the mail from another one
    part: PoolPart = PoolPart("")  # of ``pool``, whose name it need not have
    families: str = BOTH  # over which its MX hosts can be reached

    def with_pool(self, part: str | None) -> "EgressRoute":
        """The route of mail that leaves from a part of a pool, or a pool; USUAL_POOL or None: from that of the destination."""
        if not part:
            return self
        found = parse_pool_key(part)
        return self._replace(pool=found.pool or self.pool, part=found)

    @property
    def wait_list(self) -> str:
        """What waits for the same addresses has the same one."""
        name = self.part._replace(pool=self.pool).key
        return name if self.families == BOTH else f"{name} {self.families}"


class EgressRoutes:
    """The routes of one zone."""

    def __init__(self, zone: Zone, egress: Egress) -> None:
        self._egress = egress
        self.configure(zone)

    def configure(self, zone: Zone) -> None:
        """Use other settings."""
        self.table = DestinationTable(zone)
        self.is_local = is_local(zone)

    def of(self, destination: str) -> EgressRoute | None:
        """The route of a destination; None while its provider is not known."""
        settings = self.table.settings(destination)
        if destination.startswith(ALL) or settings.smarthost:
            return EgressRoute(SMARTHOST, settings.pool, settings.pool)
        if self.is_local:
            return EgressRoute("", settings.pool, settings.pool)
        provider = self._egress.providers.get(destination)
        if provider is None:
            return None
        pool = self._egress.rerouted_pool(provider, settings.pool)
        families = self._egress.providers.families(destination)
        return EgressRoute(provider, pool, settings.pool, families=families)

    def sources(self, route: EgressRoute) -> list[PoolAddress]:
        """The addresses of the pool of ``route`` that reach its MX hosts."""
        family = self._egress.providers.table.settings(route.provider).family
        return self._egress.sources(route.pool, common_families(family, route.families))

    def provider(self, destination: str) -> str:
        """The provider of ``destination``, as events have it; empty where it is not looked up."""
        route = self.of(destination)
        return route.provider if route is not None and route.provider != SMARTHOST else ""

    def must_look_up(self, destination: str) -> bool:
        """Whether its MX hosts must be found before its mail leaves: they were not, the last time."""
        now_s = clock.monotonic_s()
        return self._egress.providers.is_not_found(destination, now_s) and self.asks_hosts(destination)

    def asks_hosts(self, destination: str) -> bool:
        """Whether the next request to ``destination`` is to find its MX hosts again."""
        if self.is_local or destination.startswith(ALL) or self.table.settings(destination).smarthost:
            return False
        return self._egress.providers.is_stale(destination, clock.monotonic_s())


# ---- zone egress

AHEAD_MAX = 1000  # domains that are looked up before their turn


class ZoneEgress:
    """The ``Admission`` of a zone. ``ready`` is called with a destination that may be served now."""

    def __init__(
        self, name: str, zone: Zone, egress: Egress, resolve: Resolve, ready: Callable[[str], bool]
    ) -> None:
        self._name = name
        self._egress = egress
        self._resolve = resolve
        self._ready = ready
        self._zone_waits = ZoneWaits(egress.wait_lists, ready)
        self._looking_up: set[str] = set()  # destinations before their turn
        self._looked_up: set[str] = set()  # destinations that have not been admitted since
        self.closed = ClosedAddresses()
        self.routes = EgressRoutes(zone, egress)

    def configure(self, zone: Zone) -> list[str]:
        """Use other settings. Returns the destinations that waited at wait lists, and do not any more."""
        self.routes.configure(zone)
        self.closed.clear()
        self._looked_up.clear()
        return self._zone_waits.leave_all()

    # ---- Admission

    def looks_up(self, destination: str) -> bool:
        """See ``Admission``. Its turn must not be spent on the look-up; of more domains at a time it is."""
        look_ups = self._egress.look_ups
        if self.routes.is_local or self.routes.of(destination) is not None:
            return False
        if destination not in self._looking_up:
            if len(look_ups) >= AHEAD_MAX:
                return False
            self._looking_up.add(destination)
            look_ups.add(destination, self._resolve, lambda: self._on_look_up(destination))
        return True

    def admit(self, destination: str) -> Admitted | None:
        """See ``Admission``."""
        egress = self._egress
        if self.routes.is_local and not egress.queue.suspended:
            return ANY_MAIL
        route = self.routes.of(destination)
        is_new = destination not in self._looked_up
        if route is None or (is_new and self.routes.must_look_up(destination)):
            self._zone_waits.drop_turns(destination)
            if destination not in self._looking_up:
                self._looking_up.add(destination)
                egress.look_ups.add(destination, self._resolve, lambda: self._on_look_up(destination))
            return None
        found = self._admitted(destination, route)
        if found is not None:
            self._looked_up.discard(destination)
        return found

    def _admitted(self, destination: str, route: EgressRoute) -> Admitted | None:
        egress = self._egress
        stopped = egress.stopped(
            ("zone", self._name), ("provider", route.provider), ("domain", destination)
        )
        if stopped is not None:
            key = WaitKey(self._name, "", stopped[0])
            self._zone_waits.keep(destination, [key])
            self._wait(destination, key, stopped[1])
            return None
        pools = egress.queue.windows.pool_keys(self._name, destination)
        if self.routes.is_local or all(
            egress.is_free(route.with_pool(pool).pool, route.provider) for pool in pools
        ):
            self._zone_waits.granted_all(destination)
            return ANY_MAIL
        keys = {pool: self._key(route.with_pool(pool)) for pool in pools}
        return self._zone_waits.admit_first(
            destination, keys, lambda pool: self._admit(destination, route.with_pool(pool))
        )

    def _admit(self, destination: str, route: EgressRoute) -> Permit | None:
        """What a worker may send from the pool of ``route``."""
        egress, key = self._egress, self._key(route)
        if egress.is_free(route.pool, route.provider):
            self._zone_waits.granted(destination, key)
            return FREE
        if not self._zone_waits.may_try(destination, key):
            return None
        now_ms, sources = egress.now_ms(), self.routes.sources(route)
        if not sources and egress.is_disabled(route.pool):
            reason = f"every address of the pool '{route.pool}' is disabled"
            self._wait(destination, key, Refusal(Limit.NO_SOURCE, UNTIL_EVENT, reason))
            return None
        if not sources:  # the attempt fails, so that the sender hears of it in time
            self._zone_waits.granted(destination, key)
            return FREE
        order = ranked(sources, f"{destination} {now_ms}")
        permit = self.closed.take(egress, destination, route.provider, route.part, order, now_ms)
        if isinstance(permit, Refusal):
            self._wait(destination, key, permit)
            return None
        self._zone_waits.granted(destination, key)
        return permit

    def _key(self, route: EgressRoute) -> WaitKey:
        return WaitKey(f"{self._name}:{route.wait_list}", route.provider)

    def waiting(self) -> list[tuple[str, str, str]]:
        """The destinations that wait for a permit: for mail that leaves from which part of which pool, and why."""
        window = self._egress.queue.windows.zone(self._name)
        found: list[tuple[str, str, str]] = []
        for destination, key, refusal in self._zone_waits.waiting():
            route = self.routes.of(destination)
            shared = key._replace(cause="")
            is_whole = not key.provider  # whatever the pool
            found += [
                (destination, pool, refusal.reason)
                for pool in window.pool_keys(destination) or ONLY_USUAL
                if is_whole or (route and self._key(route.with_pool(pool)) == shared)
            ]
        return found

    def stopped(self) -> set[str]:
        """The destinations that wait for the end of what an operator has suspended, and for nothing else."""
        found, others = set[str](), set[str]()
        for destination, _, refusal in self._zone_waits.waiting():
            (found if refusal.limit is Limit.OPERATOR else others).add(destination)
        return found - others

    def _on_look_up(self, destination: str) -> None:
        self._looking_up.discard(destination)
        self._looked_up.add(destination)
        if not self._ready(destination):
            self._looked_up.discard(destination)

    def _wait(self, destination: str, key: WaitKey, refusal: Refusal) -> None:
        self._zone_waits.wait(destination, key, refusal, self._egress.now_ms())

    def passed(self, destination: str) -> None:
        """See ``Admission``."""
        self._zone_waits.drop_turns(destination)

    def no_worker_starts(self) -> None:
        """See ``Admission``."""
        self._zone_waits.pass_on()

    def empty(self, destination: str) -> None:
        """See ``Admission``."""
        self._looked_up.discard(destination)
        self._zone_waits.leave(destination)

    def may_continue(self, slot: WorkerSlot) -> bool:
        """See ``Admission``. A worker that may not goes to the wait list with its destination."""
        permit, egress = slot.permit, self._egress
        if permit.granted:
            return True  # its last message was not sent
        if slot.pool_key and (pool := parse_pool_key(slot.pool_key).pool) and pool not in egress.pools:
            return False  # a reload has removed it
        if self.routes.is_local:
            return not egress.stopped(("zone", self._name))
        name = slot.destination.name
        route = self.routes.of(name)
        if route is None or egress.stopped(
            ("zone", self._name), ("provider", route.provider), ("domain", name)
        ):
            return False
        if permit is FREE:
            return all(self._is_free(route.with_pool(pool)) for pool in self._pools(slot))
        if route.provider != permit.provider:
            return False
        return egress.renew(permit, egress.now_ms()) is None

    def _pools(self, slot: WorkerSlot) -> Sequence[str]:
        """The pools from which the mail of the worker leaves."""
        if slot.pool_key is not None:
            return (slot.pool_key,)
        window = self._egress.queue.windows.zone(self._name)
        return window.pool_keys(slot.destination.name) or ONLY_USUAL

    def _is_free(self, route: EgressRoute) -> bool:
        """Whether nothing limits mail from the pool of ``route``, or it is to fail, so that its sender hears of it."""
        if self._egress.is_free(route.pool, route.provider):
            return True
        return not self._egress.is_disabled(route.pool) and not self.routes.sources(route)

    def has_waiters(self, slot: WorkerSlot) -> bool:
        """See ``Admission``. Others are also mail of the same destination that leaves from other pools."""
        destination = slot.destination.name
        route = self.routes.of(destination)
        if route is None or self.routes.is_local:
            return False
        if slot.pool_key is not None:
            pools = self._egress.queue.windows.zone(self._name).pool_keys(destination)
            routes = (route.with_pool(pool) for pool in pools if pool != slot.pool_key)
            if any(self._zone_waits.wait_list(destination, self._key(each)) is None for each in routes):
                return True  # those that wait at a wait list are woken there
        wait_lists = self._egress.wait_lists
        wait_list = wait_lists.get(self._key(route.with_pool(slot.pool_key)))
        if wait_list is not None and wait_list.waiting:
            return True
        return wait_lists.wait_for_session(route.provider, slot.permit.address)

    def ended(self, slot: WorkerSlot) -> None:
        """See ``Admission``. A worker may leave a session, which is what its destination waits for."""
        name = slot.destination.name
        if self.closed.ended(slot, had_session=slot.established):
            self._zone_waits.leave_own_list(name)
            self._ready(name)
        self._egress.release(slot)

    def binding(self, destination: str, now_s: float, pool: str) -> Binding | None:
        """See ``Admission``."""
        egress, route = self._egress, self.routes.of(destination)
        is_needed = route is None or self.routes.must_look_up(destination)
        if is_needed and destination in egress.look_ups:
            return Binding(Limit.PROVIDER_LOOK_UP, now_s, 0.0, "its provider is being looked up")
        if route is None:
            return None
        kinds = ("zone", self._name), ("provider", route.provider), ("domain", destination)
        keys = [WaitKey(self._name, "", f"{kind}:{name}") for kind, name in kinds]
        keys.append(self._key(route.with_pool(pool)))
        wait_lists = (self._zone_waits.wait_list(destination, key) for key in keys)
        wait_list = next((wait_list for wait_list in wait_lists if wait_list is not None), None)
        if wait_list is None or wait_list.refusal is None:
            return None
        now_ms, refusal = egress.now_ms(), wait_list.refusal
        until_s = now_s + (refusal.until_ms - now_ms) / 1000 if refusal.until_ms > now_ms else 0.0
        return Binding(
            refusal.limit, now_s - (now_ms - wait_list.since_ms) / 1000, until_s, refusal.reason
        )

    def not_permitted(self, slot: WorkerSlot) -> None:
        """A session was needed and not allowed: its destination tries other addresses, or waits until one is."""
        self.closed.close(slot, self._egress.now_ms())

    def provider_answers(self, destination: str) -> bool:
        """Whether a message was sent to its provider lately."""
        route = self.routes.of(destination)
        return route is not None and self._egress.permits.is_answering(
            route.provider, self._egress.now_ms()
        )
