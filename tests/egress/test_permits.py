"""The limits of providers and addresses, played on a virtual clock."""

from collections import deque
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.provider_simulation import BEGIN_MS, ProviderSimulation, most_within
from zonemta_py.config.providers import ProviderLimits
from zonemta_py.config.sending import AddressLimits
from zonemta_py.config.values import Rate, duration
from zonemta_py.egress.limits import REST_MS, Permit, Permits, merge_refusals
from zonemta_py.egress.paths import UNTIL_EVENT, Limit, RateUse, RateWindows, Refusal

MESSAGES = st.lists(st.integers(0, 12), min_size=1, max_size=8)
PERIODS = (0.5, 1.0, 2.0, 60.0)
RATES = st.lists(
    st.builds(Rate, st.integers(1, 30), st.sampled_from(PERIODS)),
    min_size=1, max_size=3, unique_by=lambda rate: rate.per_s,
)  # fmt: skip
RATE = st.builds(Rate, st.integers(1, 30), st.sampled_from([0.5, 1.0, 2.0, 60.0]))


@settings(max_examples=150, deadline=None)
@given(MESSAGES, RATES, st.integers(1, 3), st.integers(0, 10_000))
def test_rates_are_never_exceeded_and_everything_is_sent(
    messages: list[int], rates: list[Rate], addresses: int, seed: int
) -> None:
    """In any period of the length of each, at the receiver, from each address, whatever the answers take."""
    names = tuple("abc"[:addresses])
    # The longest that is exact, see ``rate_windows``.
    answer_ms = max(500, round(min(rate.per_s for rate in rates) * 100))
    limits = ProviderLimits(rate=tuple(rates))
    played = ProviderSimulation(limits, messages, addresses=names, answer_ms=answer_ms, seed=seed)
    played.run()
    assert sum(map(len, played.received.values())) == sum(messages)
    for times in played.received.values():
        for rate in rates:
            assert most_within(times, round(rate.per_s * 1000)) <= rate.events
    assert played.wakes <= 4 * sum(messages) + 10


@settings(max_examples=150, deadline=None)
@given(
    MESSAGES,
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from([0, 300, 5_000]),
    st.integers(0, 10_000),
)
def test_sessions_are_never_exceeded_and_everything_is_sent(
    messages: list[int], total: int, each: int, idle_ms: int, seed: int
) -> None:
    """Of an address, and of all; also those that stay open without mail, of which another address may need the place."""
    limits = ProviderLimits(sessions=total, sessions_per_address=each)
    played = ProviderSimulation(limits, messages, addresses=("a", "b"), seed=seed, idle_ms=idle_ms)
    played.run()
    assert sum(map(len, played.received.values())) == sum(messages)
    assert played.most["all"] <= total
    assert max(played.most["a"], played.most["b"]) <= each


@settings(max_examples=100, deadline=None)
@given(MESSAGES, RATE, RATE, st.integers(1, 4), st.integers(0, 10_000))
def test_all_limits_together(
    messages: list[int], connect_rate: Rate, own: Rate, sessions: int, seed: int
) -> None:
    """Those of the provider and those of the address hold, and nothing is left."""
    limits = ProviderLimits(sessions_per_address=sessions, connect_rate=(connect_rate,))
    played = ProviderSimulation(
        limits, messages, addresses=("a", "b"), own=AddressLimits(rate=(own,)), answer_ms=40, seed=seed
    )
    played.run()
    assert sum(map(len, played.received.values())) == sum(messages)
    for name in ("a", "b"):
        assert played.most[name] <= sessions
        assert most_within(played.opened[name], round(connect_rate.per_s * 1000)) <= connect_rate.events
        assert most_within(played.received[name], round(own.per_s * 1000)) <= own.events
    assert played.wakes <= 6 * sum(messages) + 10


@settings(max_examples=50, deadline=None)
@given(
    st.integers(20, 100), st.sampled_from([1.0, 2.0, 60.0]), st.integers(1, 4), st.integers(0, 10_000)
)
def test_a_rate_is_never_starved(events: int, per_s: float, destinations: int, seed: int) -> None:
    """More than 90 % of what it allows is sent, however many destinations share it; answers take up to a twentieth of a period."""
    messages, answer_ms = events * 30, round(min(per_s * 50, 500))
    played = ProviderSimulation(
        ProviderLimits(rate=(Rate(events, per_s),)), [messages // destinations + 1] * destinations,
        answer_ms=answer_ms, turn=100, seed=seed,
    )  # fmt: skip
    took_ms = played.run()
    sent = len(played.received["a"])
    # What is allowed at once at the beginning, and what waits at the end, are of one period.
    assert sent / events >= 0.9 * (took_ms / 1000 / per_s - 1)
    assert played.wakes <= 4 * sent + 10


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 300), st.integers(1, 3), st.integers(0, 10_000))
def test_wake_ups_are_those_of_the_messages(
    sessions: int, destinations: int, each: int, seed: int
) -> None:
    """Each wake-up of a wait list leads to a permit, or nearly: the work does not grow with what waits."""
    limits = ProviderLimits(sessions=sessions)
    played = ProviderSimulation(limits, [each] * destinations, addresses=("a", "b"), seed=seed)
    played.run()
    assert sum(map(len, played.received.values())) == each * destinations
    assert played.wakes <= 2 * each * destinations + 10


