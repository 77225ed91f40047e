"""One message: from which address it leaves, and what its replies say of its recipients. Pure.

A worker asks three times for each lease; a simulated one, whose replies have a class, asks ``actions`` instead of ``report``:

    decision = messages.decide(slot, mail)              # an order, a refusal, or: as the agent chooses
    report = messages.report(slot, decision, result)    # classified attempts, and what the rules say of each recipient
    events, puts = messages.settled(decision, attempts, now_ms)  # what the replies change, at the time of their events

``settled`` is apart from ``report``: between them reports to senders are composed, and replies must count in the order in which
their events are recorded, or a replay of the log would find other changes.

A message without an attempt leaves from the address that the worker has drawn. A retry leaves from that of the last attempt: a
greylisting server must see it come from there. One that was blocked leaves its address, also where nothing limits it
(decision 113). If none of the addresses that a message may leave from has room for long, it takes any.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from zonemta_py.config.providers import SMARTHOST
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.zones import ALL
from zonemta_py.core.model import USUAL_KEY, Attempt, PoolKey
from zonemta_py.egress.admission import WorkerSlot
from zonemta_py.egress.controller import OF_SENDER
from zonemta_py.egress.limits import FREE, Permit, merge_refusals
from zonemta_py.egress.paths import UNTIL_EVENT, EgressOrder, Limit, Refusal
from zonemta_py.egress.rules import USUAL, ProviderReply, RecipientAction
from zonemta_py.egress.shared import Puts, SharedEgress
from zonemta_py.egress.sources import BOTH, BY_SYSTEM, EgressRoute, others, preferred, source_name
from zonemta_py.egress.zone import ClosedAddresses, EgressRoutes
from zonemta_py.events.schema import Event
from zonemta_py.smtp.mx_order import MxAnswer
from zonemta_py.smtp.reply_class import ReplyClass
from zonemta_py.smtp.verdict import Phase

AGAIN_MS = 2_000  # when a message is tried again for which no address had room
AGAIN_MIN_MS, AGAIN_MAX_MS = 1_000, 3_600_000
ANY_NUMBER = (-1, -1)  # of sessions


class LeasedMail(NamedTuple):
    """Recipients of one message at one destination that a worker has taken, and their last attempt, which they share.

    ``sender``: empty where a reply that names it is about the recipient. ``last_source``, ``last_class``: the source address of
    the last attempt and the class of its reply. ``blocked``: of each recipient, how many attempts were refused for good because
    of our address.
    """

    message: str
    destination: str
    domain: str
    blocked: Sequence[int]
    pool_key: PoolKey = USUAL_KEY
    sender: str = ""
    last_source: str = ""
    last_class: str = ""


class Decision(NamedTuple):
    """From where a message is sent now. ``route`` None: its provider is not known.

    ``provider``: as events have it, empty where it is not looked up. ``order`` None: the agent chooses the address, ``prefers`` if it can be. ``refusal``: nothing may be sent. ``recipients``: how
    many at most. ``asks_hosts``: the result is to have the hosts of the domain. ``lacks_hosts``: see ``DeliveryRequest``.
    """

    mail: LeasedMail
    route: EgressRoute | None
    provider: str
    order: EgressOrder | None = None
    refusal: Refusal | None = None
    recipients: int = 0
    prefers: str = ""
    asks_hosts: bool = False
    lacks_hosts: bool = False


class RequestResult(Protocol):
    """How a request ended, see ``delivery.request.DeliveryResult``."""

    @property
    def attempts(self) -> Sequence[Attempt | None]:
        """One attempt for each recipient; None: nothing was tried."""

    @property
    def not_permitted(self) -> bool:
        """True if a further session was needed and not allowed, and nothing was sent."""

    @property
    def tried(self) -> bool:
        """True if connections were made that opened no session."""

    @property
    def hosts(self) -> MxAnswer | None:
        """The MX hosts of the domain, if the request asked for them, else None."""


class EgressEffects(NamedTuple):
    """The effects of the result of a request. ``actions``: of the rules of shaping, one for each attempt. ``puts``: to be stored."""

    decision: Decision
    attempts: Sequence[Attempt | None]
    actions: Sequence[RecipientAction]
    puts: Puts


class MessageEgress:
    """Chooses the source address of each message of a zone, and reports its replies to shaping."""

    def __init__(self, egress: SharedEgress, routes: EgressRoutes, closed: ClosedAddresses) -> None:
        self._egress = egress
        self._routes = routes
        self._closed = closed

    # ---- before it is sent

    def provider(self, destination: str) -> str:
        """The provider to which mail for ``destination`` goes, or the word for a smarthost; empty while it is not known."""
        route = self._routes.of(destination)
        return route.provider if route is not None else ""

    def undecided(self, mail: LeasedMail) -> Decision:
        """The decision about ``mail`` that is not sent now: its provider and pool."""
        route = self._routes.of(mail.destination)
        return Decision(mail, route, _provider(route))

    def decide(self, slot: WorkerSlot, mail: LeasedMail) -> Decision:
        """From where ``mail`` is sent. The worker has the permit for it then."""
        egress, route = self._egress, slot.route
        if slot.route_version != self._routes.version:
            route = self._routes.of(mail.destination)
        has_hosts = route is None or route.provider not in ("", SMARTHOST)
        lacks_hosts = has_hosts and egress.lacks_hosts(mail.destination)
        decision = Decision(
            mail=mail,
            route=route,
            provider=_provider(route),
            recipients=len(mail.blocked),
            prefers=mail.last_source or ("" if slot.redraw_source else slot.source),
            asks_hosts=lacks_hosts or (has_hosts and egress.asks_hosts(mail.destination)),
            lacks_hosts=lacks_hosts,
        )
        if route is None or self._routes.is_local:
            return decision
        if mail.pool_key != USUAL_KEY:
            route = route.with_pool(mail.pool_key)
        is_smarthost = route.provider == SMARTHOST  # which has no limits
        family = BOTH if is_smarthost else egress.table.settings(route.provider).family
        is_own = route.pool == route.settings.pool
        is_blocked = bool(mail.last_source) and mail.last_class == ReplyClass.BLOCKED
        if slot.permit is FREE and is_own and family == BOTH and not is_blocked:
            return decision
        usable = self._routes.sources(route)
        if not usable and egress.is_disabled(route.pool):
            reason = f"every address of the pool '{route.pool}' is disabled"
            return decision._replace(refusal=Refusal(Limit.NO_SOURCE, UNTIL_EVENT, reason))
        if not usable:  # the agent says of the attempt what is missing
            if family == BOTH or not is_own:
                return decision
            return decision._replace(order=self._order(route.provider, PoolAddress(), FREE))
        usable = (
            self._closed.open_of(mail.destination, usable, egress.now_ms(), slot.permit.address)
            or usable
        )
        found = self._drawn(slot, mail, usable) or self._choose(slot, mail, route.provider, usable)
        if isinstance(found, Refusal):
            return decision._replace(refusal=found)
        if slot.permit.warming:
            most = egress.recipients_max(slot.permit, decision.recipients, egress.now_ms())
            decision = decision._replace(recipients=most)
        return decision._replace(order=self._order(route.provider, found, slot.permit))

    def _order(self, provider: str, entry: PoolAddress, permit: Permit) -> EgressOrder:
        settings = self._egress.table.settings(provider)
        return EgressOrder(
            provider=provider,
            source=entry.address,
            ehlo=entry.ehlo,
            connects=permit.connects,
            messages_max=settings.limits.messages_per_session or 0,
            family=settings.family,
            sessions_max=ANY_NUMBER if permit is FREE else permit.sessions_max,
        )

    def _drawn(
        self, slot: WorkerSlot, mail: LeasedMail, usable: list[PoolAddress]
    ) -> PoolAddress | None:
        """The address that the worker has drawn, for a message without an attempt, if its permit is for that."""
        permitted = slot.permit.address
        if mail.last_source or slot.redraw_source or (slot.source or permitted) != permitted:
            return None
        for each in usable:
            if (each.address or BY_SYSTEM) == permitted:
                return each
        return None

    def _choose(
        self, slot: WorkerSlot, mail: LeasedMail, provider: str, usable: list[PoolAddress]
    ) -> PoolAddress | Refusal:
        """The address for a message, whose permit the worker has then."""
        egress, now_ms = self._egress, self._egress.now_ms()
        drawn = "" if slot.redraw_source else slot.source or slot.permit.address
        candidates = preferred(usable, mail.message, mail.last_source, drawn)
        allowed = _allowed(mail, candidates)
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
            return merge_refusals(refusals, now_ms)
        return Refusal(Limit.NO_SOURCE, UNTIL_EVENT, "every address of the pool is disabled")

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

    def retry_at_ms(self, refusal: Refusal, calendar_ms: int) -> int:
        """When a message for which no address had room is tried again; unix ms, as ``calendar_ms``, which is now."""
        if refusal.until_ms == UNTIL_EVENT:
            return calendar_ms + AGAIN_MS
        wait_ms = refusal.until_ms - self._egress.now_ms()
        return calendar_ms + max(AGAIN_MIN_MS, min(wait_ms, AGAIN_MAX_MS))

    # ---- while it is sent

    def begin(self, slot: WorkerSlot, opened: int) -> None:
        """The message of the worker is sent now, in a session that is new if ``opened``."""
        if slot.permit is not FREE and slot.permit.granted:
            self._egress.permits.begin(slot.permit, self._egress.now_ms(), opened)

    def lost(self, slot: WorkerSlot, decision: Decision, *, is_sent: bool) -> None:
        """The request has ended without a result: what may have been sent counts as sent."""
        sent = decision.recipients if is_sent else 0
        self.store(self._egress.end(slot.permit, sent, int(is_sent)))

    def store(self, puts: Puts) -> None:
        """Store what a report says, where no settle follows."""
        self._egress.store(puts)

    # ---- when it has its replies

    def report(self, slot: WorkerSlot, decision: Decision, result: RequestResult) -> EgressEffects:
        """The request has ended: it counts for the limits, its attempts are classified, and the rules of shaping say what they do."""
        egress, mail, hosts = self._egress, decision.mail, result.hosts
        # What was not found is for a look-up before the next delivery to say.
        learns = hosts is not None and hosts.hosts and not mail.destination.startswith(ALL)
        if hosts is not None and learns:
            egress.learn(mail.destination, hosts)
        if learns or slot.route_version != self._routes.version:  # or a reload may have removed its pool
            route = self._routes.of(mail.destination)
            decision = decision._replace(route=route, provider=_provider(route))
        sent, source, is_plain = 0, None, not decision.provider
        for each in result.attempts:
            if each is not None:
                source = each.source_ip if source is None else source
                sent += bool(each.code and each.phase != Phase.CONNECT)
                is_plain = is_plain and each.code // 100 == 2
        # A connection that opened no session counts as well.
        puts = [] if slot.permit is FREE else egress.end(slot.permit, sent, int(result.tried))
        if source is not None and not mail.last_source:
            slot.note_source(source)
        if result.not_permitted:
            return EgressEffects(decision, (), (), puts)
        if is_plain:  # accepted, and nothing is to be said of it
            return EgressEffects(decision, result.attempts, [USUAL] * len(mail.blocked), puts)
        attempts = self.classified(decision, result.attempts)
        return EgressEffects(decision, attempts, self.actions(decision, attempts), puts)

    def classified(
        self, decision: Decision, attempts: Sequence[Attempt | None]
    ) -> Sequence[Attempt | None]:
        """``attempts`` with the classes of their replies, and the provider."""
        return self._egress.classified(attempts, decision.provider, decision.mail.sender)

    def actions(self, decision: Decision, attempts: Sequence[Attempt | None]) -> list[RecipientAction]:
        """The action on each recipient by the rules of shaping; recipients share attempts."""
        route, mail, found = decision.route, decision.mail, dict[tuple[int, int], RecipientAction]()
        actions: list[RecipientAction] = []
        for blocked, each in zip(mail.blocked, attempts, strict=False):
            action = USUAL
            if each is not None and each.reply_class and each.code and route is not None:
                known = found.get((id(each), blocked))
                action = known or self.action(decision, reply_of(route, mail.domain, each), blocked)
                found[id(each), blocked] = action
            actions.append(action)
        return actions

    def action(self, decision: Decision, reply: ProviderReply, blocked: int) -> RecipientAction:
        """The action on a recipient that got ``reply``, by the rules of shaping.

        A refusal for good because of our address is tried again while there is an address that was not refused: those of a
        pool are tried one after the other. ``blocked``: how many were.
        """
        action = self._egress.engine.action(reply)
        is_blocked = reply.code >= 500 and reply.reply_class == ReplyClass.BLOCKED
        if is_blocked and blocked + 1 < len(self._addresses(decision)):
            return action._replace(defers=True)
        return action

    def may_use_other_address(self, decision: Decision, attempt: Attempt) -> bool:
        """True if a refused session says something of our address only, and mail may leave from other ones."""
        return attempt.reply_class in OF_SENDER and len(self._addresses(decision)) > 1

    def _addresses(self, decision: Decision) -> set[str]:
        """From where the mail may leave at all."""
        route = decision.route
        if route is None:
            return set()
        # A rule may have moved the provider's mail while the message was under way.
        pool = self._egress.rerouted_pool(route.provider, route.settings.pool)
        pools = {pool, route.settings.fallback_pool or pool}
        return {
            source_name(each)
            for pool in pools
            for each in self._routes.sources(route._replace(pool=pool))
        }

    def settled(
        self, decision: Decision, attempts: Sequence[Attempt], now_ms: int
    ) -> tuple[list[Event], Puts]:
        """Recipients are settled at ``now_ms`` (unix ms): the events of what their replies change, and what is to be stored."""
        route = decision.route
        if route is None or not decision.provider:
            return [], []
        domain = decision.mail.domain
        replies = [reply_of(route, domain, each) for each in attempts if each.code]
        return self._egress.replied(replies, decision.mail.message, now_ms)


def _provider(route: EgressRoute | None) -> str:
    return route.provider if route is not None and route.provider != SMARTHOST else ""


def _allowed(mail: LeasedMail, candidates: list[PoolAddress]) -> list[PoolAddress]:
    """The addresses that a message may leave from while they are not refused for long."""
    last = mail.last_source
    if last and mail.last_class == ReplyClass.GREYLISTED:
        return [each for each in candidates if source_name(each) == last] or candidates
    if last and mail.last_class == ReplyClass.BLOCKED and len(candidates) > 1:
        return others(candidates, mail.message, last)
    return candidates


def reply_of(route: EgressRoute, domain: str, attempt: Attempt) -> ProviderReply:
    """The reply of an attempt, for the rules of shaping; mail counts for the pool of its settings."""
    return ProviderReply(
        provider=route.provider,
        address=attempt.source_ip or BY_SYSTEM,
        pool=route.settings.pool,
        domain=domain,
        reply_class=attempt.reply_class,
        code=attempt.code,
        status=attempt.status,
        text=attempt.text,
    )
