"""What the next run does about the last one's keys."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import (
    Clock,
    accept,
    begin,
    events,
    everything,
    lease,
    make_queue,
    make_store,
    opened,
    problems,
    settle,
    unexplained,
    write,
)
from zonemta_py.core.clock import now_ms
from zonemta_py.core.errors import LocalError
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.cleanup import ABANDONED_MS
from zonemta_py.queue.upkeep.move import flush, move_zone
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.queue.upkeep.startup import SUSPECT_DELAY_MS

pytestmark = pytest.mark.usefixtures("each_store")


async def _die(queue: Queue) -> None:
    """Close the database without telling the queue, as kill -9 would."""
    for task in queue.background.tasks:
        task.cancel()
    await queue.commits.close()
    await queue.cleanup.close()
    queue.store.close()


async def test_a_transaction_cut_off_is_uncertain(directory: Path) -> None:
    """Its recipients are ready again, and the ledger names them."""
    clock = Clock()
    queue = make_queue(directory, clock)
    await begin(queue)
    await accept(queue, "a@x.example", "b@x.example", "c@y.example")
    await queue.start(lease(queue, "x.example"))
    await _die(queue)
    async with opened(directory, clock) as again:
        assert [e["recipient"] for e in events(again.store) if e["event"] == "uncertain"] == [
            "a@x.example",
            "b@x.example",
        ]
        assert not any(key.startswith(keys.INFLIGHT) for key in everything(again.store))
        held = lease(again, "x.example")
        assert [r.record.uncertain for r in held.recipients] == [1, 1]
        await settle(again, held, OutcomeKind.DELIVERED)
        await settle(again, lease(again, "y.example"), OutcomeKind.DELIVERED)
        assert everything(again.store) == []


async def test_a_store_that_fails_blames_no_message(directory: Path) -> None:
    """A disk that is full now and then interrupts what is under way: it is sent again, and never held for that."""
    clock = Clock()
    for life in range(4):
        queue = make_queue(directory, clock)
        await begin(queue, was_killed=False)
        if life == 0:
            await accept(queue, "a@x.example")
        held = lease(queue, "x.example")
        assert held.recipients[0].record.uncertain == 0
        await queue.start(held)
        await _die(queue)
    async with opened(directory, clock) as again:
        assert lease(again, "x.example").recipients[0].record.uncertain == 1
        found = [event["event"] for event in events(again.store)]
        assert found.count("uncertain") == 4 and "held" not in found


async def test_a_stop_in_order_blames_no_message(directory: Path) -> None:
    """Its grace was too short for a slow receiver: neither the starts that follow count that, of which the first one fails, nor
    the end of a sender meanwhile."""
    clock = Clock()
    for life in range(4):
        make_queue(directory, clock).store.close()
        queue = make_queue(directory, clock)
        await begin(queue)
        if life == 0:
            await accept(queue, "a@x.example", "b@y.example")
        await queue.start(lease(queue, "x.example"))
        held = lease(queue, "y.example")
        await queue.start(held)
        queue.begin_stop()
        await queue.interrupt(held)
        await queue.close()
    queue = make_queue(directory, clock)
    await begin(queue)
    found = [lease(queue, domain) for domain in ("x.example", "y.example")]
    assert [each.recipients[0].record.uncertain for each in found] == [0, 0]
    assert [event["event"] for event in events(queue.store)].count("uncertain") == 8
    await queue.start(found[0])
    await _die(queue)  # the stop before was that of an earlier boot
    async with opened(directory, clock) as again:
        assert lease(again, "x.example").recipients[0].record.uncertain == 1


async def test_a_message_that_kills_the_relay_is_held(directory: Path) -> None:
    """Twice cut off, it waits alone; three times, it is held until an operator releases it."""
    clock = Clock()
    for life in range(3):
        queue = make_queue(directory, clock)
        await begin(queue)
        if life == 0:
            await accept(queue, "poison@x.example")
        if life == 2:
            assert queue.lease("default", "x.example", 1) is None
            clock.ms += SUSPECT_DELAY_MS
            while await queue.deferral.wake_due(clock.ms):
                pass
        await queue.start(lease(queue, "x.example"))
        await _die(queue)
    async with opened(directory, clock) as again:
        clock.ms += 10**9
        while await again.deferral.wake_due(clock.ms):
            pass
        await flush(again)
        assert again.lease("default", "x.example", 1) is None
        assert problems(again.store) == []
        held = [e for e in events(again.store) if e["event"] == "held"]
        assert [(e["recipient"], e["reason"]) for e in held] == [
            ("poison@x.example", "the relay stopped 3 times in the middle of this delivery")
        ]
        message = str(held[0]["message"])
        assert await Operator(again).release(message, "other@x.example") == 0
        assert await Operator(again).release(message) == 1
        assert "stopped 3 times" in lease(again, "x.example").recipients[0].record.text
        assert [e["recipient"] for e in events(again.store) if e["event"] == "released"] == [
            "poison@x.example"
        ]


async def test_a_finished_attempt_clears_the_suspicion(directory: Path) -> None:
    """Cut off, deferred in order, cut off: that is not twice in a row."""
    clock = Clock()
    queue = make_queue(directory, clock)
    await begin(queue)
    await accept(queue, "a@x.example")
    await queue.start(lease(queue, "x.example"))
    await _die(queue)
    async with opened(directory, clock) as queue:
        held = lease(queue, "x.example")
        assert held.recipients[0].record.uncertain == 1
        await settle(queue, held, OutcomeKind.DEFERRED, due_ms=clock.ms + 1)
        await flush(queue)
        assert lease(queue, "x.example").recipients[0].record.uncertain == 0


async def test_half_a_body_is_swept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """open/ of a dead process, and a removal that was cut off."""
    clock = Clock()
    queue = make_queue(directory, clock)
    await begin(queue)
    writer = queue.open_message()
    await write(writer, b"x" * 200_000)
    kept = await accept(queue, "a@x.example", body=b"y" * 200_000)
    gone = await accept(queue, "a@y.example", body=b"y" * 200_000)
    monkeypatch.setattr(queue.cleanup, "add", lambda message: None)
    await settle(queue, lease(queue, "y.example"), OutcomeKind.DELIVERED)
    assert queue.store.get(keys.cleanup_key(gone)) is not None
    await _die(queue)
    async with opened(directory, clock) as again:
        owners = {keys.owner_of(key) for key in everything(again.store) if key.startswith(keys.MESSAGE)}
        assert owners == {kept}
        assert problems(again.store) == []


async def test_a_stop_leaves_only_bodies_that_are_being_removed(
    directory: Path, each_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start removes them."""
    async with opened(directory) as queue:
        await accept(queue, "a@x.example", body=b"y" * 200_000)
        monkeypatch.setattr(queue.cleanup, "add", lambda message: None)
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
    with closing(make_store(directory, each_store)) as store:
        assert everything(store) != []
        assert unexplained(store) == []
    async with opened(directory) as queue:
        assert everything(queue.store) == []