def test_many_destinations_wait_for_one_session() -> None:
    """Each wake-up of the wait list leads to a permit: the work does not grow with what waits."""
    played = ProviderSimulation(ProviderLimits(sessions=1), [1] * 2000)
    played.run()
    assert len(played.received["a"]) == 2000
    assert played.wakes <= 2 * 2000


OWN = st.builds(
    AddressLimits,
    sessions=st.one_of(st.none(), st.integers(1, 3)),
    rate=st.one_of(st.just(()), st.tuples(RATE)),
    connect_rate=st.one_of(st.just(()), st.tuples(RATE)),
)


@settings(max_examples=150, deadline=None)
@given(MESSAGES, OWN, st.integers(2, 6), st.integers(0, 2), st.integers(0, 10_000))
def test_what_waits_for_an_address_gets_its_room(
    messages: list[int], own: AddressLimits, providers: int, paused: int, seed: int
) -> None:
    """Whatever else waits for it: what may leave has left long before a pause of others is over."""
    played = ProviderSimulation(
        ProviderLimits(), messages, addresses=("a", "b"), own=own, seed=seed, providers=providers, paused=paused
    )  # fmt: skip
    played.run(until_ms=BEGIN_MS + 3_000_000)
    open_to = {
        name for name, each in played.provider_of.items() if int(each.removeprefix("big")) >= paused
    }
    assert [name for name in open_to if played.left[name]] == []
    played.run()
    assert sum(map(len, played.received.values())) == sum(messages)


def test_many_providers_wait_for_one_address() -> None:
    """A place or a message of an address is offered to one of them, not to each."""
    for own in (AddressLimits(sessions=1), AddressLimits(rate=(Rate(20, 1.0),))):
        played = ProviderSimulation(ProviderLimits(), [2] * 500, own=own, turn=1, providers=500)
        played.run()
        assert len(played.received["a"]) == 1000
        assert played.wakes <= 4 * 1000


def taken(found: Permit | Refusal) -> Permit:
    assert isinstance(found, Permit)
    return found


def permits(limits: ProviderLimits, **own: AddressLimits) -> Permits:
    made = Permits(lambda provider, address: None)
    made.configure(lambda name: limits if name == "big" else ProviderLimits(), own)
    return made


def test_which_limit_refuses_and_until_when() -> None:
    """Of several the longest; a limit that an event opens has no time."""
    made = permits(ProviderLimits(sessions=1, rate=(Rate(1, 60.0),)), a=AddressLimits(sessions=5))
    first = taken(made.take("big", "a", 1_000_000))
    refused = made.take("big", "b", 1_000_000)
    assert isinstance(refused, Refusal)
    assert (refused.limit, refused.until_ms) == (Limit.PROVIDER_SESSIONS, -1)
    made.begin(first, 1_000_000, 1)
    made.end(first, 1_000_100)
    made.release(first)
    refused = made.take("big", "a", 1_000_200)
    assert isinstance(refused, Refusal)
    assert refused.limit is Limit.PROVIDER_RATE
    assert 1_060_000 <= refused.until_ms <= 1_062_000
    assert isinstance(made.take("big", "b", 1_000_200), Permit), "the rate is that of an address"


def leave_idle(made: Permits, name: str, count: int, left_ms: int) -> None:
    """Open ``count`` sessions with the provider from an address; their workers leave them at ``left_ms``."""
    held = [taken(made.take("big", name, 1_000)) for _ in range(count)]
    for number, permit in enumerate(held, 1):
        made.set_idle("big", name, number)
        made.end(permit, left_ms)
        made.release(permit)


