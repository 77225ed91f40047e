"""The destinations of a zone that may send now, as far as limits of providers and of our addresses say. Pure.

``ZoneEgress`` is the ``Admission`` that the scheduler of a zone asks. Of a destination with mail it says: its provider is being
looked up; an operator has suspended something; nothing limits it (``ANY_MAIL``); it has a permit for mail that leaves from
one of its pools; or it waits. States of a destination:

- looked up: its provider is not known; ``ready`` is called when it is;
- at wait lists (``ZoneWaits``): one for each pool that its mail leaves from, in turn with others of the same provider and
  addresses; or one for what an operator has suspended;
- free, or served: a ``WorkerSlot`` has its permit.

A permit may be for a session that is idle, with any host of the provider. It does not help a destination that has other hosts,
where a connect rate allows no new one: ``ClosedAddresses`` remembers the address for it, until one may be opened again.

The route of a destination is looked up when it is admitted, and for each lease (``may_continue``); it is in the slot then, where
``MessageEgress`` finds it.
"""

from collections.abc import Callable, Sequence

from zonemta_py.config.providers import SMARTHOST
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.zones import ALL, DestinationTable, Zone
from zonemta_py.core.model import USUAL_KEY, PoolKey
from zonemta_py.egress.admission import ANY_MAIL, Admitted, WorkerSlot
from zonemta_py.egress.limits import FREE, EgressLimits, Permit
from zonemta_py.egress.paths import UNTIL_EVENT, Binding, Limit, Refusal
from zonemta_py.egress.shared import Resolve, SharedEgress
from zonemta_py.egress.sources import (
    EgressRoute,
    addresses_in,
    common_families,
    ranked,
    source_name,
)
from zonemta_py.egress.waiting import WaitKey, ZoneWaits, ignore_change

ONLY_USUAL = (USUAL_KEY,)
WITH_SESSIONS = ("smtp", "lmtp")  # transports to which limits of providers apply


class EgressRoutes:
    """The routes of the destinations of a zone: provider, pool and addresses."""

    def __init__(self, zone: Zone, egress: SharedEgress) -> None:
        self._egress = egress
        self.version = 0  # of the settings that a route is made of
        self.configure(zone)

    def configure(self, zone: Zone) -> None:
        """Use other settings."""
        self.version += 1
        self.table = DestinationTable(zone)
        self.is_local = zone.transport not in WITH_SESSIONS
        # The same for all destinations with these settings; by their identity, which the table keeps.
        smarthosts = [each for each in self.table.zones if each.smarthost]
        self._to_smarthosts = {id(each): EgressRoute(SMARTHOST, each.pool, each) for each in smarthosts}

    def of(self, destination: str) -> EgressRoute | None:
        """The route of a destination; None while its provider is not known."""
        settings, egress = self.table.settings(destination), self._egress
        if settings.smarthost:
            return self._to_smarthosts[id(settings)]
        if destination.startswith(ALL):
            return EgressRoute(SMARTHOST, settings.pool, settings)
        if self.is_local:
            return EgressRoute("", settings.pool, settings)
        provider = egress.provider(destination)
        if provider is None:
            return None
        pool = egress.rerouted_pool(provider, settings.pool)
        return EgressRoute(provider, pool, settings, families=egress.families(destination))

    def sources(self, route: EgressRoute) -> list[PoolAddress]:
        """The addresses of the pool of ``route`` that reach its MX hosts."""
        family = self._egress.table.settings(route.provider).family
        return self._egress.sources(route.pool, common_families(family, route.families))


AGAIN_MS = 20  # where no window says until when
PRUNE_MIN = 1000  # destinations, before those whose time is over are dropped


class ClosedAddresses:
    """For each destination of a zone: the source addresses that may open no new session, and until when. Times are ms."""

    def __init__(self) -> None:
        self._until_ms: dict[str, dict[str, int]] = {}  # by destination and address
        self._refused: set[WorkerSlot] = set()
        self._prune_at = PRUNE_MIN

    def close(self, slot: WorkerSlot, now_ms: int) -> None:
        """The permit of the worker allowed no new session, and there was none that its destination could use."""
        permit = slot.permit
        waits = [path.connects.wait_ms(now_ms) for path in permit.paths if path.connects is not None]
        until_ms = max(waits, default=now_ms + AGAIN_MS) or now_ms + 1
        self._until_ms.setdefault(slot.destination.name, {})[permit.address] = until_ms
        self._refused.add(slot)
        if len(self._until_ms) > self._prune_at:
            self._until_ms = {
                name: closed for name, closed in self._until_ms.items() if max(closed.values()) > now_ms
            }
            self._prune_at = max(PRUNE_MIN, 2 * len(self._until_ms))

    def ended(self, slot: WorkerSlot, *, had_session: bool) -> bool:
        """The worker has ended. Returns whether addresses were closed for its destination, which can use the session that it leaves."""
        if slot in self._refused:
            self._refused.remove(slot)
            return False
        return had_session and self._until_ms.pop(slot.destination.name, None) is not None

    def clear(self) -> None:
        """Forget everything: a reload may have changed the rates."""
        self._until_ms.clear()

    def open_of(
        self, destination: str, entries: list[PoolAddress], now_ms: int, held: str = ""
    ) -> list[PoolAddress]:
        """Those of ``entries`` that are not closed for it, and the address that a worker of it holds."""
        closed = self._until_ms.get(destination)
        if closed is None:
            return entries
        names = ((each, source_name(each)) for each in entries)
        return [each for each, name in names if name == held or closed.get(name, 0) <= now_ms]

    def take(
        self,
        limits: EgressLimits,
        destination: str,
        provider: str,
        part: PoolKey,
        every: list[PoolAddress],
        now_ms: int,
    ) -> Permit | Refusal:
        """A permit for one of the addresses ``part`` of ``every`` that are open; see ``EgressLimits.take_wanted``."""
        wanted = list(addresses_in(part, every))
        is_open = self.open_of(destination, wanted, now_ms)
        if is_open or not wanted:
            every = self.open_of(destination, every, now_ms)
            return limits.take_wanted(provider, is_open, every, now_ms)
        closed = self._until_ms[destination]
        until_ms = min(closed[source_name(each)] for each in wanted)
        reason = "no new session is allowed"
        return Refusal(Limit.PROVIDER_CONNECT_RATE, until_ms, reason, is_alone=True)


