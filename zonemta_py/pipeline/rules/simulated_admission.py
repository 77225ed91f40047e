"""The permits of one simulated zone: the ``Admission`` of its scheduler, and from which address each message leaves. Pure.

Follows ``delivery.zone_egress``.
"""

from collections.abc import Callable
from typing import NamedTuple

from zonemta_py.config.destinations import ALL, DestinationTable
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.zones import Zone
from zonemta_py.delivery.message_egress import AGAIN_MS, KEPT_MS
from zonemta_py.delivery.ways import SMARTHOST, Way
from zonemta_py.pipeline.rules.simulated_egress import SimulatedEgress
from zonemta_py.pipeline.rules.simulated_sessions import SimulatedSession
from zonemta_py.schedule.constraint import Binding, Limit
from zonemta_py.schedule.paths import Refusal
from zonemta_py.schedule.permits import FREE, Permit
from zonemta_py.schedule.rate_windows import UNKNOWN
from zonemta_py.schedule.rings import WorkerSlot
from zonemta_py.schedule.sources import BY_SYSTEM, preferred, ranked, source_name

LOCAL = ""  # the provider of what is not sent by SMTP
BLOCKED, GREYLISTED = "blocked", "greylisted"


def is_limited(way: Way) -> bool:
    """Whether limits of providers apply at all."""
    return way.provider not in (SMARTHOST, LOCAL)


class Earlier(NamedTuple):
    """The last attempt of a message: its number, the class of the reply, and our address."""

    attempts: int = 0
    reply_class: str = ""
    source: str = ""


