"""Mail that is held for a suspension: what is held, over restarts and interruptions, and its release."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, held_mail, lease, opened, problems, settle
from zonemta_py.admin.reasons import Reasons
from zonemta_py.admin.relay_port import RunningRelay
from zonemta_py.core.codec import from_json
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import RecipientRecord, read_recipient_record
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.suspensions import MailPart, part_of_key
from zonemta_py.queue.upkeep.inspect import recipient_rows
from zonemta_py.queue.upkeep.operator import Operator, suspension_of

JUNE_AT_BIG = MailPart(campaign="june", provider="big")
PARTS = [
    MailPart(campaign="june"),
    MailPart(tenant="acme", campaign="a/b&c=d %:?", provider="mx.own.example"),
    MailPart(zone="bulk", tenant="acme"),
    MailPart(domain="xn--bcher-kva.example", campaign="\N{LATIN SMALL LETTER E WITH ACUTE}t\N{LATIN SMALL LETTER E WITH ACUTE}"),
]  # fmt: skip


def states(queue: Queue) -> dict[str, str]:
    return {row["recipient"]: row["state"] for row in recipient_rows(queue.store)}


def record(queue: Queue, key: bytes) -> RecipientRecord:
    value = queue.store.get(key)
    assert value is not None
    return read_recipient_record(value)


def listed(queue: Queue) -> list[bytes]:
    return list(queue.store.keys(keys.META_HELD, keys.end_of(keys.META_HELD)))


def shaped_events(queue: Queue) -> list[dict[str, Any]]:
    rows = queue.store.scan(keys.OUTBOX, keys.end_of(keys.OUTBOX))
    lines = [line for _, value in rows for line in value.splitlines()]
    return [from_json(line) for line in lines if b'"shaped"' in line]


async def hold_next(queue: Queue, domain: str, provider: str, most: int = 100) -> bool:
    """Lease for ``domain`` as a worker does; whether something was held."""
    found = lease(queue, domain, most)
    held = await held_mail(queue).hold(found, provider)
    if not held:
        queue.release(found)
    return held


async def release(queue: Queue, name: str) -> int:
    count = 0
    async for released in held_mail(queue).release(name):
        count = released
    return count


@pytest.mark.parametrize("part", PARTS)
def test_the_name_of_a_part(part: MailPart) -> None:
    """It is read again as it was, also as a part of a key."""
    assert part_of_key(part.key) == part
    key = keys.held_key(part.key, keys.deferred_key("bulk", "0" * 24, "a/b@x.example"))
    assert keys.parse_held(key) == (part.key, b"deferred/bulk/" + b"0" * 24 + b"/a/b@x.example")


@pytest.mark.usefixtures("each_store")
async def test_only_the_part_is_held(directory: Path) -> None:
    """Other campaigns, and the same one elsewhere, are sent; a restart finds what is held; its end releases that."""
    async with opened(directory) as queue:
        await accept(queue, "a@big.example", "b@big.example", "c@small.example", campaign="june")
        await accept(queue, "d@big.example", campaign="july")
        by_hand = await accept(queue, "e@big.example", campaign="june")
        await Operator(queue).hold(by_hand)
        await queue.suspended.suspend(JUNE_AT_BIG.key, "wrong list")
        assert await hold_next(queue, "big.example", "big")
        assert not await hold_next(queue, "big.example", "big"), "that of July"
        assert not await hold_next(queue, "small.example", "small")
        held = {"a@big.example": "held", "b@big.example": "held"}
        sent = {"c@small.example": "waiting", "d@big.example": "waiting"}
        assert states(queue) == held | sent | {"e@big.example": "held"}
        assert problems(queue.store) == []
    async with opened(directory) as queue:
        assert states(queue) == held | sent | {"e@big.example": "held"}
        key = keys.deferred_key("default", by_hand, "e@big.example")
        assert suspension_of(queue.store, key) == ""
        await queue.suspended.resume(JUNE_AT_BIG.key)
        assert await release(queue, JUNE_AT_BIG.key) == 2
        assert set(states(queue).items()) >= {("e@big.example", "held"), ("a@big.example", "waiting")}
        assert listed(queue) == []
        found = lease(queue, "big.example")
        await settle(queue, found, OutcomeKind.DELIVERED)
        assert problems(queue.store) == []


async def test_a_part_of_a_large_message(directory: Path) -> None:
    """Each lease is held by itself, without the recipients of the others."""
    async with opened(directory) as queue:
        addresses = [f"r{number}@big.example" for number in range(600)]
        await accept(queue, *addresses, campaign="june")
        await queue.suspended.suspend(MailPart(campaign="june", domain="big.example").key, "")
        assert await hold_next(queue, "big.example", "", 50)
        assert list(states(queue).values()).count("held") == 50
        assert len(listed(queue)) == 50
        while "waiting" in states(queue).values():
            assert await hold_next(queue, "big.example", "", 50)
        await queue.suspended.resume(MailPart(campaign="june", domain="big.example").key)
        assert await release(queue, MailPart(campaign="june", domain="big.example").key) == 600
        assert problems(queue.store) == []


async def test_what_is_gone_or_elsewhere_meanwhile(directory: Path) -> None:
    """Deleted and released recipients are no obstacle to the release of the others."""
    part = MailPart(tenant="acme", zone="default")
    async with opened(directory) as queue:
        message = await accept(
            queue, *(f"{name}@x.example" for name in "abc"), tenant="acme", campaign="june"
        )
        await queue.suspended.suspend(part.key, "")
        assert await hold_next(queue, "x.example", "")
        await Operator(queue).delete(message, "a@x.example")
        await Operator(queue).release(message, "b@x.example")
        assert states(queue) == {"b@x.example": "waiting", "c@x.example": "held"}
        await queue.suspended.resume(part.key)
        assert await release(queue, part.key) == 1
        assert states(queue) == {"b@x.example": "waiting", "c@x.example": "waiting"}
        assert listed(queue) == []
        assert not held_mail(queue).is_any(part.key)


async def test_what_an_operator_holds_stays_when_a_suspension_ends(directory: Path) -> None:
    """Held before, or held again while the suspension holds it; of a tenant only the end of the time is meant."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        before = await accept(queue, "a@x.example", tenant="acme", campaign="june")
        await Operator(queue).hold(before)
        await queue.suspended.suspend("acme", "", clock() + 1000)
        again = await accept(queue, "b@x.example", "c@x.example", tenant="acme", campaign="june")
        assert await hold_next(queue, "x.example", "")
        key = keys.deferred_key("default", again, "b@x.example")
        assert suspension_of(queue.store, key) == "acme"
        assert await Operator(queue).hold(again, "b@x.example") == (1, 0)
        assert await Operator(queue).hold(again, "b@x.example") == (0, 0)
        assert suspension_of(queue.store, key) == ""
        clock.ms += 1000
        assert "acme" not in queue.suspended
        await until(lambda: states(queue)["c@x.example"] == "waiting", "the release")
        await until(lambda: listed(queue) == [], "the list")
        assert states(queue) == {"a@x.example": "held", "b@x.example": "held", "c@x.example": "waiting"}
        assert problems(queue.store) == []


