"""14. No key stays after a smarthost has changed, or a zone with held mail was removed; work is bounded."""

import asyncio
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, begin, everything, make_store, opened, problems, settle
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.commit import CommitFuture, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue, QueueOptions
from zonemta_py.queue.upkeep.move import flush, move_zone
from zonemta_py.queue.upkeep.operator import STEP, Operator
from zonemta_py.queue.upkeep.startup import begin_boot

COUNT = 1200
STORES = pytest.mark.parametrize("store", ["leveldb", "filesystem"])


def queue_by(directory: Path, store: str, smarthost: str) -> Queue:
    """A queue of a zone whose mail all goes to ``smarthost``; its window is small."""
    opened = make_store(directory, store)
    return Queue(
        opened,
        begin_boot(opened),
        QueueOptions(window=100),
        lambda zone, domain: smarthost,
        now=Clock(),
    )


@STORES
async def test_a_changed_smarthost(directory: Path, store: str) -> None:
    queue = queue_by(directory, store, "old.example")
    await begin(queue)
    for number in range(20):
        await accept(queue, *(f"a{number}-{n}@x.example" for n in range(10)))
    spilled = list(queue.store.keys(keys.SPILL, keys.end_of(keys.SPILL)))
    await queue.close()
    if store == "leveldb":  # in the filesystem store they follow from the schedules
        assert spilled
    queue = queue_by(directory, store, "new.example")
    await begin(queue)
    left = queue.store.keys(keys.SPILL, keys.end_of(keys.SPILL))
    assert {keys.parse_spill(key)[1] for key in left} <= {"new.example"}
    while held := queue.lease("default", "new.example", 50):
        await settle(queue, held, OutcomeKind.DELIVERED)
    await until(lambda: everything(queue.store) == [], "the last key to go")
    await queue.close()


@STORES
async def test_a_removed_zone_with_held_mail(directory: Path, store: str) -> None:
    async with opened(directory, store=store) as queue:
        message = await accept(queue, "a@x.example", zone="bulk")
        await Operator(queue).hold(message)
    async with opened(directory, store=store) as queue:
        assert await move_zone(queue.store, queue.commits, "bulk", "default", queue.now()) == 1
        [due] = queue.store.keys(keys.DUE, keys.end_of(keys.DUE))
        assert keys.parse_due(due)[1] == "default"


@STORES
async def test_bounded_work(directory: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold, release, flush and delete of a message of many recipients: no batch has all of them."""
    clock = Clock()
    async with opened(directory, clock, store=store) as queue:
        addresses = [f"u{number}@x.example" for number in range(COUNT)]
        message = await accept(queue, *addresses)
        sizes: list[int] = []
        submit = queue.commits.submit

        def noted(batch: WriteBatch) -> CommitFuture:
            sizes.append(len(batch.ops))
            return submit(batch)

        monkeypatch.setattr(queue.commits, "submit", noted)
        assert await Operator(queue).hold(message) == (COUNT, 0)
        assert await Operator(queue).release(message) == COUNT
        while held := queue.lease("default", "x.example", 100):
            await settle(queue, held, OutcomeKind.DEFERRED, due_ms=clock.ms + 3_600_000 + len(sizes))
        assert await flush(queue) == COUNT
        assert problems(queue.store) == []
        assert list(queue.store.keys(keys.DUE, keys.end_of(keys.DUE))) == []
        assert await Operator(queue).delete(message) == (COUNT, 0)
        assert max(sizes) <= 4 * STEP
        await until(lambda: everything(queue.store) == [], "the last key to go")


@STORES
async def test_what_moves_meanwhile(directory: Path, store: str) -> None:
    """Recipients that become ready while their message is being held are held, too."""
    clock = Clock()
    async with opened(directory, clock, store=store) as queue:
        message = await accept(queue, *(f"u{number}@x.example" for number in range(COUNT)))
        while held := queue.lease("default", "x.example", 100):
            await settle(queue, held, OutcomeKind.DEFERRED, due_ms=clock.ms + 3_600_000)
        (count, busy), woken = await asyncio.gather(Operator(queue).hold(message), flush(queue))
        assert woken
        again, none = await Operator(queue).hold(message)
        assert (count + again, busy - again, none) == (COUNT, 0, 0)
        assert await Operator(queue).release(message) == COUNT
        assert problems(queue.store) == []


async def test_held_recipients_that_are_gone(directory: Path) -> None:
    """A command that was interrupted: the check names the key, and the next start deletes it."""
    due = keys.due_key(keys.HELD_MS, "default", "0" * keys.MESSAGE_ID_LENGTH)
    async with opened(directory) as queue:
        batch = WriteBatch()
        batch.put(due, b"")
        batch.put(keys.SPILL + b"default", b"")
        await queue.commits.submit(batch)
        assert problems(queue.store) == [
            f"{due.decode()}: the due key of held recipients, and there is none",
            "b'spill/default': not a spill key",
        ]
        batch = WriteBatch()
        batch.delete(keys.SPILL + b"default")
        await queue.commits.submit(batch)
    async with opened(directory) as queue:
        await until(lambda: everything(queue.store) == [], "the key to go")


async def test_a_key_of_spilled_mail_in_a_zone_without_mail(directory: Path) -> None:
    """Its recipients were deleted while another one of the message was under way, before a restart."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        batch = WriteBatch()
        batch.put(keys.spill_key("bulk", "x.example", "0" * 24), b"")
        await queue.commits.submit(batch)
    async with opened(directory, clock) as queue:
        await until(lambda: problems(queue.store) == [], "it is gone")
