"""From where a message leaves, and what its replies say of its recipients: without a queue, a clock or sockets."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from zonemta_py.config.providers import ProviderLimits, ProviderSettings, ProviderTable
from zonemta_py.config.sending import ControllerSettings, PoolAddress
from zonemta_py.config.shaping import ShapingRule, ShapingRules
from zonemta_py.config.zones import Zone
from zonemta_py.core.model import USUAL_KEY, Attempt, PoolKey
from zonemta_py.delivery.local_agent import is_local
from zonemta_py.egress.admission import Destination, WorkerSlot
from zonemta_py.egress.limits import FREE, Permit
from zonemta_py.egress.message import AGAIN_MAX_MS, AGAIN_MIN_MS, AGAIN_MS, LeasedMail, MessageEgress
from zonemta_py.egress.paths import UNTIL_EVENT, Limit, Refusal
from zonemta_py.egress.rules import ProviderReply, Reroute
from zonemta_py.egress.shared import Puts, SharedEgress
from zonemta_py.egress.zone import ClosedAddresses, EgressRoutes
from zonemta_py.events.schema import Event
from zonemta_py.queue.suspensions import Suspension
from zonemta_py.schedule.scheduler import KNOWN
from zonemta_py.smtp.mx_order import MxAnswer

A, B = PoolAddress("192.0.2.1"), PoolAddress("192.0.2.2")
NOW_MS = 1_700_000_000_000


class NoMail:
    """Every destination has mail of the usual pool."""

    @property
    def zone(self) -> "Callable[[str], NoMailOfZone]":
        return lambda name: NoMailOfZone()

    def pool_keys(self, zone: str, destination: str) -> Sequence[PoolKey]:
        return (USUAL_KEY,)


class NoMailOfZone:
    def pool_keys(self, destination: str) -> Sequence[PoolKey]:
        return (USUAL_KEY,)


class Suspended(dict[str, Suspension]):
    version = 0

    def __bool__(self) -> bool:
        return len(self) > 0


class Port(SharedEgress):
    """All domains belong to the provider ``big``; ``replies`` are those that were reported."""

    def __init__(self, suspended: Suspended | None = None) -> None:
        super().__init__(NoMail(), suspended if suspended is not None else Suspended())
        self.replies: list[ProviderReply] = []

    def now_ms(self) -> int:
        return NOW_MS

    def arm(self) -> None:
        pass

    def provider(self, domain: str) -> str:
        return "big"

    def classified(
        self, attempts: Sequence[Attempt | None], provider: str, sender: str
    ) -> Sequence[Attempt | None]:
        return attempts

    def replied(
        self, replies: Sequence[ProviderReply], message: str, now_ms: int
    ) -> tuple[list[Event], Puts]:
        self.replies += replies
        return [], []


class Result(NamedTuple):
    """How a request ended."""

    attempts: Sequence[Attempt | None]
    not_permitted: bool = False
    tried: bool = False
    hosts: MxAnswer | None = None


def messages_of(
    limits: ProviderLimits, *rules: ShapingRule, suspended: Suspended | None = None
) -> tuple[Port, MessageEgress, WorkerSlot]:
    """A zone with two addresses, and a worker that nothing limits so far."""
    egress = Port(suspended)
    table = ProviderTable({"big": ProviderSettings(("*.big.example",), limits=limits)})
    egress.use(table, {"default": (A, B)}, ControllerSettings(), ShapingRules(rules))
    messages = MessageEgress(egress, EgressRoutes(Zone(), egress), ClosedAddresses())
    return egress, messages, WorkerSlot(Destination("d.example", 5), KNOWN)


def mail(*, source: str | None = None, reply_class: str = "", recipients: int = 1) -> LeasedMail:
    return LeasedMail(
        "m", "d.example", "d.example", [0] * recipients, last_source=source or "", last_class=reply_class
    )


def test_mail_that_nothing_limits_leaves_as_the_agent_chooses() -> None:
    _, messages, slot = messages_of(ProviderLimits())
    decision = messages.decide(slot, mail(source=A.address, reply_class="greylisted"))
    assert (decision.order, decision.refusal, decision.prefers) == (None, None, A.address)
    assert decision.provider == "big"


@pytest.mark.parametrize(
    "limits", [ProviderLimits(), ProviderLimits(sessions=5)], ids=["free", "limited"]
)
@pytest.mark.parametrize("source", [A, B], ids=["a", "b"])
def test_a_blocked_message_leaves_from_another_address(
    limits: ProviderLimits, source: PoolAddress
) -> None:
    _, messages, slot = messages_of(limits)
    order = messages.decide(slot, mail(source=source.address, reply_class="blocked")).order
    assert order is not None
    assert order.source == (B if source is A else A).address


def test_a_worker_gets_the_permit_of_the_address_that_its_message_leaves_from() -> None:
    egress, messages, slot = messages_of(ProviderLimits(sessions_per_address=1))
    permit = egress.take("big", [A], NOW_MS)
    assert isinstance(permit, Permit)
    slot.permit = permit
    order = messages.decide(slot, mail(source=B.address, reply_class="greylisted")).order
    assert order is not None
    assert (order.source, slot.permit.address) == (B.address, B.address)
    assert egress.permits.path("big", A.address or "").sessions == 0, "it has left the other one"


def test_no_address_has_room() -> None:
    """A suspended address has none: the refusal says so, and nothing is sent."""
    suspended = Suspended({f"address:{each.address}": Suspension(1, 0, "test") for each in (A, B)})
    _, messages, slot = messages_of(ProviderLimits(sessions=5), suspended=suspended)
    refusal = messages.decide(slot, mail(source=A.address, reply_class="blocked")).refusal
    assert refusal is not None
    assert refusal.limit is Limit.OPERATOR
    assert slot.permit is FREE


@pytest.mark.parametrize(
    ("until_ms", "in_ms"),
    [
        (UNTIL_EVENT, AGAIN_MS),
        (NOW_MS, AGAIN_MIN_MS),
        (NOW_MS + 5000, 5000),
        (NOW_MS + 10**9, AGAIN_MAX_MS),
    ],
)
def test_when_refused_mail_is_tried_again(until_ms: int, in_ms: int) -> None:
    """By the clock of the queue, which may have been set since."""
    _, messages, _ = messages_of(ProviderLimits())
    refusal = Refusal(Limit.PROVIDER_RATE, until_ms, "")
    assert messages.retry_at_ms(refusal, NOW_MS - 70_000) == NOW_MS - 70_000 + in_ms


def refused(code: int, reply_class: str) -> Attempt:
    return Attempt("rcpt", code, "", "no", source_ip=A.address or "", reply_class=reply_class)


def test_what_the_rules_do_with_each_recipient() -> None:
    """Those that were refused for good because of our address are tried from the others."""
    rule = ShapingRule("h", classes=("policy",), action="hold")
    egress, messages, slot = messages_of(ProviderLimits(), rule)
    decision = messages.decide(slot, mail(recipients=4))
    attempts = [refused(550, "policy"), refused(550, "blocked"), refused(450, "blocked"), None]
    report = messages.report(slot, decision, Result(attempts))
    assert [each.holds for each in report.actions] == [True, False, False, False]
    assert [each.defers for each in report.actions] == [False, True, False, False]
    assert slot.source == A.address
    messages.settled(report.decision, [each for each in attempts if each is not None], NOW_MS)
    assert [each.reply_class for each in egress.replies] == ["policy", "blocked", "blocked"]
    tried = decision._replace(mail=decision.mail._replace(blocked=[1]))
    assert not messages.actions(tried, attempts[1:2])[0].defers, "each address was tried"


def test_a_rule_moves_mail_that_is_under_way() -> None:
    """Refused for good because of its only address, it is tried from those of the pool that a rule has chosen meanwhile."""
    egress, messages, slot = messages_of(ProviderLimits())
    pools = {"default": (A,), "other": (B, PoolAddress("192.0.2.3"))}
    egress.use(egress.table, pools, ControllerSettings(), ShapingRules(()))
    slot.route, slot.route_version = messages._routes.of("d.example"), messages._routes.version
    decision = messages.decide(slot, mail())
    assert not messages.actions(decision, [refused(550, "blocked")])[0].defers
    egress.engine.reroutes["big", "default"] = Reroute(1, "other", NOW_MS + 60_000)
    report = messages.report(slot, decision, Result([refused(550, "blocked")]))
    assert report.actions[0].defers


def test_a_lost_request_counts_for_the_recipients_that_it_had() -> None:
    """The others of the lease had no room in the warm-up, and were not in it."""
    egress, messages, slot = messages_of(ProviderLimits())
    counted: list[int] = []
    egress.end = lambda permit, sent, opened: counted.append(sent) or []
    decision = messages.decide(slot, mail(recipients=40))._replace(recipients=9)
    messages.lost(slot, decision, is_sent=True)
    messages.lost(slot, decision, is_sent=False)
    assert counted == [9, 0]


def test_a_request_that_was_not_permitted_has_no_attempt() -> None:
    _, messages, slot = messages_of(ProviderLimits(sessions=5))
    decision = messages.decide(slot, mail())
    report = messages.report(slot, decision, Result([], not_permitted=True))
    assert (report.attempts, report.actions) == ((), ())


def test_limits_apply_to_the_zones_that_use_sessions() -> None:
    """All others have an agent that delivers without sessions."""
    for transport in ("smtp", "lmtp", "blackhole", "http", "maildir", "pipe", "python"):
        zone = Zone(transport=transport)
        assert EgressRoutes(zone, Port()).is_local == is_local(zone)