async def test_the_suspension_is_named_when_it_is_over(directory: Path) -> None:
    """Until the mail is released, as in a relay that is down."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        message = await accept(queue, "a@big.example", campaign="june")
        await queue.suspended.suspend(JUNE_AT_BIG.key, "", clock() + 1000)
        assert await hold_next(queue, "big.example", "big")
        clock.ms += 1000
        key = keys.deferred_key("default", message, "a@big.example")
        assert suspension_of(queue.store, key) == JUNE_AT_BIG.key
        found = Reasons(queue, RunningRelay()).of(
            "default", message, "a@big.example", record(queue, key)
        )
        assert (found.name, "is over: it is released" in found.reason) == ("mail_suspension", True)


async def test_a_damaged_message_is_no_obstacle(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays held, and listed; the others are released, when the time of the suspension is over too."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        damaged = await accept(queue, "a@big.example", campaign="june")
        await accept(queue, "b@big.example", campaign="june")
        await queue.suspended.suspend(JUNE_AT_BIG.key, "", clock() + 1000)
        assert await hold_next(queue, "big.example", "big")
        assert await hold_next(queue, "big.example", "big")
    async with opened(directory, clock) as queue:  # which has no message in memory
        queue.store.write(queue.store.batch([(keys.meta_key(damaged), b"damaged")], sync=True))
        clock.ms += 1000
        assert JUNE_AT_BIG.key not in queue.suspended
        await until(lambda: states(queue)["b@big.example"] == "waiting", "the release")
        await until(lambda: queue.suspended.ended() == set(), "the end")
        assert len(listed(queue)) == 1, "for the next start, after a repair"
        assert states(queue)["a@big.example"] == "held"
        (said,) = [each.message for each in caplog.records if "is not released" in each.message]
        assert damaged in said
        await queue.suspended.suspend(JUNE_AT_BIG.key, "", clock() + 1000)
        clock.ms += 1000
        assert JUNE_AT_BIG.key not in queue.suspended
        await until(lambda: queue.suspended.ended() == set(), "the next end")


async def test_an_interrupted_release_is_finished_at_the_start(directory: Path) -> None:
    """The suspension has ended, and its mail is still held; its end is recorded once, by the operator who resumed it."""
    async with opened(directory) as queue:
        await accept(queue, "a@big.example", campaign="june")
        await queue.suspended.suspend(JUNE_AT_BIG.key, "")
        assert await hold_next(queue, "big.example", "big")
        await queue.suspended.resume(JUNE_AT_BIG.key)
        assert states(queue) == {"a@big.example": "held"}
        assert held_mail(queue).is_any(JUNE_AT_BIG.key)
    async with opened(directory) as queue:
        await until(lambda: states(queue) == {"a@big.example": "waiting"}, "the release")
        await until(lambda: listed(queue) == [], "the list")
        await queue.commits.submit(WriteBatch())
        assert shaped_events(queue) == []


@pytest.mark.parametrize("name", ["acme", "user:ann", JUNE_AT_BIG.key])
async def test_a_suspension_that_ends_releases_its_mail(directory: Path, name: str) -> None:
    """At its time, by itself; what is stored of it is deleted after that."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        await accept(queue, "a@big.example", tenant="acme", user="ann", campaign="june")
        await queue.suspended.suspend("globex", "", clock() + 100_000)
        await queue.suspended.suspend(name, "", clock() + 1000)
        assert await hold_next(queue, "big.example", "big")
        clock.ms += 999
        assert name in queue.suspended
        await asyncio.sleep(0)
        assert states(queue) == {"a@big.example": "held"}
        clock.ms += 1
        assert name not in queue.suspended, "which wakes the release"
        await until(lambda: states(queue) == {"a@big.example": "waiting"}, "the release")
        stored = keys.META_SUSPENDED + name.encode()
        await until(lambda: queue.store.get(stored) is None, "the stored suspension to go")
        assert queue.suspended.names() == ["globex"]