def test_an_address_with_its_share_of_the_sessions_displaces_none() -> None:
    """A new session in the place of an idle one of another address costs both: it waits for its own instead."""
    made = permits(ProviderLimits(sessions=4))
    leave_idle(made, "a", 1, 1_010)
    leave_idle(made, "b", 3, 1_010)
    assert made.path("big", "").open == 4
    taken(made.take("big", "a", 2_000))  # in its idle session
    made.set_idle("big", "a", 0)
    taken(made.take("big", "a", 2_000))  # less than its share were open
    refused = made.take("big", "a", 2_000)
    assert isinstance(refused, Refusal)
    assert refused.limit is Limit.PROVIDER_SESSIONS
    assert isinstance(made.take("big", "b", 2_000), Permit), "in an idle session"
    assert isinstance(made.take("big", "c", 2_000), Permit), "one that has none"


def test_idle_sessions_of_an_address_without_mail_keep_no_share() -> None:
    """An address whose workers have left uses none of its places soon: another one has them all, before they time out."""
    made = permits(ProviderLimits(sessions=4))
    leave_idle(made, "a", 4, 5_000)
    for _ in range(2):
        taken(made.take("big", "b", 5_100))
    refused = made.take("big", "b", 5_100)
    assert isinstance(refused, Refusal)
    assert refused.until_ms == 5_000 + REST_MS
    for _ in range(2):
        taken(made.take("big", "b", refused.until_ms))
    assert isinstance(made.take("big", "b", refused.until_ms), Refusal)


def test_what_has_sessions_is_not_forgotten() -> None:
    """A provider without limits that has an idle session, and gets limits by a reload."""
    made = permits(ProviderLimits())
    leave_idle(made, "a", 1, 1_010)
    list(made.forget_unused(3_000))
    made.configure(lambda name: ProviderLimits(sessions=1), {})
    taken(made.take("big", "b", 1_020))
    made.set_idle("big", "a", 0)
    assert made.path("big", "").open == 1


def test_room_when_idle_sessions_end() -> None:
    """Sessions that are closed make room for those of another address."""
    made = permits(ProviderLimits(sessions=2))
    leave_idle(made, "a", 2, 1_010)
    taken(made.take("big", "b", 2_000))
    assert isinstance(made.take("big", "b", 2_000), Refusal)
    assert made.set_idle("big", "a", 0)
    taken(made.take("big", "b", 2_000))


def test_open_sessions_are_used_while_no_new_one_may_be_opened() -> None:
    made = permits(
        ProviderLimits(connect_rate=(Rate(1, 60.0),)), a=AddressLimits(connect_rate=(Rate(1, 60.0),))
    )
    first = taken(made.take("big", "a", 1_000))
    made.begin(first, 1_000, 1)
    assert isinstance(made.take("big", "a", 1_005), Refusal)
    made.end(first, 1_010)
    made.set_idle("big", "a", 1)
    made.release(first)
    assert taken(made.take("big", "a", 1_020)).connects == 0
    assert isinstance(made.take("big", "a", 1_030), Refusal)


def test_a_session_that_was_not_opened_gives_its_place_in_the_rate_back() -> None:
    """And what waits for it is woken: the MX hosts of a domain were not found."""
    room: list[tuple[str, str]] = []
    made = Permits(lambda provider, address: room.append((provider, address)))
    made.configure(lambda name: ProviderLimits(connect_rate=(Rate(1, 60.0),)), {})
    permit = taken(made.take("big", "a", 1_000))
    assert isinstance(made.take("big", "a", 1_005), Refusal)
    made.end(permit, 1_010, opened=0)
    assert room == [("big", "a")]
    permit = taken(made.take("big", "a", 1_010))
    assert permit.connects == 1
    made.begin(permit, 1_020, 0)  # in an idle session
    made.end(permit, 1_030, opened=0)
    assert room == [("big", "a")] * 2
    assert taken(made.take("big", "a", 1_040)).connects == 1


def test_slow_answers_do_not_lower_a_rate() -> None:
    """They count as given after half a second and a tenth of the period, whether the window is full then or not."""
    windows, now_ms, sent = RateWindows([Rate(10, 60.0)]), 0, 0
    underway: deque[tuple[int, RateUse]] = deque()
    while now_ms < 3_600_000:
        while underway and underway[0][0] <= now_ms:
            windows.end(underway.popleft()[1], now_ms)
        if windows.wait_ms(now_ms) == 0:
            use = windows.grant(now_ms)
            windows.begin(use, now_ms)
            underway.append((now_ms + 30_000, use))
            sent += 1
        now_ms += 1000
    assert sent > 480


def test_what_was_not_sent_does_not_count() -> None:
    made = permits(ProviderLimits(rate=(Rate(1, 60.0),)))
    for _ in range(3):
        permit = taken(made.take("big", "a", 1_000))
        made.end(permit, 2_000)
        made.release(permit)


