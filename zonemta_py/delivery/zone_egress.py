"""The permits of one zone: which of its destinations may send now, and from which address each message leaves."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from zonemta_py.config.destinations import ALL, DestinationTable
from zonemta_py.config.schema import PoolAddress
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.egress import Egress
from zonemta_py.delivery.egress_store import Puts
from zonemta_py.delivery.local_agent import is_local
from zonemta_py.delivery.look_ups import Resolve
from zonemta_py.delivery.request import DeliveryResult, EgressOrder
from zonemta_py.events.schema import Event
from zonemta_py.queue.active import Lease
from zonemta_py.queue.outcome import classify_attempts
from zonemta_py.queue.queue import Queue
from zonemta_py.schedule.constraint import Binding, Limit
from zonemta_py.schedule.controller import OF_SENDER
from zonemta_py.schedule.permits import FREE, Permit, Refusal
from zonemta_py.schedule.rate_windows import UNKNOWN
from zonemta_py.schedule.rings import WorkerSlot
from zonemta_py.schedule.shaping import USUAL, Handling, ReplyAbout
from zonemta_py.schedule.sources import BY_SYSTEM, common_families, ranked, source_name, usable
from zonemta_py.smtp.classification import ReplyClass

SMARTHOST = "smarthost"  # the provider of what the smarthosts of a zone get
KEPT_MS = 60_000  # how long a greylisted recipient waits for its address, at most
AGAIN_MS = 2_000  # when a message is tried again for which no address had room


class Way(NamedTuple):
    """Where the mail of a destination goes, and from which pool."""

    provider: str
    pool: str
    own_pool: str  # that of the zone, where a rule sends the mail from another one


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
        self.configure(zone)

    def configure(self, zone: Zone) -> None:
        """Use other settings."""
        self._zone = zone
        self._table = DestinationTable(zone)
        self._is_local = is_local(zone)
        for destination in list(self._waiting):
            self.passed(destination)

    # ---- Admission

    def admit(self, destination: str) -> Permit | None:
        """See ``Admission``."""
        if self._is_local and not self._egress.queue.suspended:
            return FREE
        egress, place = self._egress, self._waiting.get(destination)
        if place is not None:
            gate = egress.gates.get(*place)
            if gate is not None and gate.awake != destination:
                return None  # it waits for its turn
        way = self._way(destination)
        if way is None:
            egress.look_ups.add(destination, self._resolve, lambda: self._looked_up(destination))
            return None
        stopped = egress.stopped(
            ("zone", self._name), ("provider", way.provider), ("domain", destination)
        )
        if stopped is not None:
            self._wait(destination, stopped[0], stopped[1])
            return None
        if self._is_local or egress.is_free(way.pool, way.provider):
            self._granted(destination)
            return FREE
        now_ms, key = egress.now_ms(), f"{self._name}:{way.pool}"
        gate = egress.gates.get(key, way.provider)
        if gate is not None and gate.waiting and gate.awake != destination and gate.refusal is not None:
            self._wait(destination, way.provider, gate.refusal._replace(until_ms=UNKNOWN), way.pool)
            return None
        sources = self._sources(way, destination)
        permit = egress.take(way.provider, ranked(sources, f"{destination} {now_ms}"), now_ms)
        if isinstance(permit, Refusal):
            self._wait(destination, way.provider, permit, way.pool)
            return None
        self._granted(destination)
        return permit

    @property
    def queue(self) -> Queue:
        """The queue whose mail is sent."""
        return self._egress.queue

    def _looked_up(self, destination: str) -> None:
        self._ready(destination)

    def _wait(self, destination: str, provider: str, refusal: Refusal, pool: str = "") -> None:
        place = f"{self._name}:{pool}", provider
        before = self._waiting.get(destination)
        if before is not None and before != place:
            self._egress.gates.emptied(*before, destination)
        self._waiting[destination] = place
        self._egress.gates.wait(*place, destination, self._wake, refusal, self._egress.now_ms())

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
        way = self._way(slot.destination.name)
        if permit is FREE:
            if self._is_local:
                return not egress.stopped(("zone", self._name))
            if way is None or egress.queue.suspended:
                return False if way is None else not self._stopped(slot, way)
            return egress.is_free(way.pool, way.provider)
        if way is None or way.provider != permit.provider or self._stopped(slot, way):
            return False
        return egress.renew(permit, self._entry(way.pool, permit.address), egress.now_ms()) is None

    def _stopped(self, slot: WorkerSlot, way: Way) -> bool:
        name = slot.destination.name
        found = self._egress.stopped(("zone", self._name), ("provider", way.provider), ("domain", name))
        if found is not None:
            return True
        return slot.permit is FREE and not self._egress.is_free(way.pool, way.provider)

    def others_wait(self, destination: str) -> bool:
        """See ``Admission``."""
        way = self._way(destination)
        gate = self._egress.gates.get(f"{self._name}:{way.pool}", way.provider) if way else None
        return gate is not None and bool(gate.waiting)

    def ended(self, slot: WorkerSlot) -> None:
        """See ``Admission``."""
        permit = slot.permit
        if permit is not FREE:
            slot.permit = FREE
            self._egress.end(permit, 0, 0)
            self._egress.permits.release(permit)

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

    # ---- one message

    def _way(self, destination: str) -> Way | None:
        settings = self._table.settings(destination)
        if destination.startswith(ALL) or settings.smarthost:
            return Way(SMARTHOST, settings.pool, settings.pool)
        if self._is_local:
            return Way("", settings.pool, settings.pool)
        provider = self._egress.providers.get(destination)
        if provider is None:
            return None
        return Way(provider, self._egress.pool_of(provider, settings.pool), settings.pool)

    def _sources(self, way: Way, destination: str) -> list[PoolAddress]:
        egress = self._egress
        settings = egress.providers.table.settings(way.provider)
        families = common_families(settings.family, egress.providers.families(destination))
        return usable(egress.pools[way.pool], families)

    def _entry(self, pool: str, name: str) -> PoolAddress:
        found = (each for each in self._egress.pools[pool] if source_name(each) == name)
        return next(found, PoolAddress(None if name == BY_SYSTEM else name))

    def order(self, slot: WorkerSlot, lease: Lease) -> EgressOrder | Refusal | None:
        """From where ``lease`` is sent; None: as the agent chooses. A refusal: none of its addresses has room."""
        egress, way = self._egress, self._way(lease.destination)
        if way is None or self._is_local:
            return None
        pool = self._pool(lease, way)
        if slot.permit is FREE and pool == way.pool:
            return None
        now_ms = egress.now_ms()
        sources = ranked(self._sources(way._replace(pool=pool), lease.destination), lease.active.id)
        found = self._choose(slot, lease, way.provider, sources, now_ms)
        if isinstance(found, Refusal):
            return found
        permit = slot.permit
        if permit is FREE:
            return self._order(way.provider, found, FREE, (-1, -1))
        most = egress.recipients_max(permit, len(lease.recipients), now_ms)
        if most < len(lease.recipients):
            egress.queue.narrow(lease, most)
        idle_max = [-1, -1]
        for number, path in enumerate(permit.paths[:2]):
            limit = path.most()
            if limit is not None:
                idle_max[number] = max(0, limit - path.sessions)
        return self._order(way.provider, found, permit, (idle_max[0], idle_max[1]))

    def _order(
        self, provider: str, entry: PoolAddress, permit: Permit, idle_max: tuple[int, int]
    ) -> EgressOrder:
        settings = self._egress.providers.table.settings(provider)
        messages_max = settings.limits.messages_per_session or 0
        return EgressOrder(
            provider, entry.address, entry.ehlo, permit.connects, messages_max, settings.family, idle_max
        )

    def _pool(self, lease: Lease, way: Way) -> str:
        """The pool of a message: of its tenant, the fallback of its zone, or that of the destination."""
        own = self._egress.tenant_pools.get(lease.active.meta.origin.tenant)
        if own is not None:
            return own
        settings = self._table.settings(lease.destination)
        record = lease.recipients[0].record
        if settings.fallback_pool is None or not record.attempts:
            return way.pool
        if record.attempts >= settings.fallback_after or self._last_class(lease) is ReplyClass.BLOCKED:
            return settings.fallback_pool
        return way.pool

    def _last_class(self, lease: Lease) -> ReplyClass:
        record = lease.recipients[0].record
        classifier = self._egress.queue.classifier
        return classifier.classify("", record.code, record.status, record.text)

    def _choose(
        self, slot: WorkerSlot, lease: Lease, provider: str, sources: list[PoolAddress], now_ms: int
    ) -> PoolAddress | Refusal:
        """The address for a message, whose permit the worker has then.

        A greylisted recipient keeps its address, unless that has no room for long; a blocked one leaves it.
        """
        egress, last = self._egress, lease.recipients[0].record.source
        about = self._last_class(lease) if last else None
        if about is ReplyClass.BLOCKED and len(sources) > 1:
            sources = [each for each in sources if source_name(each) != last]
        kept = [each for each in sources if about is ReplyClass.GREYLISTED and source_name(each) == last]
        if slot.permit is FREE:
            free = [each for each in kept or sources if egress.refusal(provider, each, now_ms) is None]
            if free and not egress.is_limited(provider, free[0]):
                return free[0]
        refused: Refusal | None = None
        for each in kept or sources:
            if source_name(each) == slot.permit.address and slot.permit is not FREE:
                return each
            permit = egress.take(provider, [each], now_ms)
            if isinstance(permit, Permit):
                self.ended(slot)
                slot.permit = permit
                return each
            refused = refused or permit
        if kept and refused is not None and refused.until_ms > now_ms + KEPT_MS:
            return self._choose_any(slot, provider, sources, now_ms)
        return refused or Refusal(Limit.NO_SOURCE, UNKNOWN, "every address of the pool is disabled")

    def _choose_any(
        self, slot: WorkerSlot, provider: str, sources: list[PoolAddress], now_ms: int
    ) -> PoolAddress | Refusal:
        names = {source_name(each): each for each in sources}
        if slot.permit.address in names:
            return names[slot.permit.address]
        permit = self._egress.take(provider, sources, now_ms)
        if isinstance(permit, Refusal):
            return permit
        self.ended(slot)
        slot.permit = permit
        return names[permit.address]

    def again_ms(self, refusal: Refusal) -> int:
        """When a message for which no address had room is tried again (unix ms)."""
        now_ms = clock.now_ms()
        if refusal.until_ms == UNKNOWN:
            return now_ms + AGAIN_MS
        return now_ms + max(1000, min(refusal.until_ms - self._egress.now_ms(), 3_600_000))

    def has_others(self, lease: Lease, attempt: Attempt) -> bool:
        """Whether a refused session says something of our address only, and its pool has other ones."""
        way = self._way(lease.destination)
        if way is None or attempt.reply_class not in OF_SENDER:
            return False
        return len(self._sources(way, lease.destination)) > 1

    def asks_hosts(self, destination: str) -> bool:
        """Whether the next request to ``destination`` is to find its exchangers again."""
        if self._is_local or destination.startswith(ALL) or self._table.settings(destination).smarthost:
            return False
        return self._egress.providers.is_stale(destination, clock.monotonic_s())

    def begin(self, slot: WorkerSlot, opened: int) -> None:
        """The message of the worker is sent now, in a session that is new if ``opened``."""
        if slot.permit is not FREE and slot.permit.granted:
            self._egress.permits.begin(slot.permit, self._egress.now_ms(), opened)

    def end(self, slot: WorkerSlot, lease: Lease, result: DeliveryResult) -> Puts:
        """The request has ended. Returns what is to be stored with its settle."""
        if result.hosts is not None and not lease.destination.startswith(ALL):
            self._egress.learn(lease.destination, result.hosts)
        sent = sum(1 for each in result.attempts if each is not None and each.code)
        opened = int(result.failure is not None)  # a session that was not opened may have been tried
        return self._egress.end(slot.permit, sent, opened)

    def not_permitted(self, slot: WorkerSlot) -> None:
        """A session was needed and not allowed: wait until one is."""
        way = self._way(slot.destination.name)
        if way is not None:
            now_ms = self._egress.now_ms()
            path = self._egress.permits.path(way.provider, slot.permit.address)
            until_ms = path.connects.wait_ms(now_ms) if path.connects is not None else now_ms + 1000
            refusal = Refusal(
                Limit.PROVIDER_CONNECT_RATE, until_ms or now_ms + 1, "no new session is allowed"
            )
            self._wait(slot.destination.name, way.provider, refusal, way.pool)

    def provider(self, destination: str) -> str:
        """The provider of ``destination``, as events have it; empty where it is not looked up."""
        way = self._way(destination)
        return way.provider if way is not None and way.provider != SMARTHOST else ""

    def named(self, lease: Lease, attempts: Sequence[Attempt | None]) -> Sequence[Attempt | None]:
        """``attempts`` with the classes of their replies, and the provider."""
        classifier = self._egress.queue.classifier
        return classify_attempts(classifier, attempts, self.provider(lease.destination))

    def handling(self, lease: Lease, attempts: Sequence[Attempt | None]) -> list[Handling]:
        """What the rules of shaping say of each recipient; recipients share attempts."""
        way, found = self._way(lease.destination), dict[int, Handling]()
        for each in attempts:
            if each is not None and id(each) not in found:
                is_refused = each.reply_class and each.code and way is not None
                found[id(each)] = self._handling(way, lease, each) if is_refused and way else USUAL
        return [USUAL if each is None else found[id(each)] for each in attempts]

    def _handling(self, way: Way, lease: Lease, attempt: Attempt) -> Handling:
        return self._egress.shaper.engine.handling(_about(way, lease, attempt))

    def replies(
        self, lease: Lease, attempts: Sequence[Attempt], now_ms: int
    ) -> tuple[list[Event], Puts]:
        """Report the replies to a message: the events of what they change, and what is to be stored."""
        way = self._way(lease.destination)
        if way is None or not way.provider or way.provider == SMARTHOST:
            return [], []
        about = (_about(way, lease, each) for each in attempts if each.code)
        return self._egress.shaper.replies(about, now_ms)


def _about(way: Way, lease: Lease, attempt: Attempt) -> ReplyAbout:
    address, domain = attempt.source_ip or BY_SYSTEM, lease.recipients[0].record.domain
    return ReplyAbout(
        way.provider, address, way.own_pool, domain, attempt.reply_class, attempt.code, attempt.status,
        attempt.text,
    )  # fmt: skip
