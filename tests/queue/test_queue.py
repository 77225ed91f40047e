"""The verbs: what each leaves on disk, and in memory."""

import asyncio
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import (
    HEADER,
    LATER,
    OK,
    ORIGIN,
    Clock,
    accept,
    begin,
    events,
    everything,
    lease,
    make_queue,
    opened,
    outcomes,
    problems,
    settle,
    spoil_chunk,
    write,
)
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.core.model import OutcomeKind
from zonemta_py.events.accounting import RecipientHistory
from zonemta_py.queue.accept import NewMessage, NewRecipient, compose_report
from zonemta_py.queue.format import keys
from zonemta_py.queue.messages import WRITES_AHEAD
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.queue.upkeep.operator import Operator

pytestmark = pytest.mark.usefixtures("each_store")


async def test_accepted_and_delivered_leaves_nothing(directory: Path) -> None:
    """One message, one recipient: the keys while it waits, and none when it is gone."""
    async with opened(directory) as queue:
        message = await accept(queue, "a@b.example")
        assert everything(queue.store) == [
            keys.mark_key(message), keys.meta_key(message), keys.chunk_key(message, 1),
            keys.waiting_key("default", message, "a@b.example"),
        ]  # fmt: skip
        assert problems(queue.store) == []
        held = lease(queue, "b.example")
        await queue.start(held)
        assert keys.INFLIGHT in b"".join(everything(queue.store))
        assert b"".join(queue.bodies.read(held.active)) == b"body\r\n"
        await settle(queue, held, OutcomeKind.DELIVERED)
        assert everything(queue.store) == []
        assert [e["event"] for e in events(queue.store)] == ["accepted", "delivered"]
        assert queue.lease("default", "b.example", 1) is None


async def test_mail_for_a_zone_that_is_gone_by_then(directory: Path) -> None:
    """It was routed before a reload: it is accepted into the default zone, also when it is for later."""
    async with opened(directory) as queue:
        queue.set_zones(frozenset(("default", "kept")))
        writer = queue.open_message()
        new = NewMessage(
            "s@sender.example", HEADER,
            [
                NewRecipient("a@b.example", "b.example", "gone"),
                NewRecipient("k@b.example", "b.example", "kept"),
            ],
            ORIGIN,
        )  # fmt: skip
        await queue.accept(writer, new)
        held = await accept(queue, "h@b.example", zone="gone", hold="a test")
        found = everything(queue.store)
        assert keys.waiting_key("default", writer.id, "a@b.example") in found
        assert keys.waiting_key("kept", writer.id, "k@b.example") in found
        assert keys.deferred_key("default", held, "h@b.example") in found
        assert problems(queue.store) == []
        assert queue.zones_with_mail() == {"default", "kept"}
        assert lease(queue, "b.example").active.meta.zones == ("default", "kept")
        logged = events(queue.store)
        assert [e["event"] for e in logged] == ["accepted", "moved", "accepted", "held", "moved"]
        history = RecipientHistory(logged)
        assert [history.queued(zone) for zone in ("default", "kept", "gone")] == [2, 1, 0]


async def test_the_zone_of_mail_that_is_being_written(directory: Path) -> None:
    """A reload that looked at the store alone would remove the zone."""
    async with opened(directory) as queue:
        writer = queue.open_message()
        recipient = NewRecipient("a@b.example", "b.example", "new")
        written = queue.accept(writer, NewMessage("s@b.example", HEADER, [recipient], ORIGIN))
        assert queue.zones_with_mail() == {"new"}
        await written
        assert queue.zones_with_mail() == {"new"}
        await settle(queue, lease(queue, "b.example", zone="new"), OutcomeKind.DELIVERED)
        assert queue.zones_with_mail() == set()


async def test_recipients_of_a_message_and_domain_travel_together(directory: Path) -> None:
    """One lease takes one message at one destination, up to the limit, oldest first."""
    async with opened(directory) as queue:
        first = await accept(queue, "a@x.example", "b@y.example", "c@x.example", "d@x.example")
        await accept(queue, "e@x.example")
        held = lease(queue, "x.example", 2)
        assert (held.active.id, [r.address for r in held.recipients]) == (
            first,
            ["a@x.example", "c@x.example"],
        )
        assert [r.address for r in lease(queue, "x.example", 2).recipients] == ["d@x.example"]
        assert [r.address for r in lease(queue, "x.example", 2).recipients] == ["e@x.example"]
        assert queue.lease("default", "x.example", 2) is None


