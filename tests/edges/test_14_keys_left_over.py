"""14. No key stays after a smarthost has changed, or a zone with held mail was removed."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, begin, everything, make_store, opened, settle
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue, QueueOptions
from zonemta_py.queue.upkeep.rezone import move_zone

STORES = pytest.mark.parametrize("store", ["leveldb", "filesystem"])


def queue_by(directory: Path, store: str, smarthost: str) -> Queue:
    """A queue of a zone whose mail all goes to ``smarthost``; its window is small."""
    return Queue(
        make_store(directory, store),
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
        await queue.operator.hold(message)
    async with opened(directory, store=store) as queue:
        assert await move_zone(queue.store, queue.commits, "bulk", "default", queue.now()) == 1
        [due] = queue.store.keys(keys.DUE, keys.end_of(keys.DUE))
        assert keys.parse_due(due)[1] == "default"
