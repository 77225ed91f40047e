"""Messages that are to be sent later, or before others."""

import asyncio
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, events, everything, lease, opened, problems, settle
from zonemta_py.core.model import OutcomeKind
from zonemta_py.delivery.send_check import before_attempt
from zonemta_py.queue import deferral
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import DeliveryOptions, read_recipient_record
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.queue.upkeep.operator import Operator

LATER = DeliveryOptions(Clock().ms + 3_600_000)
URGENT = DeliveryOptions(priority="urgent")
NONURGENT = DeliveryOptions(priority="nonurgent")


def left(queue: Queue) -> list[str]:
    """The recipients in the order in which they are leased."""
    found = []
    while (held := queue.lease("default", "x.example", 1)) is not None:
        found += [recipient.address.partition("@")[0] for recipient in held.recipients]
    return found


async def test_a_message_for_later_takes_no_room_until_then(directory: Path) -> None:
    """Also over a restart, and whatever is flushed meanwhile."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        await accept(queue, "a@x.example", "b@x.example", options=LATER)
        await accept(queue, "now@x.example")
        assert queue.windows.zone("default").room.size == 1
        assert await flush(queue) == 0
        assert await flush(queue, "default", "x.example", None) == 0
        [accepted, _] = events(queue.store)
        assert accepted["not_before_ms"] == LATER.not_before_ms
    async with opened(directory, clock) as queue:
        assert left(queue) == ["now"]
        clock.ms = LATER.not_before_ms - 1
        assert await queue.deferral.wake_due(clock.ms) == 0
        clock.ms += 1
        assert await queue.deferral.wake_due(clock.ms) == 1
        assert problems(queue.store) == []
        await until(lambda: queue.windows.zone("default").room.size > 0, "both in the window")
        assert left(queue) == ["a", "b"]


async def test_no_flush_sends_it_before_its_time(directory: Path) -> None:
    """Also one that names the message; other deferred recipients are woken."""
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example", options=LATER)
        await accept(queue, "b@x.example")
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DEFERRED, LATER.not_before_ms)
        assert await flush(queue, "default", None, message) == 0
        assert await flush(queue) == 1
        assert left(queue) == ["b"]


async def test_what_is_released_waits_for_its_time(directory: Path) -> None:
    """A lease finds that it is too early; that is no attempt, and no event."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        message = await accept(queue, "a@x.example", options=LATER)
        await Operator(queue).hold(message)
        assert await Operator(queue).release(message) == 1
        held = lease(queue, "x.example")
        await queue.settle(held, before_attempt(held.active.meta, held.recipients, clock.ms))
        assert [e["event"] for e in events(queue.store)] == ["accepted", "held", "released"]
        assert await flush(queue) == 0
        clock.ms = LATER.not_before_ms
        assert await queue.deferral.wake_due(clock.ms) == 1
        assert lease(queue, "x.example").recipients[0].record.attempts == 0
        assert problems(queue.store) == []


@pytest.mark.parametrize("days", [1, 20])
async def test_a_restart_long_before_its_time(directory: Path, days: int) -> None:
    """The rescue of every start leaves it alone, with the key that wakes it."""
    clock = Clock()
    options = DeliveryOptions(clock.ms + days * 86_400_000)
    async with opened(directory, clock) as queue:
        await accept(queue, "a@x.example", "b@x.example", options=options)
    for _ in range(2):
        async with opened(directory, clock) as queue:
            queue.deferral._longest_delay_ms = 3600_000
            await queue.deferral._rescue(clock.ms + 3600_000)
            assert problems(queue.store) == []
    clock.ms = options.not_before_ms
    async with opened(directory, clock) as queue:
        await until(lambda: queue.windows.zone("default").waiting("x.example") == 2, "both recipients")
        assert left(queue) == ["a", "b"]
        assert problems(queue.store) == []