class ZoneEgress:
    """The ``Admission`` of a zone. ``ready`` is called with a destination that may be served now; it returns whether it has mail.

    ``on_change``: see ``ZoneWaits``.
    """

    def __init__(
        self,
        name: str,
        zone: Zone,
        egress: SharedEgress,
        resolve: Resolve,
        ready: Callable[[str], bool],
        on_change: Callable[[str, int], None] = ignore_change,
    ) -> None:
        self._name = name
        self._egress = egress
        self._resolve = resolve
        self._ready = ready
        self._zone_waits = ZoneWaits(egress.wait_lists, ready, on_change)
        self._looking_up: set[str] = set()  # destinations before their turn
        self._looked_up: set[str] = set()  # destinations that have not been admitted since
        # What ``Admission`` says of these, without a call between: each message has several.
        self.skipped = self._zone_waits.drop_turns
        self.no_worker_starts = self._zone_waits.pass_on
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
        """A turn must not be spent on a look-up, so it begins before; with many domains at a time it does not."""
        if self.routes.is_local or self.routes.of(destination) is not None:
            return False
        if destination not in self._looking_up:
            if not self._egress.may_look_ahead():
                return False
            self._look_up(destination)
        return True

    def _look_up(self, destination: str) -> None:
        self._looking_up.add(destination)
        self._egress.look_up(destination, self._resolve, lambda: self._on_look_up(destination))

    def admit(self, destination: str) -> Admitted | None:
        if self.routes.is_local and not self._egress.suspended:
            return ANY_MAIL
        route = self.routes.of(destination)
        is_new = destination not in self._looked_up
        if route is None or (is_new and self._must_look_up(destination, route)):
            self._zone_waits.drop_turns(destination)
            if destination not in self._looking_up:
                self._look_up(destination)
            return None
        found = self._admitted(destination, route)
        if found is not None and not is_new:
            self._looked_up.discard(destination)
        return found

    def _must_look_up(self, destination: str, route: EgressRoute) -> bool:
        """True if its MX hosts must be found before its mail leaves: they were not, the last time."""
        return route.provider not in ("", SMARTHOST) and self._egress.must_look_up(destination)

    def _admitted(self, destination: str, route: EgressRoute) -> Admitted | None:
        stopped = self._stopped(destination, route) if self._egress.suspended else None
        if stopped is not None:
            key = WaitKey(self._name, "", stopped[0])
            self._zone_waits.keep(destination, [key])
            self._wait(destination, key, stopped[1])
            return None
        pools = self._egress.mail.pool_keys(self._name, destination)
        if self.routes.is_local or self._are_free(route, pools):
            self._zone_waits.granted_all(destination)
            return ANY_MAIL
        routes = {pool: route.with_pool(pool) for pool in pools}
        keys = {pool: self._key(each) for pool, each in routes.items()}
        return self._zone_waits.admit_first(
            destination, keys, lambda pool: self._admit(destination, routes[pool], keys[pool])
        )

    def _stopped(self, destination: str, route: EgressRoute) -> tuple[str, Refusal] | None:
        return self._egress.stopped(
            ("zone", self._name), ("provider", route.provider), ("domain", destination)
        )

    def _are_free(self, route: EgressRoute, pools: Sequence[PoolKey]) -> bool:
        """True if nothing can refuse mail that leaves from any of ``pools``."""
        for pool in pools:  # each message asks
            found = route.with_pool(pool) if pool != USUAL_KEY else route
            if not self._egress.is_free(found.pool, found.provider):
                return False
        return True

    def _admit(self, destination: str, route: EgressRoute, key: WaitKey) -> Permit | None:
        """Return what a worker may send from the pool of ``route``."""
        egress = self._egress
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
        addresses = route.part._replace(pool=route.pool)
        return WaitKey(self._name, route.provider, "", addresses, route.families)

    def waiting(self) -> list[tuple[str, PoolKey, str]]:
        """The destinations that wait for a permit: for mail that leaves from which part of which pool, and why."""
        found: list[tuple[str, PoolKey, str]] = []
        for destination, key, refusal in self._zone_waits.waiting():
            route = self.routes.of(destination)
            shared = key._replace(cause="")
            is_whole = not key.provider  # whatever the pool
            found += [
                (destination, pool, refusal.reason)
                for pool in self._egress.mail.zone(self._name).pool_keys(destination) or ONLY_USUAL
                if is_whole or (route and self._key(route.with_pool(pool)) == shared)
            ]
        return found

    def stopped(self) -> set[str]:
        """The destinations that wait for the end of what an operator has suspended, and for nothing else."""
        found, others = set[str](), set[str]()
        for destination, _, refusal in self._zone_waits.waiting():
            (found if refusal.limit is Limit.OPERATOR else others).add(destination)
        return found - others

    @property
    def has_waiting(self) -> bool:
        """True if a destination waits for a limit."""
        return bool(self._zone_waits)

    def _on_look_up(self, destination: str) -> None:
        self._looking_up.discard(destination)
        self._looked_up.add(destination)
        if not self._ready(destination):
            self._looked_up.discard(destination)

    def _wait(self, destination: str, key: WaitKey, refusal: Refusal) -> None:
        self._zone_waits.wait(destination, key, refusal, self._egress.now_ms())

    def no_mail(self, destination: str) -> None:
        self._looked_up.discard(destination)
        self._zone_waits.leave(destination)

    def may_continue(self, slot: WorkerSlot) -> bool:
        """A worker that may not ends, and its destination waits for the limit when it is admitted next."""
        permit, egress, routes = slot.permit, self._egress, self.routes
        route = slot.route = routes.of(slot.destination.name)
        slot.route_version = routes.version
        if permit.granted:
            return True  # its last message was not sent
        if (own := slot.pool_key) is not None and own.pool and own.pool not in egress.pools:
            return False  # a reload has removed it
        if routes.is_local:
            return not egress.stopped(("zone", self._name))
        if route is None:
            return False
        if egress.suspended and self._stopped(slot.destination.name, route) is not None:
            return False
        if permit is FREE:
            return self._is_free(route, slot)
        if route.provider != permit.provider:
            return False
        return egress.renew(permit, egress.now_ms()) is None

    def _is_free(self, route: EgressRoute, slot: WorkerSlot) -> bool:
        """True if nothing limits the mail of the worker, or it is to fail, so that its sender hears of it."""
        pools: Sequence[PoolKey] = (slot.pool_key or USUAL_KEY,)
        if slot.pool_key is None:
            name = slot.destination.name
            pools = self._egress.mail.zone(self._name).pool_keys(name) or ONLY_USUAL
        if self._are_free(route, pools):
            return True
        for pool in pools:
            found = route.with_pool(pool)
            if self._egress.is_free(found.pool, found.provider):
                continue
            if self._egress.is_disabled(found.pool) or self.routes.sources(found):
                return False
        return True

    def has_waiters(self, slot: WorkerSlot) -> bool:
        """Mail of the same destination that leaves from other pools counts as others."""
        destination = slot.destination.name
        route = self.routes.of(destination)
        if route is None or self.routes.is_local:
            return False
        if slot.pool_key is not None:
            pools = self._egress.mail.zone(self._name).pool_keys(destination)
            routes = (route.with_pool(pool) for pool in pools if pool != slot.pool_key)
            if any(self._zone_waits.wait_list(destination, self._key(each)) is None for each in routes):
                return True  # those that wait at a wait list are woken there
        wait_lists = self._egress.wait_lists
        wait_list = wait_lists.get(self._key(route.with_pool(slot.pool_key or USUAL_KEY)))
        if wait_list is not None and wait_list.waiting:
            return True
        return wait_lists.wait_for_session(route.provider, slot.permit.address)

    def ended(self, slot: WorkerSlot) -> None:
        """The worker may leave a session idle, which is what its destination waits for."""
        name = slot.destination.name
        if self.closed.ended(slot, had_session=slot.established):
            self._zone_waits.leave_own_list(name)
            self._ready(name)
        if slot.permit is not FREE:
            self._egress.release(slot)

    def binding(self, destination: str, now_s: float, pool: PoolKey) -> Binding | None:
        egress, route = self._egress, self.routes.of(destination)
        is_needed = route is None or self._must_look_up(destination, route)
        if is_needed and egress.looks_up(destination):
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
        """A session was needed and not allowed: its destination tries other addresses, or waits until one is.

        Without a permit, hosts were found that nothing was asked about: it is admitted again at once.
        """
        if slot.permit is not FREE:
            self.closed.close(slot, self._egress.now_ms())

    def provider_answers(self, destination: str) -> bool:
        """True if a message was sent to its provider lately."""
        route = self.routes.of(destination)
        return route is not None and self._egress.permits.is_answering(
            route.provider, self._egress.now_ms()
        )
