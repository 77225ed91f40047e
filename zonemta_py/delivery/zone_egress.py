"""The permits of one zone: which of its destinations may send now."""

from collections.abc import Callable

from zonemta_py.config.zones import Zone
from zonemta_py.delivery.egress import Egress
from zonemta_py.delivery.look_ups import Resolve
from zonemta_py.delivery.ways import Ways
from zonemta_py.schedule.constraint import Binding, Limit
from zonemta_py.schedule.paths import Refusal
from zonemta_py.schedule.permits import FREE, Permit
from zonemta_py.schedule.rate_windows import UNKNOWN
from zonemta_py.schedule.rings import WorkerSlot
from zonemta_py.schedule.sources import ranked


class ZoneEgress:
    """The ``Admission`` of a zone. ``ready`` is called with a destination that may be served now."""

    def __init__(
        self, name: str, zone: Zone, egress: Egress, resolve: Resolve, ready: Callable[[str], bool]
    ) -> None:
        self._name = name
        self._egress = egress
        self._resolve = resolve
        self._ready = ready
        self._waiting: dict[
            str, tuple[str, str]
        ] = {}  # the gate of each destination: zone and pool, provider
        self.ways = Ways(zone, egress)

    def configure(self, zone: Zone) -> None:
        """Use other settings."""
        self.ways.configure(zone)
        for destination in list(self._waiting):
            self.passed(destination)

    # ---- Admission

    def admit(self, destination: str) -> Permit | None:
        """See ``Admission``."""
        if self.ways.is_local and not self._egress.queue.suspended:
            return FREE
        egress, place = self._egress, self._waiting.get(destination)
        if place is not None:
            gate = egress.gates.get(*place)
            if gate is not None and gate.awake != destination:
                return None  # it waits for its turn
        way = self.ways.of(destination)
        if way is None:
            egress.look_ups.add(destination, self._resolve, lambda: self._looked_up(destination))
            return None
        stopped = egress.stopped(
            ("zone", self._name), ("provider", way.provider), ("domain", destination)
        )
        if stopped is not None:
            self._wait(destination, stopped[0], stopped[1])
            return None
        if self.ways.is_local or egress.is_free(way.pool, way.provider):
            self._granted(destination)
            return FREE
        now_ms, key = egress.now_ms(), f"{self._name}:{way.pool}"
        gate = egress.gates.get(key, way.provider)
        if gate is not None and gate.waiting and gate.awake != destination and gate.refusal is not None:
            self._wait_at(destination, (key, way.provider))
            if egress.gates.join(key, way.provider, destination):
                return None
        sources = self.ways.sources(way, destination)
        if not sources and egress.is_disabled(way.pool):
            reason = f"every address of the pool '{way.pool}' is disabled"
            self._wait(destination, way.provider, Refusal(Limit.NO_SOURCE, UNKNOWN, reason), way.pool)
            return None
        if not sources:  # the attempt fails, so that the sender hears of it in time
            self._granted(destination)
            return FREE
        permit = egress.take(way.provider, ranked(sources, f"{destination} {now_ms}"), now_ms)
        if isinstance(permit, Refusal):
            self._wait(destination, way.provider, permit, way.pool)
            return None
        self._granted(destination)
        return permit

    def waiting(self) -> list[tuple[str, str]]:
        """The destinations that wait for a permit, and why."""
        found = []
        for destination, place in self._waiting.items():
            gate = self._egress.gates.get(*place)
            if gate is not None and gate.refusal is not None:
                found.append((destination, gate.refusal.reason))
        return found

    def _looked_up(self, destination: str) -> None:
        self._ready(destination)

    def _wait(self, destination: str, provider: str, refusal: Refusal, pool: str = "") -> None:
        place = f"{self._name}:{pool}", provider
        self._wait_at(destination, place)
        self._egress.gates.wait(*place, destination, self._wake, refusal, self._egress.now_ms())

    def _wait_at(self, destination: str, place: tuple[str, str]) -> None:
        """It waits at the gate ``place``, and no more at another one."""
        before = self._waiting.get(destination)
        if before is not None and before != place:
            self._egress.gates.emptied(*before, destination)
        self._waiting[destination] = place

    def _wake(self, destination: str) -> bool:
        if self._ready(destination):
            return True
        self._waiting.pop(destination, None)
        return False

    def _granted(self, destination: str) -> None:
        place = self._waiting.pop(destination, None)
        if place is not None:
            self._egress.gates.granted(*place, destination)

    def passed(self, destination: str) -> None:
        """See ``Admission``."""
        place = self._waiting.pop(destination, None)
        if place is not None:
            self._egress.gates.emptied(*place, destination)

    def may_continue(self, slot: WorkerSlot) -> bool:
        """See ``Admission``. A worker that may not goes to the gate with its destination."""
        permit, egress = slot.permit, self._egress
        if permit.granted:
            return True  # its last message was not sent
        if self.ways.is_local:
            return not egress.stopped(("zone", self._name))
        name = slot.destination.name
        way = self.ways.of(name)
        if way is None or egress.stopped(
            ("zone", self._name), ("provider", way.provider), ("domain", name)
        ):
            return False
        if permit is FREE:
            may_fail = not self.ways.sources(way, name) and not egress.is_disabled(way.pool)
            return egress.is_free(way.pool, way.provider) or may_fail
        if way.provider != permit.provider:
            return False
        return egress.renew(permit, egress.now_ms()) is None

    def others_wait(self, destination: str) -> bool:
        """See ``Admission``."""
        way = self.ways.of(destination)
        gate = self._egress.gates.get(f"{self._name}:{way.pool}", way.provider) if way else None
        return gate is not None and bool(gate.waiting)

    def ended(self, slot: WorkerSlot) -> None:
        """See ``Admission``."""
        self._egress.release(slot)

    def binding(self, destination: str, now_s: float) -> Binding | None:
        """See ``Admission``."""
        egress, place = self._egress, self._waiting.get(destination)
        if place is None:
            if destination in egress.look_ups:
                return Binding(Limit.PROVIDER_LOOK_UP, now_s, 0.0, "its provider is being looked up")
            return None
        gate = egress.gates.get(*place)
        if gate is None or gate.refusal is None:
            return None
        now_ms, refusal = egress.now_ms(), gate.refusal
        until_s = now_s + (refusal.until_ms - now_ms) / 1000 if refusal.until_ms > now_ms else 0.0
        return Binding(refusal.limit, now_s - (now_ms - gate.since_ms) / 1000, until_s, refusal.reason)

    def not_permitted(self, slot: WorkerSlot) -> None:
        """A session was needed and not allowed: wait until one is."""
        way = self.ways.of(slot.destination.name)
        if way is not None:
            now_ms = self._egress.now_ms()
            path = self._egress.permits.path(way.provider, slot.permit.address)
            until_ms = path.connects.wait_ms(now_ms) if path.connects is not None else now_ms + 20
            refusal = Refusal(
                Limit.PROVIDER_CONNECT_RATE, until_ms or now_ms + 1, "no new session is allowed"
            )
            self._wait(slot.destination.name, way.provider, refusal, way.pool)
