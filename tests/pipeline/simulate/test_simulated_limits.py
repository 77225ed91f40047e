"""Limits of providers, warm-up, controller and shaping rules in a simulated week: none is exceeded, all mail is sent."""

from collections import Counter
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.provider_simulation import most_within
from zonemta_py.config.load import parse_config
from zonemta_py.config.providers import ProviderLimits, ProviderSettings
from zonemta_py.config.sending import AddressLimits, ControllerSettings, PoolAddress
from zonemta_py.config.shaping import ShapingRule, ShapingTarget
from zonemta_py.config.values import Rate
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.egress.message import MessageEgress
from zonemta_py.egress.paths import Refusal
from zonemta_py.egress.sources import source_name
from zonemta_py.egress.warmup import DAY_MS
from zonemta_py.pipeline.simulate.egress import RecordedDomain, SendingSettings
from zonemta_py.pipeline.simulate.prediction import PeerModel, SimulatedMessage
from zonemta_py.pipeline.simulate.recorded import CountedReply, RecordedReply, ReplyModel, rate_step
from zonemta_py.pipeline.simulate.world import PeerModels, SentTransaction
from zonemta_py.pipeline.simulate.zone import Predicted, SimulatedLoad, SimulatedRelay, simulate

BEGIN_MS = 1_700_006_400_000 // DAY_MS * DAY_MS  # midnight
DOMAINS = ("d0.example", "d1.example", "d2.example")
A, B, C = PoolAddress("192.0.2.1"), PoolAddress("192.0.2.2"), PoolAddress("192.0.2.3")
BEGINS = date.fromordinal(date(1970, 1, 1).toordinal() + BEGIN_MS // DAY_MS)
QUICK = PeerModel([0.05])
LIMITED = RecordedReply("deferred", "rate_limited", 421, "4.7.28", "unusual rate of mail")
GREYLISTED = RecordedReply("deferred", "greylisted", 451, "4.7.1", "greylisted, try again later")
REFUSED = RecordedReply("deferred", "blocked", 421, "4.7.0", "[TSS04] messages deferred")


class Played:
    """A simulation and its transactions."""

    def __init__(
        self,
        sending: SendingSettings,
        messages: list[SimulatedMessage],
        *,
        peer: PeerModel = QUICK,
        replies: ReplyModel | None = None,
        zones: str = "default: {connections: 50, connections_per_domain: 50}",
        begin_ms: int = BEGIN_MS,
        seed: int = 0,
    ) -> None:
        self.sent: list[SentTransaction] = []
        pools = "pools: {default: [{}], other: [{}]}"
        config = parse_config(f"{pools}\nzones: {{{zones}}}", Path("z.yaml"))
        load = SimulatedLoad(
            messages,
            PeerModels(peer, {}, {"big": replies} if replies else {}),
            begin_ms,
            {domain: RecordedDomain("big", ("mx.big.example",)) for domain in DOMAINS},
        )
        relay = SimulatedRelay(config.zones, sending, seed=seed)
        self.found: Predicted = simulate(relay, load, self.sent.append)

    def times_ms(self, address: PoolAddress, *, opened: bool = False) -> list[int]:
        return [
            each.time_ms
            for each in self.sent
            if each.path == ("big", address.address) and (each.opened or not opened)
        ]

    @property
    def delivered(self) -> int:
        return sum(each.delivered for each in self.found.zones.values())


def big(limits: ProviderLimits, **changes: Any) -> SendingSettings:
    """A provider of all domains, and two source addresses."""
    return SendingSettings(
        {"big": ProviderSettings(("*.big.example",), limits=limits)},
        pools={"default": (A, B), "other": (C,)},
        **changes,
    )


def mail(count: int, *, gap_s: float = 0.0, recipients: int = 1) -> list[SimulatedMessage]:
    return [
        SimulatedMessage(gap_s * n, DOMAINS[n % 3], recipients, ("default", "bulk")[n % 2])
        for n in range(count)
    ]


RATE = st.builds(Rate, st.integers(1, 20), st.sampled_from([1.0, 5.0, 60.0]))
TWO_ZONES = "default: {connections: 9%s}, bulk: {connections: 30, connections_per_domain: 30}"
FALLBACK = ", fallback_pool: other, fallback_after: 1"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            SimulatedMessage,
            st.floats(0, 30),
            st.sampled_from(DOMAINS),
            st.integers(1, 4),
            st.sampled_from(["default", "bulk"]),
        ),
        max_size=60,
    ).map(lambda found: sorted(found, key=lambda each: each.arrival_s)),
    RATE,
    RATE,
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([10, 80, 300]),
    st.sampled_from(["", FALLBACK]),
)
def test_no_limit_is_exceeded_and_everything_is_sent(
    messages: list[SimulatedMessage],
    rate: Rate,
    connect_rate: Rate,
    sessions: int,
    per_session: int,
    answer_ms: int,
    fallback: str,
) -> None:
    """In any period, from each address, over two zones and three domains of one provider, also with two pools."""
    limits = ProviderLimits(
        sessions_per_address=sessions,
        messages_per_session=per_session,
        rate=(rate,),
        connect_rate=(connect_rate,),
    )
    peer = PeerModel([answer_ms / 1000], deferred=[0.2, 0.0])
    played = Played(big(limits), messages, peer=peer, zones=TWO_ZONES % fallback)
    assert played.delivered == sum(each.recipients for each in messages)
    for address in (A, B, C):
        sent, opened = played.times_ms(address), played.times_ms(address, opened=True)
        assert most_within(sent, round(rate.per_s * 1000)) <= rate.events
        assert most_within(opened, round(connect_rate.per_s * 1000)) <= connect_rate.events
        assert len(opened) * per_session >= len(sent)
        assert most_within(sent, answer_ms - 1) <= sessions  # transactions at the same time