@pytest.mark.parametrize("name", ["acme", JUNE_AT_BIG.key])
async def test_a_suspension_that_ended_while_the_relay_was_down(directory: Path, name: str) -> None:
    """The next start releases its mail."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        await accept(queue, "a@big.example", tenant="acme", campaign="june")
        await queue.suspended.suspend(name, "", clock() + 1000)
        assert await hold_next(queue, "big.example", "big")
    clock.ms += 2000
    async with opened(directory, clock) as queue:
        await until(lambda: states(queue) == {"a@big.example": "waiting"}, "the release")
        await until(
            lambda: not list(queue.store.keys(keys.META_SUSPENDED, keys.end_of(keys.META_SUSPENDED))), ""
        )


async def test_a_renewed_suspension_keeps_its_mail(directory: Path) -> None:
    """Suspended again in the moment of its end: nothing is released."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        await accept(queue, "a@big.example", campaign="june")
        await queue.suspended.suspend(JUNE_AT_BIG.key, "", clock() + 1000)
        assert await hold_next(queue, "big.example", "big")
        clock.ms += 1000
        await queue.suspended.suspend(JUNE_AT_BIG.key, "")
        for _ in range(20):
            await asyncio.sleep(0)
        assert states(queue) == {"a@big.example": "held"}
        assert queue.suspended.ended() == set()


@pytest.mark.usefixtures("each_store")
async def test_held_while_the_end_is_written(directory: Path) -> None:
    """A lease that is held in that moment is not held for good; one that was held just before is released."""
    async with opened(directory) as queue:
        await accept(queue, "a@big.example", campaign="june")
        await accept(queue, "b@big.example", campaign="june")
        await queue.suspended.suspend(JUNE_AT_BIG.key, "")
        before, after = lease(queue, "big.example", 1), lease(queue, "big.example", 1)
        held = asyncio.ensure_future(held_mail(queue).hold(before, "big"))
        await asyncio.sleep(0)  # its batch is submitted
        ended = asyncio.ensure_future(queue.suspended.resume(JUNE_AT_BIG.key))
        await asyncio.sleep(0)
        assert not await held_mail(queue).hold(after, "big")
        queue.release(after)
        await asyncio.gather(held, ended)
        await release(queue, JUNE_AT_BIG.key)
        assert states(queue) == {"a@big.example": "waiting", "b@big.example": "waiting"}
        assert problems(queue.store) == []


async def test_a_hold_of_many_ends_with_its_suspension(directory: Path) -> None:
    async with opened(directory) as queue:
        await accept(queue, *(f"r{n}@big.example" for n in range(600)), tenant="acme")
        await queue.suspended.suspend("acme", "")
        holding = asyncio.ensure_future(held_mail(queue).hold(lease(queue, "big.example", 600)))
        await asyncio.sleep(0)
        await queue.suspended.resume("acme")
        await release(queue, "acme")
        await holding
        assert set(states(queue).values()) == {"waiting"}


