"""Retries and sources, with time as an argument."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.values import Seconds, duration
from zonemta_py.config.zones import ExponentialRetry, PriorityRetry, QuadraticRetry, Retry
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.model import PoolKey
from zonemta_py.delivery.endpoints import choose_source
from zonemta_py.egress.admission import SOURCE_RUN, Destination, WorkerSlot
from zonemta_py.egress.sources import (
    addresses_in,
    addresses_of,
    part_after,
    preferred,
    ranked,
)
from zonemta_py.schedule.retry import (
    FALLBACK_S,
    SOONEST_S,
    RetryContext,
    exponential,
    from_backoff,
    guarded,
    make_policy,
    next_attempt,
    priority_of,
    quadratic,
    warning_is_due,
)
from zonemta_py.schedule.scheduler import FRESH

RETRY = Retry(delays=(Seconds(60), Seconds(120)), give_up_after=Seconds(600), warn_after=Seconds(300))


def next_due_ms(retry: Retry, attempts: int, now_ms: int, jitter: float = 0.0) -> int | None:
    end_ms = int(retry.give_up_after * 1000)
    return next_attempt(make_policy(retry), RetryContext(0, attempts, now_ms, end_ms), jitter)


def attempts_of(retry: Retry) -> list[int]:
    """Seconds after acceptance of every attempt, each failing at once."""
    found, now_ms = [0], 0
    while (due := next_due_ms(retry, len(found), now_ms)) is not None:
        found.append(due // 1000)
        now_ms = due
    return found


def test_the_ladder() -> None:
    """Each failure climbs it, the last step repeats, and the end is the end."""
    assert next_due_ms(RETRY, 1, 1000) == 61_000
    assert next_due_ms(RETRY, 2, 61_000) == 181_000
    assert next_due_ms(RETRY, 9, 181_000) == 301_000
    assert next_due_ms(RETRY, 9, 599_000) == 600_000
    assert next_due_ms(RETRY, 9, 600_000) is None


def test_exponential() -> None:
    retry = Retry(
        policy="exponential",
        exponential=ExponentialRetry(Seconds(60), 3, Seconds(1000)),
        give_up_after=Seconds(4000),
    )
    assert attempts_of(retry) == [0, 60, 240, 780, 1780, 2780, 3780, 4000]


def test_quadratic_is_qmails() -> None:
    """Remote and local mail at the times the source computes; one attempt after the lifetime."""
    week = Seconds(604_800)
    remote = attempts_of(Retry(policy="quadratic", quadratic=QuadraticRetry(20), give_up_after=week))
    assert remote[:7] == [0, 400, 1600, 3600, 6400, 10_000, 14_400]
    assert (len(remote), remote[-1]) == (40, 608_400)
    local = attempts_of(Retry(policy="quadratic", quadratic=QuadraticRetry(10), give_up_after=week))
    assert local[:5] == [0, 100, 400, 900, 1600]
    assert len(local) == 79
    assert attempts_of(Retry(policy="quadratic", give_up_after=Seconds(100))) == [0, 400]


def test_lists_by_priority() -> None:
    own = PriorityRetry(urgent=(duration("PT5M"), duration("PT10M")), normal=(duration("PT1H"),))
    policy = make_policy(Retry(policy="priority", priority=own))
    due = {
        p: policy(RetryContext(0, 1, 0, 10**9, priority=p)) for p in ("urgent", "normal", "nonurgent")
    }
    assert due == {"urgent": 300_000, "normal": 3_600_000, "nonurgent": 3_600_000}
    assert [priority_of(f) for f in ("Urgent", " non-urgent ", "soon")] == [
        "urgent",
        "nonurgent",
        "normal",
    ]


def every_minute_thrice(context: RetryContext) -> float | None:
    """A policy that is found by its dotted name."""
    return context.now_ms + 60_000 if context.attempts < 3 else None


def test_a_function_by_name() -> None:
    name = f"{__name__}.every_minute_thrice"
    assert attempts_of(Retry(policy="function", function=name)) == [0, 60, 120]
    for wrong in ("nowhere.at_all", f"{__name__}.missing", f"{__name__}.RETRY", "", "os"):
        with pytest.raises(ConfigError):
            make_policy(Retry(policy="function", function=wrong))


@given(st.integers(1, 200), st.integers(0, 599_999), st.floats(0, 1))
def test_a_retry_is_later_and_in_time(attempts: int, now_ms: int, jitter: float) -> None:
    """The next attempt is after now, not after the end, and spread by no more than the jitter."""
    for retry in (
        RETRY,
        replace(RETRY, policy="exponential", exponential=ExponentialRetry(longest=Seconds(120))),
    ):
        due = next_due_ms(retry, attempts, now_ms, jitter)
        assert due is not None
        assert now_ms < due <= 600_000
        assert due - now_ms <= 120_000 * (1 + jitter) + 1
    assert exponential(1, 100, 60)(RetryContext(0, 10**6, 0, 10**9)) == 60_000
    assert quadratic(1)(RetryContext(0, 1, 600_000, 600_000)) is None


def test_warning() -> None:
    assert not warning_is_due(RETRY, 0, 299_999)
    assert warning_is_due(RETRY, 0, 300_000)
    assert not warning_is_due(Retry(warn_after=None), 0, 10**12)


def test_sources_are_weighted_and_stable() -> None:
    """Shares follow the weights, a message keeps its address, a family must fit."""
    pool = [
        PoolAddress("192.0.2.1", weight=3),
        PoolAddress("192.0.2.2", weight=1),
        PoolAddress("2001:db8::1", weight=1),
        PoolAddress("192.0.2.9", weight=0),
    ]
    chosen = [choose_source(pool, f"{n:024x}", "", "198.51.100.1") for n in range(4000)]
    assert [choose_source(pool, f"{n:024x}", "", "198.51.100.1") for n in range(4000)] == chosen
    share = sum(1 for entry in chosen if entry is pool[0]) / 4000
    assert 0.7 < share < 0.8
    assert pool[3] not in chosen
    assert choose_source(pool, "m", "", "2001:db8::9") is pool[2]
    assert choose_source(pool[:2], "m", "", "2001:db8::9") is None
    assert choose_source([PoolAddress()], "m", "", "2001:db8::9") == PoolAddress()


def test_some_addresses_first() -> None:
    """The others follow in the order of the message; a name that the pool does not have changes nothing."""
    pool = [PoolAddress(f"192.0.2.{n}") for n in range(1, 7)]
    by_message = ranked(pool, "m")
    first, second = by_message[4], by_message[2]
    others = [each for each in by_message if each not in (first, second)]
    names = str(first.address), str(second.address)
    assert preferred(pool, "m", *names) == [first, second, *others]
    assert preferred(pool, "m", "", "192.0.2.99") == by_message


def test_a_part_of_a_pool() -> None:
    """Of one address or of all others; of all if it has none of the addresses."""
    first, second, third = pool = [PoolAddress(f"192.0.2.{n}") for n in range(1, 4)]
    parts = [PoolKey("p"), PoolKey("p", "192.0.2.2"), PoolKey("", "192.0.2.2", True)]
    assert [addresses_in(each, pool) for each in parts] == [pool, [second], [first, third]]
    assert [addresses_in(each, [first]) for each in parts] == [[first]] * 3
    assert addresses_in(parts[2], [second]) == [second]


def test_from_where_the_next_attempt_leaves() -> None:
    """Of a pool with several usable addresses, one that greylisted is kept, and one that was blocked left."""
    unused = [PoolAddress("192.0.2.8", disabled=True), PoolAddress("192.0.2.9", weight=0)]
    several = [PoolAddress("192.0.2.1"), PoolAddress("192.0.2.2"), *unused]
    addresses = addresses_of({"p": several, "q": [PoolAddress("192.0.2.3"), *unused]})
    assert addresses == {"": {"192.0.2.1", "192.0.2.2"}, "p": {"192.0.2.1", "192.0.2.2"}}
    assert addresses_of({"q": [PoolAddress("192.0.2.3")]}) == {}
    found = [
        part_after("p", addresses["p"], source, reply_class)
        for source in ("192.0.2.1", "192.0.2.9", "")
        for reply_class in ("greylisted", "blocked", "mailbox_full", "")
    ]
    assert found[:2] == [PoolKey("p", "192.0.2.1"), PoolKey("p", "192.0.2.1", True)]
    assert set(found[2:]) == {PoolKey("p")}


def test_a_worker_draws_its_address_again() -> None:
    """After some messages in a row; so the shares are those of the weights."""
    pool = [PoolAddress("192.0.2.1", weight=3), PoolAddress("192.0.2.2")]
    slot, sent = WorkerSlot(Destination("d.example", 1), FRESH), Counter[str]()
    changes = 0
    for number in range(40_000):
        source = choose_source(
            pool, f"{number}", "" if slot.redraw_source else slot.source, "198.51.100.1"
        )
        assert source is not None
        assert source.address is not None
        changes += source.address != slot.source
        slot.note_source(source.address)
        sent[source.address] += 1
    redraw_source = 40_000 / SOURCE_RUN
    assert 0.7 < sent["192.0.2.1"] / 40_000 < 0.8
    assert redraw_source / 4 < changes < redraw_source / 2, "three of eight draws change it"


@pytest.mark.parametrize(
    ("answer", "delay_s"),
    [
        (None, None), (60, 60), (0.2, SOONEST_S), (-5, SOONEST_S), (0, SOONEST_S),
        (float("inf"), FALLBACK_S), (float("nan"), FALLBACK_S), ("5m", FALLBACK_S), (10**12, FALLBACK_S), ({}, FALLBACK_S),
    ],
)  # fmt: skip
def test_a_function_of_the_user(answer: Any, delay_s: float | None) -> None:
    """A valid time counts, no sooner than in a second; anything else gives the fallback and an error."""
    errors: list[str] = []
    policy = guarded(from_backoff(lambda recipient, attempts: answer), errors.append)
    due_ms = policy(RetryContext(0, 1, 1_800_000_000_000, 0))
    assert due_ms == (None if delay_s is None else 1_800_000_000_000 + delay_s * 1000)
    assert bool(errors) == (delay_s == FALLBACK_S)


def test_a_function_that_raises() -> None:
    errors: list[str] = []

    def broken(recipient: RetryContext, attempts: int) -> float:
        raise KeyError(recipient.recipient)

    assert (
        guarded(from_backoff(broken), errors.append)(RetryContext(0, 1, 5, 0)) == 5 + FALLBACK_S * 1000
    )
    assert "KeyError" in errors[0]