@pytest.mark.parametrize(
    ("limits", "limit", "per_s"),
    [
        (ProviderLimits(rate=(Rate(10, 1.0),)), "provider_rate", 20),
        (ProviderLimits(sessions_per_address=1), "provider_sessions", 40),
        (ProviderLimits(sessions=3), "provider_sessions", 60),
    ],
)
def test_a_limit_is_used_and_named(limits: ProviderLimits, limit: str, per_s: float) -> None:
    """Two addresses send what the limits allow, at 50 ms a transaction, and the report says what bound them."""
    played = Played(big(limits), mail(3000), zones=TWO_ZONES % "")
    assert played.delivered == 3000
    took_s = max(each.completed_s for each in played.found.zones.values())
    assert 0.85 * per_s <= 3000 / took_s <= per_s * 1.02
    for address in (A, B):
        limited_s = played.found.paths.limited_s["big", source_name(address)]
        assert max(limited_s, key=lambda name: limited_s[name]) == limit
        assert limited_s[limit] > 0.5 * took_s


def test_an_address_has_limits_of_its_own() -> None:
    """They hold over all providers."""
    own = PoolAddress("192.0.2.1", limits=AddressLimits(rate=(Rate(5, 1.0),)))
    sending = SendingSettings({}, pools={"default": (own,)})
    messages = [SimulatedMessage(0.0, f"d{n % 40}.test", 1) for n in range(200)]
    played = Played(sending, messages)
    assert played.delivered == 200
    assert most_within([each.time_ms for each in played.sent], 1000) <= 5
    assert played.found.zones["default"].completed_s < 200 / 5 * 1.15