async def test_ids_go_on_after_a_clock_that_went_back(directory: Path) -> None:
    clock = Clock()
    async with opened(directory, clock) as queue:
        first = await accept(queue, "a@x.example")
    clock.ms -= 10**6
    async with opened(directory, clock) as queue:
        assert await accept(queue, "a@x.example") > first


async def test_another_format_is_refused(directory: Path) -> None:
    async with opened(directory) as queue:
        queue.store.write(queue.store.batch([(keys.META_FORMAT, b"99")], sync=True))
    with pytest.raises(LocalError, match="format"):
        make_queue(directory, Clock())


async def test_moving_a_zone(directory: Path) -> None:
    """Waiting and deferred recipients change zone, one batch a message, and say so."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        await accept(queue, "a@x.example|old", "b@y.example|old", "c@x.example")
        await settle(queue, lease(queue, "y.example", zone="old"), OutcomeKind.DEFERRED, clock.ms + 1000)
    queue = make_queue(directory, clock)
    await queue.recover()
    assert await move_zone(queue.store, queue.commits, "old", "default", clock.ms) == 1
    assert problems(queue.store) == []
    assert [e["recipients"] for e in events(queue.store) if e["event"] == "moved"] == [[0, 1]]
    await begin_after_start(queue)
    assert len(lease(queue, "x.example").recipients) == 2
    clock.ms += 1000
    while await queue.deferral.wake_due(clock.ms):
        pass
    assert lease(queue, "y.example")
    await queue.close()


async def begin_after_start(queue: Queue) -> None:
    """As ``begin``, for a queue whose group commit runs already."""
    import asyncio

    await queue.begin()
    await asyncio.wait([task for task in queue.background.tasks if task.get_name().startswith("scan-")])


async def test_spill_keys_of_another_life_do_not_stay(directory: Path) -> None:
    """What had spilled and now fits the window is found by the scan; its old key goes."""
    clock = Clock()
    async with opened(directory, clock, window=100) as queue:
        messages = [await accept(queue, f"{n}@x.example") for n in range(20)]
        assert any(key.startswith(keys.SPILL) for key in everything(queue.store))
        for message in messages[:10]:
            await Operator(queue).delete(message)
    async with opened(directory, clock, window=100) as queue:
        while held := queue.lease("default", "x.example", 5):
            await settle(queue, held, OutcomeKind.DELIVERED)
        await until(lambda: everything(queue.store) == [], "the last key to go")


async def test_a_body_without_progress_is_swept_after_a_day(directory: Path) -> None:
    """A younger one is left alone."""
    async with opened(directory) as queue:
        writer = queue.open_message()
        await write(writer, b"b" * 200_000)
        since = now_ms()
        del writer
        await queue.cleanup.sweep(queue.is_open, since + ABANDONED_MS - 3_600_000)
        assert everything(queue.store) != []
        await queue.cleanup.sweep(queue.is_open, since + ABANDONED_MS + 3_600_000)
        assert everything(queue.store) == []