async def test_it_is_not_taken_for_a_clock_that_was_wrong(directory: Path) -> None:
    """Others that are due in an hour are, if no delay is so long."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        queue.deferral._longest_delay_ms = 1000
        await accept(queue, "a@x.example", options=LATER)
        await accept(queue, "b@x.example")
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DEFERRED, LATER.not_before_ms)
        assert await queue.deferral._rescue(clock.ms + 1000) == 1
        assert left(queue) == ["b"]
        assert problems(queue.store) == []


async def test_a_clock_that_is_set_back_while_the_relay_runs(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deferred before waits no longer than a delay can be."""
    monkeypatch.setattr(deferral, "RESCUE_EVERY_S", 0.01)
    clock = Clock()
    async with opened(directory, clock) as queue:
        queue.deferral._longest_delay_ms = 1000
        await accept(queue, "b@x.example")
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DEFERRED, clock.ms + 900)
        clock.ms -= 86_400_000
        await until(lambda: left(queue) == ["b"], "the recipient")


async def test_a_clock_that_is_ahead_between_two_looks(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is noticed where it matters: when the time at which mail is due is written."""
    monkeypatch.setattr(deferral, "RESCUE_EVERY_S", 0.2)
    monkeypatch.setattr(deferral, "SET_BACK_MS", 3600_000)  # the clock of the test stands still
    clock = Clock()
    async with opened(directory, clock) as queue:
        queue.deferral._longest_delay_ms = 1000
        await accept(queue, "b@x.example")  # meanwhile the first look has been
        clock.ms += 86_400_000
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DEFERRED, clock.ms + 900)
        clock.ms -= 86_400_000
        await until(lambda: left(queue) == ["b"], "the recipient")


async def test_the_age_counts_from_the_time_when_it_may_be_sent(directory: Path) -> None:
    clock = Clock()
    async with opened(directory, clock) as queue:
        await accept(queue, "a@x.example", options=LATER)
        clock.ms = LATER.not_before_ms + 5
        await queue.deferral.wake_due(clock.ms)
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
        assert events(queue.store)[-1]["created_ms"] == LATER.not_before_ms
        await queue.cleanup.idle() if hasattr(queue.cleanup, "idle") else await asyncio.sleep(0)
        assert everything(queue.store) == []


async def test_urgent_mail_of_a_submitter_goes_first(directory: Path) -> None:
    """And nonurgent mail last; the turns of the other submitters stay as they are."""
    async with opened(directory) as queue:
        await accept(queue, "late@x.example", user="ann", options=NONURGENT)
        await accept(queue, "a@x.example", user="ann")
        await accept(queue, "bob@x.example", user="bob")
        await accept(queue, "b@x.example", user="ann")
        await accept(queue, "code@x.example", user="ann", options=URGENT)
        assert left(queue) == ["code", "bob", "a", "b", "late"]


async def test_urgent_mail_does_not_wait_behind_the_flood_of_its_submitter(directory: Path) -> None:
    """It is in the window although the flood fills its part and has spilled; also after a restart."""
    async with opened(directory, window=80) as queue:
        for number in range(60):
            await accept(queue, f"{number}@x.example", user="ann")
        await accept(queue, "code@x.example", user="ann", options=URGENT)
        assert lease(queue, "x.example").recipients[0].address == "code@x.example"
    async with opened(directory, window=80) as queue:
        assert left(queue)[0] == "code"
        assert problems(queue.store) == []


async def test_urgent_mail_has_its_bounds(directory: Path) -> None:
    """It fills two shares of a destination, and leaves the rest of the window to others."""
    async with opened(directory, window=800) as queue:
        for number in range(600):
            await accept(queue, f"{number}@x.example", user="ann", options=URGENT)
        window = queue.windows.zone("default")
        assert window.waiting("x.example") == 200
        await accept(queue, "b@other.example", user="bob")
        assert window.waiting("other.example") == 1


async def test_the_flow_says_the_priority(directory: Path) -> None:
    """The submitter is the same: urgent mail has no turns of its own."""
    async with opened(directory) as queue:
        await accept(queue, "a@x.example", user="ann", tenant="acme", options=URGENT)
        await accept(queue, "b@x.example", user="", options=NONURGENT)
        rows = queue.store.scan(keys.WAITING, keys.end_of(keys.WAITING))
        records = [read_recipient_record(value) for _, value in rows]
        assert [record.flow for record in records] == [
            "tenant:acme @ann @!urgent",
            "127.0.0.1 @sender.example @!nonurgent",
        ]
        assert [record.submitter for record in records] == ["tenant:acme", "127.0.0.1"]