class SimulatedAdmission:
    """Of the zone ``name``. ``ready`` is called with a destination that may be served; it returns whether it has mail."""

    def __init__(
        self, name: str, zone: Zone, egress: SimulatedEgress, ready: Callable[[str], bool]
    ) -> None:
        self._name = name
        self._zone = zone
        self._egress = egress
        self._ready = ready
        self._table = DestinationTable(zone)
        self._waiting: dict[str, tuple[str, str]] = {}  # the gate of each destination
        self._sessions: dict[WorkerSlot, SimulatedSession] = {}

    # ---- Admission

    def admit(self, destination: str) -> Permit | None:
        """See ``Admission``."""
        egress, place = self._egress, self._waiting.get(destination)
        if place is not None:
            gate = egress.gates.get(*place)
            if gate is not None and gate.awake != destination:
                return None  # it waits for its turn
        way = self.way(destination)
        if not is_limited(way) or egress.is_free(way.pool, way.provider):
            self._granted(destination)
            return FREE
        gate = egress.gates.get(self._place(way), way.provider)
        if gate is not None and gate.waiting and gate.awake != destination:
            self._wait_at(destination, (self._place(way), way.provider))
            if egress.gates.join(self._place(way), way.provider, destination):
                return None
        sources = egress.sources(way.provider, way.pool)
        order = ranked(sources, f"{destination} {egress.clock.now_ms}")
        permit = egress.take_noted(way.provider, order)
        if isinstance(permit, Refusal):
            self._wait(destination, way, permit)
            return None
        self._granted(destination)
        return permit

    def _place(self, way: Way) -> str:
        return f"{self._name}:{way.pool}"

    def _wait(self, destination: str, way: Way, refusal: Refusal) -> None:
        egress, place = self._egress, (self._place(way), way.provider)
        self._wait_at(destination, place)
        egress.gates.wait(*place, destination, self._wake, refusal, egress.clock.now_ms)

    def _wait_at(self, destination: str, place: tuple[str, str]) -> None:
        """It waits at the gate ``place``, and no more at another one."""
        if self._waiting.get(destination) != place:
            self.passed(destination)
            self._waiting[destination] = place
            self._egress.waits(place[1], 1)

    def _wake(self, destination: str) -> bool:
        if self._ready(destination):
            return True
        self._forget(destination)
        return False

    def _forget(self, destination: str) -> tuple[str, str] | None:
        place = self._waiting.pop(destination, None)
        if place is not None:
            self._egress.waits(place[1], -1)
        return place

    def _granted(self, destination: str) -> None:
        place = self._forget(destination)
        if place is not None:
            self._egress.gates.granted(*place, destination)

    def passed(self, destination: str) -> None:
        """See ``Admission``."""
        place = self._forget(destination)
        if place is not None:
            self._egress.gates.emptied(*place, destination)

    def may_continue(self, slot: WorkerSlot) -> bool:
        """See ``Admission``."""
        permit, way = slot.permit, self.way(slot.destination.name)
        if permit.granted:
            return True  # its last message was not sent
        if permit is FREE:
            return not is_limited(way) or self._egress.is_free(way.pool, way.provider)
        if way.provider != permit.provider:
            return False
        return self._egress.renew(permit, self._egress.clock.now_ms) is None

    def others_wait(self, destination: str) -> bool:
        """See ``Admission``."""
        way = self.way(destination)
        gate = self._egress.gates.get(self._place(way), way.provider)
        return gate is not None and bool(gate.waiting)

    def ended(self, slot: WorkerSlot) -> None:
        """See ``Admission``. Its session stays open for a while."""
        session, permit = self._sessions.pop(slot, None), slot.permit
        if session is not None:
            self._egress.sessions.keep(session, self._zone.timeouts.idle)
        if permit is not FREE:
            slot.permit = FREE
            self._egress.finish(permit, 0, 0, self._egress.clock.now_ms)
            self._egress.permits.release(permit)

    def binding(self, destination: str, now_s: float) -> Binding | None:
        """See ``Admission``."""
        place = self._waiting.get(destination)
        gate = self._egress.gates.get(*place) if place is not None else None
        if gate is None or gate.refusal is None:
            return None
        until_s = max(0.0, (gate.refusal.until_ms - self._egress.clock.begin_ms) / 1000)
        return Binding(gate.refusal.limit, now_s, until_s, gate.refusal.reason)

    @property
    def has_waiting(self) -> bool:
        """Whether a destination waits for a limit of its provider or of our addresses."""
        return bool(self._waiting)

    # ---- one message

    def way(self, destination: str) -> Way:
        """Where mail of ``destination`` goes now."""
        settings = self._table.settings(destination)
        if destination.startswith(ALL) or settings.smarthost:
            return Way(SMARTHOST, settings.pool, settings.pool)
        if self._zone.transport != "smtp":
            return Way(LOCAL, settings.pool, settings.pool)
        provider = self._egress.provider_of(destination)
        return Way(provider, self._egress.pool_of(provider, settings.pool), settings.pool)

    def choose(self, slot: WorkerSlot, message: str, earlier: Earlier) -> str | Refusal:
        """The address for a message, whose permit the worker has then. A greylisted one keeps its address, a blocked one leaves it."""
        egress, way = self._egress, self.way(slot.destination.name)
        settings = self._table.settings(slot.destination.name)
        pool = way.pool
        if settings.fallback_pool is not None and earlier.attempts:
            is_blocked = earlier.reply_class == BLOCKED
            if is_blocked or earlier.attempts >= settings.fallback_after:
                pool = settings.fallback_pool
        usable = egress.sources(way.provider, pool)
        held = "" if slot.draws else slot.source or slot.permit.address
        sources = preferred(usable, message, earlier.source, held)
        if not is_limited(way) or not sources or (slot.permit is FREE and pool == way.pool):
            return source_name(sources[0]) if sources else BY_SYSTEM
        if earlier.reply_class == BLOCKED and len(sources) > 1:
            sources = [each for each in sources if source_name(each) != earlier.source]
        kept = [
            each
            for each in sources
            if earlier.reply_class == GREYLISTED and source_name(each) == earlier.source
        ]
        found = self._take(slot, way.provider, kept or sources)
        late_ms = egress.clock.now_ms + KEPT_MS
        if kept and isinstance(found, Refusal) and found.until_ms > late_ms:
            return self._take(slot, way.provider, sources)
        return found

    def _take(self, slot: WorkerSlot, provider: str, sources: list[PoolAddress]) -> str | Refusal:
        """The first of ``sources`` that the worker has a permit for, or gets one."""
        refused: Refusal | None = None
        for each in sources:
            if slot.permit is not FREE and source_name(each) == slot.permit.address:
                return slot.permit.address
            permit = self._egress.take_noted(provider, [each])
            if isinstance(permit, Permit):
                self.ended(slot)
                slot.permit = permit
                return permit.address
            refused = refused or permit
        return refused or Refusal(Limit.NO_SOURCE, UNKNOWN, "every address of the pool is disabled")

    def again_s(self, refusal: Refusal) -> float:
        """When a message for which no address had room is tried again."""
        clock = self._egress.clock
        if refusal.until_ms == UNKNOWN:
            return clock.now_s + AGAIN_MS / 1000
        return clock.now_s + max(1.0, min((refusal.until_ms - clock.now_ms) / 1000, 3600.0))

    # ---- sessions

    def open_session(self, slot: WorkerSlot) -> bool | None:
        """A session for the message of the worker: whether it is a new one; None: none may be opened now."""
        permit, session = slot.permit, self._sessions.get(slot)
        if permit is FREE:
            return False
        way, opened = (permit.provider, permit.address), False
        if session is None or not session.left or session.way != way:
            session = self._egress.sessions.take(way)
        if session is None:
            if permit.connects == 0:
                return None
            most = self._egress.table.settings(permit.provider).limits.messages_per_session
            own = self._table.settings(slot.destination.name).messages_per_connection
            session, opened = SimulatedSession(way, min(own, most) if most else own), True
            self._egress.sessions.make_room(permit)
        self._sessions[slot] = session
        session.left -= 1
        return opened

    def not_permitted(self, slot: WorkerSlot) -> None:
        """A session was needed and not allowed: its destination waits until one is."""
        egress, way, name = self._egress, self.way(slot.destination.name), slot.permit.address
        clock = egress.clock
        egress.finish(slot.permit, 0, 0, clock.now_ms)
        waits = [each.connects.wait_ms(clock.now_ms) for each in slot.permit.paths if each.connects]
        reason = "no new session is allowed"
        until_ms = max(waits, default=0) or clock.now_ms + 1
        self._wait(slot.destination.name, way, Refusal(Limit.PROVIDER_CONNECT_RATE, until_ms, reason))
        egress.limits.bind((way.provider, name), Limit.PROVIDER_CONNECT_RATE.value, clock.now_s)
