"""One message: from which address it leaves, and what its replies change."""

from collections.abc import Sequence

from zonemta_py.config.providers import SMARTHOST
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.zones import ALL
from zonemta_py.core import clock
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.egress import Egress
from zonemta_py.delivery.request import DeliveryResult, EgressOrder
from zonemta_py.delivery.shaper import Puts
from zonemta_py.delivery.zone_egress import EgressRoute, EgressRoutes
from zonemta_py.egress.admission import WorkerSlot
from zonemta_py.egress.closed_addresses import ClosedAddresses
from zonemta_py.egress.controller import OF_SENDER
from zonemta_py.egress.limits import FREE, Permit, together
from zonemta_py.egress.paths import UNTIL_EVENT, Limit, Refusal
from zonemta_py.egress.rules import USUAL, Handling, ProviderReply
from zonemta_py.egress.sources import BY_SYSTEM, others, preferred, source_name
from zonemta_py.events.schema import Event
from zonemta_py.queue.format.records import RecipientRecord
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.outcome import classify_attempts
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.smtp.reply_class import ReplyClass
from zonemta_py.smtp.verdict import Phase

AGAIN_MS = 2_000  # when a message is tried again for which no address had room


class MessageEgress:
    """Chooses the source address of each message of a zone, and reports its replies to shaping."""

    def __init__(self, egress: Egress, routes: EgressRoutes, closed: ClosedAddresses) -> None:
        self._egress = egress
        self._routes = routes
        self._closed = closed

    @property
    def queue(self) -> Queue:
        """The queue whose mail is sent."""
        return self._egress.queue

    def asks_hosts(self, destination: str) -> bool:
        """Whether the next request to ``destination`` is to find its MX hosts again."""
        return self._routes.asks_hosts(destination)

    def provider(self, lease: Lease) -> str:
        """The provider of the destination, or the word for a smarthost; empty while it is not known."""
        route = self._routes.of(lease.destination)
        return route.provider if route is not None else ""

    def order(self, slot: WorkerSlot, lease: Lease) -> EgressOrder | Refusal | None:
        """From where ``lease`` is sent; None: as the agent chooses. A refusal: none of its addresses has room."""
        egress, route = self._egress, self._routes.of(lease.destination)
        if route is None or self._routes.is_local:
            return None
        route = route.with_pool(self._part(lease))
        pool = route.pool
        family = egress.providers.table.settings(route.provider).family
        is_usual = slot.permit is FREE and pool == route.own_pool and family == "both"
        if is_usual and not self._is_blocked(lease):
            return None
        usable = self._routes.sources(route)
        if not usable and egress.is_disabled(pool):
            return Refusal(
                Limit.NO_SOURCE, UNTIL_EVENT, f"every address of the pool '{pool}' is disabled"
            )
        if not usable:  # the agent says of the attempt what is missing
            is_own = family != "both" and pool == route.own_pool
            return self._order(route.provider, PoolAddress(), FREE, (-1, -1)) if is_own else None
        now_ms, held = egress.now_ms(), slot.permit.address
        usable = self._closed.open_of(lease.destination, usable, now_ms, held) or usable
        found = self._drawn(slot, lease, usable) or self._choose(slot, lease, route.provider, usable)
        if isinstance(found, Refusal):
            return found
        permit = slot.permit
        if permit is FREE:
            return self._order(route.provider, found, FREE, (-1, -1))
        if permit.warming:
            most = egress.recipients_max(permit, len(lease.recipients), egress.now_ms())
            if most < len(lease.recipients):
                egress.queue.narrow(lease, most)
        return self._order(route.provider, found, permit, permit.sessions_max)

    def _order(
        self, provider: str, entry: PoolAddress, permit: Permit, sessions_max: tuple[int, int]
    ) -> EgressOrder:
        settings = self._egress.providers.table.settings(provider)
        messages_max = settings.limits.messages_per_session or 0
        return EgressOrder(
            provider,
            entry.address,
            entry.ehlo,
            permit.connects,
            messages_max,
            settings.family,
            sessions_max,
        )

    def _part(self, lease: Lease) -> str:
        """From where a message leaves, see ``MailPools``."""
        record = lease.recipients[0].record
        return self._egress.queue.windows.pool_key(lease.zone, lease.destination, record)

    def _is_blocked(self, lease: Lease) -> bool:
        """Whether the address of the last attempt was refused."""
        return bool(lease.recipients[0].record.source) and self._last_class(lease) == ReplyClass.BLOCKED

    def _last_class(self, lease: Lease) -> str:
        return self._class_of(lease.recipients[0].record)

    def _class_of(self, record: RecipientRecord) -> str:
        """The class of the last reply; records of earlier versions do not have it, nor the phase that it depends on."""
        classify = self._egress.queue.classifier.classify
        return record.reply_class or classify("", record.code, record.status, record.text)

    def not_sent(self, lease: Lease, recipient: QueuedRecipient, reason: str) -> Attempt:
        """What is said of a recipient to which nothing may be sent for ``reason``, with its last reply and the class of that."""
        record, provider = recipient.record, self._routes.provider(lease.destination)
        if not record.text:
            return Attempt("", 0, "4.3.0", reason, reply_class=ReplyClass.EXPIRED, provider=provider)
        about = self._class_of(record)
        text = f"{reason}; last: {record.text}"
        return Attempt("", 0, "4.3.0", text, reply_class=about, provider=provider)

    def _drawn(self, slot: WorkerSlot, lease: Lease, usable: list[PoolAddress]) -> PoolAddress | None:
        """The address that the worker has drawn, for a message without an attempt, if its permit is for that."""
        permitted = slot.permit.address
        if (
            lease.recipients[0].record.source
            or slot.redraw_source
            or (slot.source or permitted) != permitted
        ):
            return None
        for each in usable:
            if (each.address or BY_SYSTEM) == permitted:
                return each
        return None

    def _choose(
        self, slot: WorkerSlot, lease: Lease, provider: str, usable: list[PoolAddress]
    ) -> PoolAddress | Refusal:
        """The address for a message, whose permit the worker has then.

        A message without an attempt gets the address that the worker has drawn, any other that of its last attempt. A
        greylisted recipient keeps its address, a blocked one leaves it, unless the others have no room for long.
        """
        egress, now_ms = self._egress, self._egress.now_ms()
        drawn = "" if slot.redraw_source else slot.source or slot.permit.address
        last = lease.recipients[0].record.source
        candidates = preferred(usable, lease.active.id, last, drawn)
        allowed = self._allowed(lease, candidates)
        if slot.permit is FREE:
            free = [each for each in allowed if egress.refusal(provider, each, now_ms) is None]
            if free and not egress.is_limited(provider, free[0]):
                return free[0]
        refusals: list[Refusal] = []
        for each in allowed:
            if source_name(each) == slot.permit.address and slot.permit is not FREE:
                return each
            permit = egress.take(provider, [each], now_ms)
            if isinstance(permit, Permit):
                self._egress.release(slot)
                slot.permit = permit
                return each
            refusals.append(permit)
        if len(allowed) < len(candidates) and egress.refuses_for_long(provider, allowed, now_ms):
            return self._choose_any(slot, provider, candidates, now_ms)
        if refusals:
            return together(refusals, now_ms)
        return Refusal(Limit.NO_SOURCE, UNTIL_EVENT, "every address of the pool is disabled")

    def _allowed(self, lease: Lease, candidates: list[PoolAddress]) -> list[PoolAddress]:
        """The addresses that a message may leave from while they are not refused for long.

        The simulator follows the same rule (``pipeline.rules.simulated_admission``).
        """
        last = lease.recipients[0].record.source
        last_class = self._last_class(lease) if last else None
        if last_class == ReplyClass.GREYLISTED:
            return [each for each in candidates if source_name(each) == last] or candidates
        if last_class == ReplyClass.BLOCKED and len(candidates) > 1:
            return others(candidates, lease.active.id, last)
        return candidates

    def _choose_any(
        self, slot: WorkerSlot, provider: str, sources: list[PoolAddress], now_ms: int
    ) -> PoolAddress | Refusal:
        names = {source_name(each): each for each in sources}
        if slot.permit.address in names:
            return names[slot.permit.address]
        permit = self._egress.take(provider, sources, now_ms)
        if isinstance(permit, Refusal):
            return permit
        self._egress.release(slot)
        slot.permit = permit
        return names[permit.address]

    def again_ms(self, refusal: Refusal) -> int:
        """When a message for which no address had room is tried again (unix ms)."""
        now_ms = clock.now_ms()
        if refusal.until_ms == UNTIL_EVENT:
            return now_ms + AGAIN_MS
        return now_ms + max(1000, min(refusal.until_ms - self._egress.now_ms(), 3_600_000))

    def may_use_other_address(self, lease: Lease, attempt: Attempt) -> bool:
        """Whether a refused session says something of our address only, and mail may leave from other ones."""
        return attempt.reply_class in OF_SENDER and len(self._addresses(lease)) > 1

    def _addresses(self, lease: Lease) -> set[str]:
        """From where the mail may leave at all."""
        route = self._routes.of(lease.destination)
        if route is None:
            return set()
        fallback = self._routes.table.settings(lease.destination).fallback_pool
        pools = {route.pool, fallback or route.pool}
        return {
            source_name(each)
            for pool in pools
            for each in self._routes.sources(route._replace(pool=pool))
        }

    def _has_free_address(self, lease: Lease, recipient: QueuedRecipient) -> bool:
        """Whether there is an address that was not refused, after one was: those of a pool are tried one after the other."""
        return recipient.record.blocked + 1 < len(self._addresses(lease))

    def begin(self, slot: WorkerSlot, opened: int) -> None:
        """The message of the worker is sent now, in a session that is new if ``opened``."""
        if slot.permit is not FREE and slot.permit.granted:
            self._egress.permits.begin(slot.permit, self._egress.now_ms(), opened)

    def end(self, slot: WorkerSlot, lease: Lease, result: DeliveryResult) -> Puts:
        """The request has ended. Returns what is to be stored with its settle."""
        # What was not found is for a look-up before the next delivery to say.
        if result.hosts is not None and result.hosts.hosts and not lease.destination.startswith(ALL):
            self._egress.learn(lease.destination, result.hosts)
        sent = sum(
            1
            for each in result.attempts
            if each is not None and each.code and each.phase != Phase.CONNECT
        )
        # A connection that opened no session counts as well.
        return self._egress.end(slot.permit, sent, int(result.tried))

    def lost(self, slot: WorkerSlot, lease: Lease, *, is_sent: bool) -> None:
        """The request has ended without a result: what may have been sent counts as sent."""
        sent = len(lease.recipients) if is_sent else 0
        self.store(self._egress.end(slot.permit, sent, int(is_sent)))

    def store(self, puts: Puts) -> None:
        """Store what ``end`` returned, where no settle follows."""
        self._egress.store(puts)

    def named(self, lease: Lease, attempts: Sequence[Attempt | None]) -> Sequence[Attempt | None]:
        """``attempts`` with the classes of their replies, and the provider."""
        classifier, provider = self._egress.queue.classifier, self._routes.provider(lease.destination)
        sender = lease.active.meta.sender
        if sender == lease.recipients[0].address:
            sender = ""  # a reply that names it is about the recipient
        return classify_attempts(classifier, attempts, provider, sender)

    def handling(self, lease: Lease, attempts: Sequence[Attempt | None]) -> list[Handling]:
        """What the rules of shaping say of each recipient; recipients share attempts."""
        route, found = self._routes.of(lease.destination), dict[int, Handling]()
        for each in attempts:
            if each is not None and id(each) not in found:
                is_refused = each.reply_class and each.code and route is not None
                found[id(each)] = self._handling(route, lease, each) if is_refused and route else USUAL
        handling = [USUAL if each is None else found[id(each)] for each in attempts]
        for number, each in enumerate(attempts):
            if each is not None and each.code >= 500 and each.reply_class == ReplyClass.BLOCKED:
                recipient = lease.recipients[number]
                if self._has_free_address(lease, recipient):
                    handling[number] = handling[number]._replace(defers=True)
        return handling

    def _handling(self, route: EgressRoute, lease: Lease, attempt: Attempt) -> Handling:
        return self._egress.shaper.engine.handling(_about(route, lease, attempt))

    def replies(
        self, lease: Lease, attempts: Sequence[Attempt], now_ms: int
    ) -> tuple[list[Event], Puts]:
        """Report the replies to a message: the events of what they change, and what is to be stored."""
        route = self._routes.of(lease.destination)
        if route is None or not route.provider or route.provider == SMARTHOST:
            return [], []
        about = (_about(route, lease, each) for each in attempts if each.code)
        now_ms = self._egress.steady_ms(now_ms)
        return self._egress.shaper.replies(about, lease.active.id, now_ms)


def of_same_address(lease: Lease) -> int:
    """How many recipients, from the first on, have had their last attempt from the same source address."""
    first = lease.recipients[0].record.source
    for number, recipient in enumerate(lease.recipients):
        if recipient.record.source != first:
            return number
    return len(lease.recipients)


def _about(route: EgressRoute, lease: Lease, attempt: Attempt) -> ProviderReply:
    address, domain = attempt.source_ip or BY_SYSTEM, lease.recipients[0].record.domain
    return ProviderReply(
        route.provider, address, route.own_pool, domain, attempt.reply_class, attempt.code, attempt.status,
        attempt.text,
    )  # fmt: skip
