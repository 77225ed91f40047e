"""How much is accepted in a time: never more, no less than must be, and over restarts."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.queue import Clock, opened, problems
from zonemta_py.config.tenants import ClientLimits, IntakeLimits, LimitRules, Subject
from zonemta_py.config.values import DAY, HOUR, MINUTE, ByteRate, Rate
from zonemta_py.core.counters import SLOTS, SlidingWindow
from zonemta_py.core.networks import network_of
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.submitters.limits import IntakeLimiter, LimitedClient, Use

ANN = LimitedClient("acme", "ann", "192.0.2.1")
ONE = Use(messages=1, recipients=1, bytes=100)


def messages(*rates: Rate) -> IntakeLimits:
    return IntakeLimits(messages=rates)


def rules(limits: IntakeLimits) -> LimitRules:
    return LimitRules({"acme": limits}, ClientLimits())


def accepted(limiter: IntakeLimiter, count: int, client: LimitedClient = ANN, use: Use = ONE) -> int:
    """How many of ``count`` uses are accepted."""
    return sum(1 for _ in range(count) if not limiter.charge(client, use).refusal)


# ---- one window


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 4)), max_size=80), st.integers(4, 12))
def test_never_more_than_the_limit_in_any_window(steps: list[tuple[int, int]], limit: int) -> None:
    """And there is room at the time that was named, unless something else was used."""
    length_ms = 600
    window, uses, now_ms = SlidingWindow(limit, length_ms), list[tuple[int, int]](), 1_000_000
    for wait_ms, amount in steps:
        now_ms += wait_ms
        opens_ms = window.opens_ms(now_ms, amount)
        recent = sum(used for at, used in uses if at > now_ms - length_ms - 2 * window.slot_ms)
        if opens_ms:
            assert now_ms < opens_ms <= now_ms + length_ms + window.slot_ms
            assert recent + amount > limit  # not refused without need, but for two slots
            now_ms = opens_ms
            assert window.opens_ms(now_ms, amount) == 0
        window.add(now_ms, amount)
        uses.append((now_ms, amount))
    for end, _ in uses:
        assert sum(used for at, used in uses if end - length_ms < at <= end) <= limit


def test_a_clock_that_is_set_back() -> None:
    """What was used continues to count; by more than a window: as if it was used now, and not until the clock is there again."""
    window = SlidingWindow(2, 60_000)
    window.add(1_000_000, 1)
    window.add(950_000, 1)
    assert window.opens_ms(950_000, 1) == (1000 + SLOTS + 1) * 1000
    window.add(900_000, 0)
    assert window.used(900_000) == 2
    assert window.opens_ms(900_000, 1) == (900 + SLOTS + 1) * 1000
    assert window.used(961_000) == 0


# ---- several together


async def test_all_windows_hold(directory: Path) -> None:
    """Three a minute, five an hour: the reply names the time of the one that is closed longest."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        limiter = queue.limits
        limiter.configure(rules(messages(Rate(3, MINUTE), Rate(5, HOUR))))
        assert accepted(limiter, 10) == 3
        refusal = limiter.charge(ANN, ONE).refusal
        assert (
            refusal
            == "450 4.7.1 Tenant acme has sent 3 messages in 1 min, again at 2027-01-15T08:01:01Z"
        )
        assert limiter.closed(ANN) == refusal
        clock.ms += 61_000
        assert limiter.closed(ANN) == ""
        assert accepted(limiter, 10) == 2
        assert "5 messages in 1 h, again at 2027-01-15T09:01:00Z" in limiter.closed(ANN)
        assert limiter.closed(LimitedClient("globex", "bob", "192.0.2.1")) == ""


async def test_what_is_refused_by_one_limit_uses_none_of_another(directory: Path) -> None:
    async with opened(directory) as queue:
        limits = IntakeLimits((), (Rate(10, HOUR),), (Rate(100, HOUR),), (ByteRate(Rate(1000, HOUR)),))
        queue.limits.configure(rules(limits))
        assert accepted(queue.limits, 5, use=Use(0, 1, 60, 10)) == 1
        assert accepted(queue.limits, 5, use=Use(0, 1, 1, 900)) == 1
        used = {row["limit"]: row["used"] for row in queue.limits.used(Subject("tenant", "acme"))}
        assert used == {"messages": 2, "recipients": 61, "bytes": 910}


async def test_what_no_window_can_hold(directory: Path) -> None:
    """It is refused for good, and closes nothing."""
    async with opened(directory) as queue:
        queue.limits.configure(rules(IntakeLimits(bytes=(ByteRate(Rate(1000, HOUR)),))))
        charge = queue.limits.charge(ANN, Use(0, 1, 1, 1001))
        assert charge.refusal == "550 5.7.1 Tenant acme may send 1000 bytes in 1 h, this has 1001"
        assert (charge.closed_ms, queue.limits.closed(ANN)) == (0, "")