async def test_suspended_again_during_the_release(directory: Path) -> None:
    """The new suspension stays, and what is held for it."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        for number in range(3):
            await accept(queue, *(f"r{number}.{n}@big.example" for n in range(500)), campaign="june")
        await queue.suspended.suspend(JUNE_AT_BIG.key, "first", clock.ms + 1000)
        while "waiting" in states(queue).values():
            assert await hold_next(queue, "big.example", "big", 500)
        clock.ms += 2000
        assert JUNE_AT_BIG.key not in queue.suspended  # which the release has noticed
        await until(lambda: len(listed(queue)) < 1500, "the release to begin")
        await queue.suspended.suspend(JUNE_AT_BIG.key, "again")
        await until(lambda: JUNE_AT_BIG.key not in queue.suspended.ended(), "the release to stop")
        for _ in range(200):  # a release goes on meanwhile
            await queue.commits.submit(WriteBatch())
        assert queue.suspended.names() == [JUNE_AT_BIG.key]
        assert queue.store.get(keys.META_SUSPENDED + JUNE_AT_BIG.key.encode()) is not None
        assert listed(queue)


async def test_two_releases_of_a_message_at_once(directory: Path) -> None:
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example", "b@y.example")
        await Operator(queue).hold(message)
        found = await asyncio.gather(
            Operator(queue).release(message, "a@x.example"),
            Operator(queue).release(message, "b@y.example"),
        )
        assert found == [1, 1]
        assert problems(queue.store) == []


async def test_a_release_twice_at_once(directory: Path) -> None:
    """One of them has it: the recipient is offered to the workers once."""
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example")
        await Operator(queue).hold(message)
        release = Operator(queue).release
        assert sorted(await asyncio.gather(release(message), release(message))) == [0, 1]
        found = lease(queue, "x.example", 10)
        assert queue.lease("default", "x.example", 10) is None
        await settle(queue, found, OutcomeKind.DELIVERED)
        assert problems(queue.store) == []


@pytest.mark.parametrize("name", ["provider:big", JUNE_AT_BIG.key, "address:192.0.2.1", "acme"])
async def test_the_end_of_a_suspension_is_recorded(directory: Path, name: str) -> None:
    """Of sending and of parts of the mail; also when it came while the relay was down."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        await queue.suspended.suspend(name, "", clock.ms + 1000)
    clock.ms += 2000
    async with opened(directory, clock) as queue:
        await until(lambda: queue.store.get(keys.META_SUSPENDED + name.encode()) is None, "its end")
        found = shaped_events(queue)
    if name == "acme":
        assert found == []
        return
    [event] = found
    assert (event["what"], event["to"], event["time_ms"]) == ("resumed", "sending", clock.ms)
    assert event["cause"].startswith("its time is over: ")
    assert event["provider"] == ("" if "address" in name else "big")


async def test_held_again_during_the_release(directory: Path) -> None:
    """Each message that is released is held anew for the new suspension: its end releases all of them."""
    clock, messages = Clock(), 50
    async with opened(directory, clock) as queue:
        for number in range(messages):
            await accept(queue, f"r{number}@big.example", campaign="june")
        await queue.suspended.suspend(JUNE_AT_BIG.key, "first", clock.ms + 1000)
        while "waiting" in states(queue).values():
            assert await hold_next(queue, "big.example", "big")
        clock.ms += 2000
        assert JUNE_AT_BIG.key not in queue.suspended
        await until(lambda: "waiting" in states(queue).values(), "the release to begin")
        await queue.suspended.suspend(JUNE_AT_BIG.key, "again", clock.ms + 1000)
        while "waiting" in states(queue).values():
            found = queue.lease("default", "big.example", 100)
            if found is None:  # what is on disk comes into the window a moment later
                await asyncio.sleep(0)
            else:
                assert await held_mail(queue).hold(found, "big")
        for _ in range(100):
            await queue.commits.submit(WriteBatch())
        assert len(listed(queue)) == messages
        clock.ms += 2000
        assert JUNE_AT_BIG.key not in queue.suspended
        await until(lambda: set(states(queue).values()) == {"waiting"}, "the end of the second")
        assert listed(queue) == problems(queue.store) == []
        await until(lambda: len(shaped_events(queue)) == 2, "both ends")


async def test_what_an_operator_holds_during_the_release_stays_held(directory: Path) -> None:
    async with opened(directory) as queue:
        ids = [await accept(queue, f"r{number}@big.example", campaign="june") for number in range(20)]
        await queue.suspended.suspend(JUNE_AT_BIG.key, "")
        while "waiting" in states(queue).values():
            assert await hold_next(queue, "big.example", "big")
        await queue.suspended.resume(JUNE_AT_BIG.key)
        releasing = asyncio.ensure_future(release(queue, JUNE_AT_BIG.key))
        await asyncio.sleep(0)
        assert await Operator(queue).hold(ids[-1]) == (1, 0)
        assert await releasing == 19
        assert states(queue)["r19@big.example"] == "held"