def by_day(played: Played, address: PoolAddress) -> list[int]:
    """Recipients from an address on each day, from the first."""
    found: Counter[int] = Counter()
    for each in played.sent:
        if each.path[1] == address.address:
            found[(each.time_ms - BEGIN_MS) // DAY_MS] += each.recipients
    return [found[day] for day in range(max(found, default=-1) + 1)]


def test_warm_up_numbers_hold() -> None:
    """Of each day, whatever is sent together; the pool's other address takes what is over."""
    schedule = WarmupSchedule("192.0.2.1", BEGINS, (7, 20, 55))
    sending = big(ProviderLimits(), schedules=(schedule,))
    played = Played(sending, mail(1000, gap_s=300.0, recipients=3))
    assert played.delivered == 3000
    sent = by_day(played, A)
    assert sent[:3] == [7, 20, 55]
    assert max(sent[3:]) > 55
    assert max(each.wait_max_s for each in played.found.zones["default"].paths.values()) < 10


def test_without_another_address_mail_waits_for_the_next_day() -> None:
    sending = SendingSettings(
        {"big": ProviderSettings(("*.big.example",))},
        schedules=(WarmupSchedule("192.0.2.1", BEGINS, (10, 20, 40), "big"),),
        pools={"default": (A,)},
    )
    played = Played(sending, mail(60))
    assert by_day(played, A) == [10, 20, 30]
    limited_s = played.found.paths.limited_s["big", "192.0.2.1"]
    assert limited_s["warmup"] == pytest.approx(2 * 86_400, rel=0.01)


def test_a_lower_rate_is_not_refused_more_often() -> None:
    """In some minutes of few attempts a provider blocked all: a pace that has come down to them must not stay there."""
    model = ReplyModel([
        CountedReply(5, None, 10), CountedReply(5, REFUSED, 90, of_sender=True),
        CountedReply(9, None, 1880), CountedReply(9, REFUSED, 20, of_sender=True),
        CountedReply(11, None, 500), CountedReply(11, LIMITED, 500, of_sender=True),
    ])  # fmt: skip
    shares = []
    for rate in (40, 600, 3000):
        random = Random(1)
        drawn = [model.of_sender(rate, random) for _ in range(5000)]
        shares.append(sum(each is not None for each in drawn) / 5000)
    assert shares == [pytest.approx(0.055, abs=0.01)] * 2 + [pytest.approx(0.5, abs=0.03)]


def overloaded(most_per_minute: int) -> ReplyModel:
    """A provider that defers half of what comes from an address beyond a rate."""
    too_fast = rate_step(most_per_minute)
    return ReplyModel(
        [CountedReply(step, None, 1000) for step in range(too_fast)]
        + [
            CountedReply(too_fast, None, 500),
            CountedReply(too_fast, LIMITED, 500, of_sender=True),
        ]
    )


CONTROLLER = ControllerSettings()


def test_the_controller_finds_the_rate_that_a_provider_takes() -> None:
    """Beyond 128 attempts a minute half is deferred: the pace goes down, and up again, and all mail is delivered."""
    limits = ProviderLimits(rate=(Rate(20, 1.0),))
    with_it = Played(big(limits, controller=CONTROLLER), mail(6000), replies=overloaded(128))
    without = Played(big(limits), mail(6000), replies=overloaded(128))
    assert with_it.delivered == without.delivered == 6000

    def refused(played: Played) -> int:
        return sum(use.refused for each in played.found.zones.values() for use in each.paths.values())

    assert refused(with_it) < 0.6 * refused(without)
    changes = with_it.found.paths.changes["big", "192.0.2.1"]
    assert changes[0].what == "pace"
    assert not changes[0].is_raise
    assert any(each.is_raise for each in changes)
    assert without.found.paths.changes == {}


@pytest.mark.parametrize(
    ("rule", "check"),
    [
        (
            ShapingRule("s", ("big",), patterns=("TSS04",), threshold_count=3, threshold_s=600.0,
                        action="suspend", for_s=7200.0),
            "pause",
        ),
        (ShapingRule("l", classes=("blocked",), action="lower_rate", for_s=3600.0, to=ShapingTarget(rate=Rate(5, 60.0))), "pace"),
    ],
)  # fmt: skip
def test_shaping_rules_act(rule: ShapingRule, check: str) -> None:
    """The replies that were recorded match the patterns of a rule that is tried."""
    model = ReplyModel([CountedReply(0, None, 90), CountedReply(0, REFUSED, 10, of_sender=True)])
    sending = big(ProviderLimits(rate=(Rate(100, 1.0),)), rules=(rule,))
    played = Played(sending, mail(600), replies=model)
    assert played.delivered == 600
    changes = [change for found in played.found.paths.changes.values() for change in found]
    assert {change.cause for change in changes if not change.is_raise} == {f"rule {rule.name}"}
    first = next(change for change in changes if not change.is_raise)
    assert first.what == check
    if check == "pause":
        key, until_ms = (first.provider, first.address), first.time_ms + 7_200_000
        times = [each.time_ms for each in played.sent if each.path == key]
        assert not [ms for ms in times if first.time_ms + 1000 < ms < until_ms]


def test_a_reply_about_the_sender_is_one_for_all_recipients() -> None:
    """Of 100 messages to 50 recipients each, two were refused: that is two refusals, not a hundred (decision 124)."""
    model = ReplyModel([CountedReply(0, None, 4900), CountedReply(0, REFUSED, 100, of_sender=True)])
    rule = ShapingRule(
        "s", classes=("blocked",), threshold_count=10, threshold_s=7200.0, action="suspend", for_s=7200.0
    )
    played = Played(big(ProviderLimits(), rules=(rule,)), mail(100, recipients=50), replies=model)
    assert played.delivered == 5000
    assert played.found.paths.changes == {}
    refused = sum(use.refused for each in played.found.zones.values() for use in each.paths.values())
    assert 0 < refused < 500
    assert refused % 50 == 0


def test_parts_of_a_message_that_end_together_count_each() -> None:
    """One message to 500, ten a transaction: each refused transaction is a reply to the rule."""
    model = ReplyModel([CountedReply(0, None, 0), CountedReply(0, REFUSED, 1, of_sender=True)])
    rule = ShapingRule(
        "s", classes=("blocked",), threshold_count=5, threshold_s=7200.0, action="suspend", for_s=7200.0
    )
    zones = "default: {connections: 50, connections_per_domain: 50, recipients_per_transaction: 10}"
    played = Played(
        big(ProviderLimits(), rules=(rule,)), mail(1, recipients=500), replies=model, zones=zones
    )
    changes = [change for found in played.found.paths.changes.values() for change in found]
    first = min(change.time_ms for change in changes if change.what == "pause")
    assert first - BEGIN_MS < 1000


def test_what_rules_say_of_recipients() -> None:
    """Held and bounced ones are not tried again; a ladder of its own replaces that of the zone."""
    model = ReplyModel([CountedReply(0, None, 0), CountedReply(0, REFUSED, 1, of_sender=True)])
    for action, name in (("hold", "held"), ("bounce", "bounced")):
        rule = ShapingRule("r", classes=("blocked",), action=action)
        played = Played(big(ProviderLimits(), rules=(rule,)), mail(5), replies=model)
        found = list(played.found.zones.values())
        assert sum(getattr(each, name) for each in found) == 5
        assert sum(each.transactions for each in found) == 5
    ladder = ShapingRule("r", classes=("blocked",), action="retry", delays_s=(7200.0,))
    zones = "default: {retry: {delays: [1m], give_up_after: 3h}}"
    played = Played(big(ProviderLimits(), rules=(ladder,)), mail(1), replies=model, zones=zones)
    times = [round((each.time_ms - BEGIN_MS) / 3_600_000, 1) for each in played.sent]
    assert times[:2] == [0.0, pytest.approx(2.0, abs=0.8)]
    assert played.found.zones["default"].expired == 1


def test_another_pool_takes_over() -> None:
    """For as long as the rule says. That does not slow the warm-up of the address."""
    model = ReplyModel([CountedReply(0, None, 50), CountedReply(0, REFUSED, 50, of_sender=True)])
    rule = ShapingRule("p", classes=("blocked",), action="pool", for_s=3600.0, pool="other")
    sending = SendingSettings(
        {"big": ProviderSettings(("*.big.example",))}, (rule,), pools={"default": (A,), "other": (B,)},
        schedules=(WarmupSchedule(A.address or "", BEGINS, (10_000,) * 9, "big"),),
    )  # fmt: skip
    played = Played(sending, mail(900, gap_s=10.0), replies=model)
    changes = [each for found in played.found.paths.changes.values() for each in found]
    assert {each.what for each in changes} == {"pool"}
    assert played.delivered == 900
    first_ms = min(each.time_ms for each in played.sent if each.path[1] == B.address)
    during = [each.path[1] for each in played.sent if first_ms < each.time_ms < first_ms + 3_500_000]
    assert set(during) == {B.address}
    assert any(each.path[1] == A.address for each in played.sent if each.time_ms > first_ms + 3_700_000)


def test_mail_for_the_fallback_pool_does_not_wait_for_the_usual_one() -> None:
    """A rule suspends the address of the usual pool for two hours: what was blocked is delivered in minutes."""
    model = ReplyModel([CountedReply(0, None, 50), CountedReply(0, REFUSED, 50, of_sender=True)])
    rule = ShapingRule("s", classes=("blocked",), action="suspend", for_s=7200.0)
    sending = SendingSettings(
        {"big": ProviderSettings(("*.big.example",), limits=ProviderLimits(sessions=1))}, (rule,),
        pools={"default": (A,), "other": (C,)},
    )  # fmt: skip
    zones = "default: {fallback_pool: other, retry: {delays: [1m]}}"
    messages = [replace(each, zone="default") for each in mail(40)]
    played = Played(sending, messages, replies=model, zones=zones)
    assert played.delivered == 40
    first, moved_ms = played.times_ms(A), played.times_ms(C)[0]
    assert moved_ms < first[0] + 600_000
    waited = [ms for ms in first if ms > moved_ms]
    assert waited and min(waited) > first[0] + 7_000_000, "mail without an attempt waits"


@pytest.mark.parametrize("reply", [GREYLISTED, REFUSED])
def test_mail_that_wants_one_address_waits_for_that(
    monkeypatch: pytest.MonkeyPatch, reply: RecordedReply
) -> None:
    """In a wait list, as in the relay, and is not looked at again and again."""
    put_off: list[Refusal] = []
    real = MessageEgress.retry_at_ms

    def counted(self: MessageEgress, refusal: Refusal, calendar_ms: int) -> int:
        put_off.append(refusal)
        return real(self, refusal, calendar_ms)

    monkeypatch.setattr(MessageEgress, "retry_at_ms", counted)
    model = ReplyModel([CountedReply(0, None, 50), CountedReply(0, reply, 50, of_sender=True)])
    limits = ProviderLimits(sessions_per_address=1, rate=(Rate(1, 5.0),))
    sending = big(limits)
    messages = [replace(each, zone="default") for each in mail(100)]
    played = Played(sending, messages, replies=model, zones="default: {retry: {delays: [1m]}}")
    assert played.delivered == 100
    assert len(played.sent) > 150
    assert not put_off


def test_blocked_mail_goes_back_when_the_others_have_no_room_for_long() -> None:
    """As in the relay: the other address is new, and has sent its number of the day."""
    model = ReplyModel([CountedReply(0, None, 50), CountedReply(0, REFUSED, 50, of_sender=True)])
    begins = date.fromordinal(date(1970, 1, 1).toordinal() + BEGIN_MS // DAY_MS)
    schedule = WarmupSchedule(B.address or "", begins, (5,) * 20)
    sending = big(ProviderLimits(sessions=10), schedules=(schedule,))
    messages = [replace(each, zone="default") for each in mail(100)]
    played = Played(sending, messages, replies=model, zones="default: {retry: {delays: [1m]}}")
    assert played.delivered == 100
    assert len(played.times_ms(B)) == 5


def test_an_attempt_that_does_not_count_moves_no_mail() -> None:
    """``fallback_after`` is about attempts that count, as in the relay."""
    model = ReplyModel([CountedReply(0, None, 50), CountedReply(0, LIMITED, 50, of_sender=True)])
    zones = f"default: {{retry: {{delays: [1m]}}{FALLBACK}}}"
    messages = [replace(each, zone="default") for each in mail(40)]
    for rules, is_moved in (((), True), ((ShapingRule("n", classes=("rate_limited",)),), False)):
        sending = SendingSettings(
            {"big": ProviderSettings(("*.big.example",), limits=ProviderLimits(sessions=5))}, rules,
            pools={"default": (A,), "other": (C,)},
        )  # fmt: skip
        played = Played(sending, messages, replies=model, zones=zones)
        assert played.delivered == 40
        assert bool(played.times_ms(C)) is is_moved


def test_the_provider_of_a_domain() -> None:
    """The table tried decides by domain and hosts; what it does not know belongs to the recorded provider."""
    from zonemta_py.pipeline.simulate.egress import SimulatedEgress
    from zonemta_py.pipeline.simulate.mail import VirtualClock

    table = {"big": ProviderSettings(("*.big.example",), ("big.example",))}
    domains = {
        "a.example": RecordedDomain("old", ("mx1.big.example", "mx2.big.example")),
        "b.example": RecordedDomain("old", ("mx.small.example",)),
        "c.example": RecordedDomain("c.example", ("mx.small.example",)),
        "big.example": RecordedDomain("old", ()),
    }
    egress = SimulatedEgress(SendingSettings(table), domains, VirtualClock())
    assert [egress.provider(name) for name in (*domains, "d.example")] == [
        "big", "old", "mx.small.example", "big", "d.example",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "limits", [ProviderLimits(), ProviderLimits(sessions=5)], ids=["free", "limited"]
)
def test_a_blocked_message_leaves_its_address(limits: ProviderLimits) -> None:
    """As in the relay, also where nothing limits the address."""
    model = ReplyModel([CountedReply(0, REFUSED, 50, of_sender=True)])
    zones = "default: {retry: {delays: [1m], give_up_after: 10m}}"
    [message] = mail(1)
    played = Played(big(limits), [message], replies=model, zones=zones)
    sources = [each.path[1] for each in played.sent]
    assert len(sources) > 5
    assert all(before != after for before, after in pairwise(sources))


def test_a_refusal_for_good_of_an_address_is_tried_from_the_others() -> None:
    """As in the relay: a recipient bounces when each address of the pool was refused."""
    refused = RecordedReply("bounced", "blocked", 550, "5.7.1", "blocked using a list")
    model = ReplyModel([CountedReply(0, refused, 50, of_sender=True)])
    zones = "default: {retry: {delays: [1m]}}"
    played = Played(big(ProviderLimits(sessions=5)), mail(1), replies=model, zones=zones)
    assert {each.path[1] for each in played.sent} == {A.address, B.address}
    found = played.found.zones["default"]
    assert (found.deferrals, found.bounced) == (1, 1)


def test_mail_that_no_address_can_send_expires() -> None:
    """As in the relay: an attempt from an address without the family of the hosts fails, and others follow."""
    table = {"big": ProviderSettings(("*.big.example",), family="ipv6")}
    zones = "default: {retry: {delays: [1m], give_up_after: 5m}}"
    sending = SendingSettings(table, pools={"default": (A,)})
    played = Played(sending, mail(1), zones=zones)
    assert played.sent == []
    assert played.found.zones["default"].expired == 1