async def test_what_is_remembered_is_the_refusal_of_any_message(directory: Path) -> None:
    """A receiver says it to later messages: not that one was too large for good."""
    async with opened(directory) as queue:
        limits = IntakeLimits((), (Rate(1, HOUR),), (), (ByteRate(Rate(1000, HOUR)),))
        queue.limits.configure(rules(limits))
        assert accepted(queue.limits, 1) == 1
        charge = queue.limits.charge(ANN, Use(0, 1, 1, 1001))
        assert charge.closed_ms
        assert charge.refusal == queue.limits.closed(ANN)
        assert charge.refusal.startswith("450 4.7.1")


def test_a_window_that_sixty_does_not_divide() -> None:
    """It is not shorter than it says."""
    for length_ms in (90, 1000, 10_000):
        window = SlidingWindow(1, length_ms)
        window.add(1_000_000, 1)
        assert window.opens_ms(1_000_000, 1) >= 1_000_000 + length_ms


async def test_tenant_user_and_address(directory: Path) -> None:
    """Each has its own windows; the addresses of one IPv6 network are one client."""
    async with opened(directory) as queue:
        limiter = queue.limits
        clients = ClientLimits(messages(Rate(3, HOUR)), messages(Rate(2, HOUR)))
        limiter.configure(LimitRules({"acme": messages(Rate(4, HOUR))}, clients))
        assert accepted(limiter, 5, ANN) == 2  # of the address
        assert accepted(limiter, 5, ANN._replace(client_ip="192.0.2.2")) == 1  # of the user
        assert accepted(limiter, 5, LimitedClient("acme", "app", "")) == 1  # of the tenant; a program
        assert accepted(limiter, 5, LimitedClient("", "", "2001:db8::1")) == 2
        assert accepted(limiter, 5, LimitedClient("", "", "2001:db8::2")) == 0
        assert accepted(limiter, 5, LimitedClient("", "", "2001:db8:0:1::2")) == 2


def test_networks() -> None:
    assert network_of("2001:db8::1") == "2001:db8::/64"
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"


# ---- over restarts and reloads


async def test_windows_of_an_hour_hold_over_a_restart(directory: Path) -> None:
    """Those of a minute begin anew."""
    clock, limits = Clock(), rules(messages(Rate(4, MINUTE), Rate(7, HOUR), Rate(9, DAY)))
    async with opened(directory, clock) as queue:
        queue.limits.configure(limits)
        assert accepted(queue.limits, 10) == 4
    clock.ms += 1000
    async with opened(directory, clock) as queue:
        queue.limits.configure(limits)
        assert accepted(queue.limits, 10) == 3
        assert problems(queue.store) == []
    clock.ms += round(1000 * (HOUR + MINUTE))
    async with opened(directory, clock) as queue:
        queue.limits.configure(limits)
        assert accepted(queue.limits, 10) == 2


async def test_a_reload_keeps_what_was_used(directory: Path) -> None:
    """The number may change; another length begins anew, and so does a limit that was taken away."""
    async with opened(directory) as queue:
        limiter = queue.limits
        limiter.configure(rules(messages(Rate(4, HOUR))))
        assert accepted(limiter, 10) == 4
        limiter.configure(rules(messages(Rate(6, HOUR), Rate(10, DAY))))
        assert accepted(limiter, 10) == 2
        await queue.commits.submit(WriteBatch())
        limiter.configure(rules(IntakeLimits()))
        assert accepted(limiter, 10) == 10
        limiter.configure(rules(messages(Rate(6, HOUR))))
        assert accepted(limiter, 10) == 0  # it was stored


async def test_what_is_over_is_forgotten(directory: Path) -> None:
    clock = Clock()
    async with opened(directory, clock) as queue:
        limiter = queue.limits
        limiter.configure(rules(messages(Rate(4, HOUR), Rate(9, DAY))))
        accepted(limiter, 1)
        await queue.commits.submit(WriteBatch())

        def stored() -> list[bytes]:
            return list(queue.store.keys(keys.META_LIMIT, keys.end_of(keys.META_LIMIT)))

        await limiter._delete_old(clock.ms)
        assert len(stored()) == 2
        clock.ms += round(1000 * (HOUR + MINUTE))
        await limiter._delete_old(clock.ms)
        assert [keys.parse_limit(key)[1] for key in stored()] == [round(1000 * DAY)]