async def test_two_that_settle_together_are_not_both_not_the_last(directory: Path) -> None:
    """DESIGN trap 2: two leases settled before one commit."""
    async with opened(directory) as queue:
        await accept(queue, "a@x.example", "b@y.example", body=b"z" * 200_000)
        one, two = lease(queue, "x.example"), lease(queue, "y.example")
        await asyncio.gather(
            queue.settle(one, outcomes(one, OutcomeKind.DELIVERED)),
            queue.settle(two, outcomes(two, OutcomeKind.DELIVERED)),
        )
        await until(lambda: everything(queue.store) == [], "the chunks to go")


async def test_large_body_in_chunks(directory: Path) -> None:
    """65,536 bytes each, the last shorter; open/ while it is written, cleanup/ when it goes."""
    body = bytes(range(256)) * 1000
    async with opened(directory, cache=0) as queue:
        writer = queue.open_message()
        for at in range(0, len(body), 10_000):
            await write(writer, body[at : at + 10_000])
        assert queue.store.get(keys.open_key(writer.id)) is not None
        await queue.accept(
            writer, NewMessage("", HEADER, [NewRecipient("a@x.example", "x.example", "default")], ORIGIN)
        )
        assert queue.store.get(keys.open_key(writer.id)) is None
        sizes = [len(queue.store.get(keys.chunk_key(writer.id, n)) or b"") for n in range(1, 5)]
        assert sizes == [65_536, 65_536, 65_536, len(body) - 3 * 65_536]
        held = lease(queue, "x.example")
        assert b"".join(queue.bodies.read(held.active)) == body
        await settle(queue, held, OutcomeKind.DELIVERED)
        await until(lambda: everything(queue.store) == [], "the chunks to go")


async def test_empty_body_has_no_chunk(directory: Path) -> None:
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example", body=b"")
        assert queue.store.get(keys.chunk_key(message, 1)) is None
        assert list(queue.bodies.read(lease(queue, "x.example").active)) == []
        assert problems(queue.store) == []


async def test_chunk_boundary_is_exact(directory: Path) -> None:
    """A body of exactly one chunk, and of exactly two."""
    async with opened(directory, cache=0) as queue:
        for size in (65_535, 65_536, 65_537, 131_072):
            await accept(queue, f"a{size}@x.example", body=b"q" * size)
            held = lease(queue, "x.example")
            assert sum(map(len, queue.bodies.read(held.active))) == size
        assert problems(queue.store) == []


async def test_abort_leaves_nothing(directory: Path) -> None:
    """A client that leaves in the middle of a large message."""
    async with opened(directory) as queue:
        writer = queue.open_message()
        await write(writer, b"x" * 300_000)
        queue.abort(writer)
        await until(lambda: everything(queue.store) == [], "the chunks to go")


async def test_deferred_and_woken(directory: Path) -> None:
    """A deferral moves the recipient; the clock brings it back with what was learned."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        message = await accept(queue, "a@x.example")
        held = lease(queue, "x.example")
        await queue.start(held)
        await settle(queue, held, OutcomeKind.DEFERRED, clock.ms + 5000)
        assert keys.due_key(clock.ms + 5000, "default", message) in everything(queue.store)
        assert keys.deferred_key("default", message, "a@x.example") in everything(queue.store)
        assert problems(queue.store) == []
        assert queue.lease("default", "x.example", 1) is None
        await queue.deferral.wake_due(clock.ms)
        assert queue.lease("default", "x.example", 1) is None
        clock.ms += 5000
        while await queue.deferral.wake_due(clock.ms):
            pass
        again = lease(queue, "x.example")
        record = again.recipients[0].record
        assert (record.attempts, record.code, record.text) == (1, 451, "later")
        await settle(queue, again, OutcomeKind.DELIVERED)
        assert everything(queue.store) == []


async def test_several_times_that_pass_together(directory: Path) -> None:
    """A message with a ``due/`` key for each recipient: each is woken once, and counted once."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        await accept(queue, *[f"r{i}@x.example" for i in range(5)])
        held = lease(queue, "x.example")
        times = [clock.ms + 1000, *range(clock.ms + 1, clock.ms + 5)]
        later = [
            Outcome(each, OutcomeKind.DEFERRED, LATER, due_ms)
            for each, due_ms in zip(held.recipients, times, strict=True)
        ]
        await queue.settle(held, later)
        clock.ms += 10
        while await queue.deferral.wake_due(clock.ms):
            pass
        await until(lambda: not queue.deferral.moving, "what is woken")
        assert queue.census.zones() == {"default": [4, 1, 0, 0, 5]}
        assert len([key for key in everything(queue.store) if key.startswith(keys.DUE)]) == 1
        assert problems(queue.store) == []


