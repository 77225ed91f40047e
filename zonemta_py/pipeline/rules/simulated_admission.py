"""The permits of one simulated zone: the ``Admission`` of its scheduler, and from which address each message leaves. Pure.

Follows ``delivery.zone_egress``.
"""

from collections.abc import Callable

from zonemta_py.config.destinations import ALL, DestinationTable
from zonemta_py.config.providers import SMARTHOST
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.zones import Zone
from zonemta_py.delivery.egress_routes import EgressRoute
from zonemta_py.delivery.message_egress import AGAIN_MS
from zonemta_py.pipeline.rules.simulated_egress import SimulatedEgress
from zonemta_py.pipeline.rules.simulated_mail import Earlier, SimulatedMail
from zonemta_py.pipeline.rules.simulated_sessions import SimulatedSession
from zonemta_py.schedule.admission import ANY_MAIL, Admitted
from zonemta_py.schedule.allowance import together
from zonemta_py.schedule.closed_addresses import ClosedAddresses
from zonemta_py.schedule.constraint import Binding, Limit
from zonemta_py.schedule.gate import GateKey
from zonemta_py.schedule.paths import Refusal
from zonemta_py.schedule.permits import FREE, Permit
from zonemta_py.schedule.rate_windows import UNTIL_EVENT
from zonemta_py.schedule.rings import WorkerSlot
from zonemta_py.schedule.sources import BY_SYSTEM, others, preferred, ranked, source_name
from zonemta_py.schedule.zone_gates import ZoneGates

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
        self._zone_gates = ZoneGates(egress.gates, ready, egress.waits)
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
            self._zone_gates.granted_all(destination)
            return ANY_MAIL
        keys = {pool: self._key(route.with_pool(pool)) for pool in pools}
        return self._zone_gates.admit_first(
            destination, keys, lambda pool: self._admit(destination, route.with_pool(pool))
        )

    def _admit(self, destination: str, route: EgressRoute) -> Permit | None:
        egress, key = self._egress, self._key(route)
        if self._is_free(route):
            self._zone_gates.granted(destination, key)
            return FREE
        if not self._zone_gates.may_try(destination, key):
            return None
        sources = egress.sources(route.provider, route.pool)
        now_ms = egress.clock.now_ms
        order = ranked(sources, f"{destination} {now_ms}")
        permit = self._closed.take(egress, destination, route.provider, route.part, order, now_ms)
        if isinstance(permit, Refusal):
            self._zone_gates.wait(destination, key, permit, now_ms)
            return None
        self._zone_gates.granted(destination, key)
        return permit

    def _is_free(self, route: EgressRoute) -> bool:
        return self._egress.is_free(route.pool, route.provider)

    def _key(self, route: EgressRoute) -> GateKey:
        return GateKey(f"{self._name}:{route.gate}", route.provider)

    def passed(self, destination: str) -> None:
        """See ``Admission``."""
        self._zone_gates.give_up_turns(destination)

    def none_starts(self) -> None:
        """See ``Admission``."""
        self._zone_gates.pass_capacity()

    def empty(self, destination: str) -> None:
        """See ``Admission``."""
        self._zone_gates.leave(destination)

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

    def others_wait(self, slot: WorkerSlot) -> bool:
        """See ``Admission``."""
        name = slot.destination.name
        route = self.route(name)
        routes = [route.with_pool(pool) for pool in self._mail.pools(name) if pool != slot.pool_key]
        if slot.pool_key is not None and any(
            self._zone_gates.gate(name, self._key(each)) is None for each in routes
        ):
            return True  # those that wait at a gate are woken there
        gates = self._egress.gates
        gate = gates.get(self._key(route.with_pool(slot.pool_key)))
        if gate is not None and gate.waiting:
            return True
        return gates.wait_for_session(route.provider, slot.permit.address)

    def ended(self, slot: WorkerSlot) -> None:
        """See ``Admission``. Its session stays open for a while."""
        session, permit = self._sessions.pop(slot, None), slot.permit
        if session is not None:
            self._egress.sessions.keep(session, self._zone.timeouts.idle)
        if self._closed.ended(slot, had_session=session is not None):
            self._zone_gates.leave_own_gate(slot.destination.name)
            self._ready(slot.destination.name)
        if permit is not FREE:
            slot.permit = FREE
            self._egress.finish(permit, 0, 0, self._egress.clock.now_ms)
            self._egress.permits.release(permit)

    def binding(self, destination: str, now_s: float, pool: str) -> Binding | None:
        """See ``Admission``."""
        key = self._key(self.route(destination).with_pool(pool))
        gate = self._zone_gates.gate(destination, key)
        if gate is None or gate.refusal is None:
            return None
        until_s = max(0.0, (gate.refusal.until_ms - self._egress.clock.begin_ms) / 1000)
        return Binding(gate.refusal.limit, now_s, until_s, gate.refusal.reason)

    @property
    def has_waiting(self) -> bool:
        """Whether a destination waits for a limit of its provider or of our addresses."""
        return bool(self._zone_gates)

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
        held = "" if slot.draws else slot.source or slot.permit.address
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