def test_long_windows_survive(limit: int = 3) -> None:
    """What ``end`` returns is what another life restores; short windows are not stored."""
    limits = ProviderLimits(rate=(Rate(limit, 3600.0), Rate(100, 1.0)))
    made, stored = permits(limits), {}
    for number in range(limit):
        now_ms = 1_000_000 + number * 10_000
        permit = taken(made.take("big", "a", now_ms))
        made.begin(permit, now_ms, 1)
        for row in made.end(permit, now_ms + 10):
            stored[row[:5]] = row
        made.release(permit)
    assert {row[3] for row in stored.values()} == {3_600_000}
    later = permits(limits)
    later.restore(list(stored.values()), 1_100_000)
    refused = later.take("big", "a", 1_100_000)
    assert isinstance(refused, Refusal)
    assert refused.until_ms > 4_000_000


def test_long_windows_of_new_sessions_survive() -> None:
    """Those of the provider from an address, and those of the address; each session that is opened returns its row."""
    own = AddressLimits(connect_rate=(Rate(4, 86_400.0),))
    made, stored = permits(ProviderLimits(connect_rate=(Rate(2, 3600.0),)), a=own), {}
    for now_ms in (1_000_000, 1_010_000):
        permit = taken(made.take("big", "a", now_ms))
        made.begin(permit, now_ms, 1)
        for row in made.end(permit, now_ms + 10):
            stored[row[:5]] = row
        made.release(permit)
    assert {(row[0], row[1], row[3]) for row in stored.values()} == {
        ("connects", "big", 3_600_000), ("connects", "", 86_400_000),
    }  # fmt: skip
    later = permits(ProviderLimits(connect_rate=(Rate(2, 3600.0),)), a=own)
    later.restore(list(stored.values()), 1_100_000)
    refused = later.take("big", "a", 1_100_000)
    assert isinstance(refused, Refusal)
    assert (refused.limit, refused.until_ms > 4_000_000) == (Limit.PROVIDER_CONNECT_RATE, True)
    for now_ms in (5_000_000, 5_010_000):
        permit = taken(later.take("big", "a", now_ms))
        later.begin(permit, now_ms, 1)
        later.end(permit, now_ms + 10)
        later.release(permit)
    refused = later.take("other", "a", 5_020_000)
    assert isinstance(refused, Refusal)
    assert refused.limit is Limit.ADDRESS_CONNECT_RATE


def test_a_reload_counts_on() -> None:
    """What is under way ends in the windows of the new limits."""
    made = permits(ProviderLimits(rate=(Rate(2, 60.0),), sessions_per_address=2))
    first = taken(made.take("big", "a", 1_000))
    made.configure(lambda name: ProviderLimits(rate=(Rate(1, 60.0),), sessions_per_address=2), {})
    assert isinstance(made.take("big", "a", 1_000), Refusal)
    made.begin(first, 1_000, 1)
    made.end(first, 1_001)
    made.release(first)
    assert isinstance(made.take("big", "a", 2_000), Refusal)
    assert isinstance(made.take("big", "a", 63_000), Permit)


@pytest.mark.parametrize(("before", "after"), [("1h", "2h"), ("2h", "1h"), ("10m", "1d")])
def test_another_period_counts_what_is_known(before: str, after: str) -> None:
    """Never less than was used; at most one slot longer than its time."""
    before_s, after_s = duration(before), duration(after)
    windows = RateWindows([Rate(5, before_s)])
    for n in range(5):
        use = windows.grant(1000 * n)
        windows.begin(use, 1000 * n)
        windows.end(use, 1000 * n)
    windows.configure([Rate(5, after_s)])
    assert [used for _, used in windows.used(5000)] == [5]
    assert windows.wait_ms(5000) > 5000
    slots_ms = (before_s + after_s) * 1000 / 60
    assert not windows.in_use(round(5000 + after_s * 1000 + 2 * slots_ms))


def test_what_is_not_used_is_forgotten() -> None:
    """Once nothing is under way there, and nothing that was counts: a relay meets providers without number."""
    made = permits(ProviderLimits(sessions=2, rate=(Rate(100, 1.0), Rate(1000, 3600.0))))
    first, other = taken(made.take("big", "a", 1_000)), taken(made.take("small", "a", 1_000))
    made.begin(first, 1_000, 1)
    made.end(other, 1_001)
    made.release(other)

    def left(now_ms: int) -> set[tuple[str, str]]:
        list(made.forget_unused(now_ms))
        return {(each.provider, each.address) for each in made.paths()}

    assert left(1_002) == {("big", ""), ("big", "a"), ("", "a")}
    made.end(first, 1_003)
    made.release(first)
    assert left(3_000) == {("big", "a")}, "an hour is counted"
    assert left(3_700_000) == set()
    made.path("big", "a").ceiling.paused_ms = 3_800_000
    assert left(3_700_000) == {("big", "a")}