async def test_the_timer_wakes_by_itself(directory: Path) -> None:
    """No poll: the background task sleeps until the first is due, and is woken for a sooner one."""
    from zonemta_py.core import clock

    ready: list[str] = []
    async with opened(
        directory, clock.now_ms, on_ready=lambda zone, destination, light: ready.append(destination)
    ) as queue:
        await accept(queue, "a@x.example")
        await accept(queue, "a@y.example")
        far, near = lease(queue, "x.example"), lease(queue, "y.example")
        await settle(queue, far, OutcomeKind.DEFERRED, clock.now_ms() + 3_600_000)
        ready.clear()
        await settle(queue, near, OutcomeKind.DEFERRED, clock.now_ms() + 50)
        await until(lambda: ready == ["y.example"], "the wake-up")


async def test_flush_wakes_what_matches(directory: Path) -> None:
    clock = Clock()
    async with opened(directory, clock) as queue:
        for address in ("a@x.example", "b@y.example"):
            await accept(queue, address)
            await settle(queue, lease(queue, address[2:]), OutcomeKind.DEFERRED, clock.ms + 10**6)
        assert await flush(queue, None, "y.example", None) == 1
        assert await flush(queue, "nowhere", None, None) == 0
        assert queue.lease("default", "x.example", 1) is None
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DELIVERED)
        assert await flush(queue) == 1
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
        assert everything(queue.store) == []


async def test_untried_recipients_go_back_to_the_front(directory: Path) -> None:
    """452 after some: the rest of the lease is next, with no attempt counted."""
    async with opened(directory) as queue:
        await accept(queue, "a@x.example", "b@x.example", "c@x.example")
        await accept(queue, "z@x.example")
        held = lease(queue, "x.example")
        await queue.start(held)
        await queue.settle(held, [Outcome(held.recipients[0], OutcomeKind.DELIVERED, OK)])
        rest = lease(queue, "x.example")
        assert [r.address for r in rest.recipients] == ["b@x.example", "c@x.example"]
        assert rest.recipients[0].record.attempts == 0
        await settle(queue, rest, OutcomeKind.DELIVERED)
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
        assert everything(queue.store) == []


async def test_a_report_is_in_the_batch_of_the_bounce(directory: Path) -> None:
    """The failed recipient and the report about it change places in one group commit."""
    async with opened(directory) as queue:
        await accept(queue, "a@x.example")
        held = lease(queue, "x.example")
        report = compose_report(
            queue.ids.next(queue.now()),
            NewMessage(
                "",
                b"Subject: report\r\n",
                [NewRecipient("s@sender.example", "sender.example", "default")],
                ORIGIN,
                report_for=held.active.id,
            ),
            b"r" * 70_000,
            queue.now(),
        )
        before = queue.commits.groups
        await settle(queue, held, OutcomeKind.BOUNCED, report=report)
        assert queue.commits.groups == before + 1
        assert problems(queue.store) == []
        found = [(e["event"], e["message"]) for e in events(queue.store)]
        assert found[1:] == [("bounced", held.active.id), ("accepted", report.message)]
        waiting = lease(queue, "sender.example")
        assert waiting.active.meta.report_for == held.active.id
        assert sum(map(len, queue.bodies.read(waiting.active))) == 70_000


async def test_delete(directory: Path) -> None:
    """Waiting and deferred recipients go, one in flight stays and is counted."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        message = await accept(queue, "a@x.example", "b@y.example", "c@z.example", body=b"b" * 100_000)
        held = lease(queue, "x.example")
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DEFERRED, clock.ms + 1000)
        assert await Operator(queue).delete(message, "nobody@x.example") == (0, 0)
        assert await Operator(queue).delete(message) == (2, 1)
        assert queue.lease("default", "z.example", 1) is None
        assert problems(queue.store) == []
        await settle(queue, held, OutcomeKind.DELIVERED)
        await until(lambda: everything(queue.store) == [], "the message to go")
        assert [e["event"] for e in events(queue.store)].count("deleted") == 2
        assert await Operator(queue).delete(message) == (0, 0)


async def test_a_damaged_body_is_never_complete(directory: Path) -> None:
    """Missing or changed chunks raise before the last one is given out."""
    async with opened(directory, cache=0) as queue:
        for spoil in (None, b"x" * 65_536):
            message = await accept(queue, "a@x.example", body=b"y" * 150_000)
            spoil_chunk(queue.store, keys.chunk_key(message, 2), spoil)
            got: list[bytes] = []
            with pytest.raises(QueueCorrupt, match=r"missing|damaged"):
                got.extend(queue.bodies.read(lease(queue, "x.example").active))
            assert sum(map(len, got)) < 150_000
        assert any("missing" in p for p in problems(queue.store))
        assert any("damaged" in p for p in problems(queue.store))


async def test_after_a_failed_write_everything_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC or EIO: later writes fail too, nothing is lost, the next run finds everything."""
    clock = Clock()
    queue = make_queue(directory, clock)
    await begin(queue)
    message = await accept(queue, "a@x.example")
    held = lease(queue, "x.example")

    def broken(batch: object) -> None:
        raise QueueUnavailable("No space left on device")

    monkeypatch.setattr(queue.store, "write", broken)
    with pytest.raises(QueueUnavailable):
        await accept(queue, "b@x.example")
    with pytest.raises(QueueUnavailable):
        await queue.settle(held, outcomes(held, OutcomeKind.DELIVERED))
    assert queue.commits.failure is not None
    monkeypatch.undo()
    with pytest.raises(QueueUnavailable):
        await accept(queue, "c@x.example")
    await queue.close()
    async with opened(directory, clock) as again:
        assert lease(again, "x.example").active.id == message


async def test_a_client_that_hangs_up_during_the_commit(directory: Path) -> None:
    """The accept goes on without it, and the message is offered at once, not at the next start."""
    async with opened(directory) as queue:
        writer = queue.open_message()
        await write(writer, b"body\r\n")
        new = NewMessage("", HEADER, [NewRecipient("a@x.example", "x.example", "default")], ORIGIN)
        task = asyncio.ensure_future(queue.accept(writer, new))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: queue.windows.zone("default").waiting("x.example") == 1, "the message")


async def test_facts_are_numbered_for_ever(directory: Path) -> None:
    """(node, seq, position) identifies an event, also across restarts."""
    clock = Clock()
    seen: set[object] = set()
    for _ in range(3):
        async with opened(directory, clock) as queue:
            await accept(queue, "a@x.example", "b@x.example")
            held = lease(queue, "x.example", 1)
            await settle(queue, held, OutcomeKind.DEFERRED, clock.ms + 10**9)
            found = [(e["node"], e["seq"], e["position"]) for e in events(queue.store)]
            assert len(found) == len(set(found))
            assert seen <= set(found)
            seen = set(found)


async def test_deferral_to_an_earlier_time_than_the_cursor(directory: Path) -> None:
    """A clock that went back: a due key before the cursor is found all the same."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        await accept(queue, "a@x.example")
        await accept(queue, "a@y.example")
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DEFERRED, clock.ms)
        while await queue.deferral.wake_due(clock.ms):
            pass
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DEFERRED, clock.ms - 5000)
        await until(lambda: queue.windows.zone("default").waiting("y.example") == 1, "the wake")
        assert lease(queue, "y.example")
        assert LATER.code == 451


async def test_large_bodies_wait_for_a_store_that_is_behind(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their chunks are on disk and the writer does not learn it; all others do."""
    async with opened(directory) as queue:
        behind = True
        monkeypatch.setattr(queue.store, "is_behind", lambda: behind)
        writer = queue.open_message()
        waits = [writer.write(b"x" * 65_536) for _ in range(WRITES_AHEAD + 2)]
        assert waits[-1] is not None
        await accept(queue, "a@x.example")
        await until(lambda: next(queue.store.keys(*chunks_of(writer.id)), None) is not None, "a chunk")
        await accept(queue, "b@x.example")
        assert not waits[-1].done
        behind = False
        await waits[-1]
        queue.abort(writer)


def chunks_of(message: str) -> tuple[bytes, bytes]:
    return keys.message_prefix(message), keys.end_of(keys.message_prefix(message))