def test_a_rate_is_spread_over_its_period() -> None:
    """The flood of a rate does not begin at once, and is as much in the end; a rate of a day, or of few, is not spread."""
    for rates, at_once in (
        ((Rate(400, 10.0),), 10),
        ((Rate(400, 10.0), Rate(50, 86_400.0)), 10),
        ((Rate(50, 86_400.0),), 50),
        ((Rate(9, 10.0),), 9),
    ):
        windows, sent = RateWindows(rates, spread=True), []
        for now_ms in range(10_000):
            while windows.wait_ms(now_ms) == 0:
                use = windows.grant(now_ms)
                windows.begin(use, now_ms)
                windows.end(use, now_ms)
                sent.append(now_ms)
        assert most_within(sent, 100) <= at_once, rates
        assert len(sent) == min(rate.events for rate in rates), rates


def test_of_several_addresses_the_first_that_may_be_used_says_why() -> None:
    """Whatever the order in which they were drawn; a session may end at any moment."""
    found = [
        Refusal(Limit.PROVIDER_SESSIONS, UNTIL_EVENT, "full"),
        Refusal(Limit.PAUSE, 9_000, "paused"),
        Refusal(Limit.ADDRESS_RATE, 5_000, "rate", at=(("a", 5_000),)),
    ]
    for order in permutations(found):
        whole = merge_refusals(order, 1_000)
        assert (whole.limit, whole.until_ms, whole.reason) == (Limit.ADDRESS_RATE, 5_000, "rate")
        assert (whole.at, whole.others_ms) == ((("a", 5_000),), 9_000)
    assert merge_refusals(found[:1], 1_000).until_ms == UNTIL_EVENT
    full = Refusal(Limit.PROVIDER_SESSIONS, UNTIL_EVENT, "full", for_session=True)
    new = Refusal(Limit.WARMUP, 60_000_000, "new")
    suspended = Refusal(Limit.OPERATOR, UNTIL_EVENT, "suspended")
    for order in permutations([full, new, suspended]):
        whole = merge_refusals(order, 1_000)
        assert (whole.limit, whole.until_ms) == (Limit.PROVIDER_SESSIONS, UNTIL_EVENT)
        assert whole.timer_ms == 60_000_000  # what waits is woken then, if no session ends before
        assert merge_refusals(order, 59_990_000).limit is Limit.WARMUP
    assert merge_refusals([suspended, new], 1_000).limit is Limit.WARMUP


def test_a_limit_that_was_lowered_ends_sessions_that_are_in_use() -> None:
    """Workers that have a session ask for another message: those that are too many get none, the others go on."""
    made = permits(ProviderLimits(sessions=4))
    workers = [taken(made.take("big", "a", 1_000)) for _ in range(4)]
    for each in workers:
        made.begin(each, 1_000, 1)
        made.end(each, 1_100)
    made.configure(lambda name: ProviderLimits(sessions=3), {})
    refused = made.renew(workers[0], 1_200)
    assert refused is not None
    assert refused.for_session
    made.release(workers[0])
    assert [made.renew(each, 1_200) for each in workers[1:]] == [None] * 3


def test_what_has_not_begun_is_not_waited_for_without_end() -> None:
    """A slow session, or message, does not close a rate until it ends: it counts as given half a second after it began."""
    made = permits(ProviderLimits(rate=(Rate(1, 1.0),)))
    slow = taken(made.take("big", "a", 1_000))
    waiting = made.take("big", "a", 1_000)
    assert isinstance(waiting, Refusal)
    assert waiting.until_ms == 1_500
    made.begin(slow, 1_400, 1)
    for now_ms in (1_500, 1_900):
        waiting = made.take("big", "a", now_ms)
        assert isinstance(waiting, Refusal)
        assert waiting.until_ms > now_ms
    assert 2_900 <= waiting.until_ms <= 3_000, "half a second, and the period"
    taken(made.take("big", "a", waiting.until_ms))


def test_a_provider_answers_for_a_while() -> None:
    made = permits(ProviderLimits(sessions=1))
    assert not made.is_answering("big", 1_000)
    permit = taken(made.take("big", "a", 1_000))
    assert not made.is_answering("big", 1_000), "its session may not open"
    made.begin(permit, 2_000, 1)
    assert made.is_answering("big", 61_999)
    assert not made.is_answering("big", 62_000)
