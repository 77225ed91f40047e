"""A flipped bit in a file of a running database: reported, and everything that can be read is delivered."""

import logging
import re
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, begin, make_queue, opened, problems, settle
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import OutcomeKind
from zonemta_py.events.accounting import RecipientHistory
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.repair import repair_contents
from zonemta_py.storage.leveldb_store import LevelDBStore

MESSAGES = 400


def waiting(queue: Queue) -> int:
    return sum(1 for _ in queue.store.keys(keys.WAITING, keys.end_of(keys.WAITING)))


async def _fill(directory: Path, clock: Clock, *, deferred: bool) -> None:
    async with opened(directory, clock) as queue:
        for n in range(MESSAGES):
            await accept(queue, f"{n}@x.example")
        if deferred:
            while held := queue.lease("default", "x.example", 1):
                await settle(queue, held, OutcomeKind.DEFERRED, due_ms=clock.ms + 1000)


def _flip(directory: Path, space: bytes) -> None:
    """Flip a bit of a value in the middle of a key space, on disk."""
    store = LevelDBStore(directory / "db")
    store.compact()
    found = list(store.scan(space, keys.end_of(space)))
    needle = found[len(found) // 2][0].rpartition(b"/")[2]
    store.close()
    for path in (directory / "db").glob("*.ldb"):
        data = bytearray(path.read_bytes())
        at = data.find(needle)
        if at >= 0 and space == keys.DUE:
            at = data.find(b"default", data.find(space))
        if (
            at >= 0 and space == keys.SPILL
        ):  # in the middle of its blocks, of whose keys one of 16 is whole
            places = [found.start() for found in re.finditer(b"spill/default/", data)]
            at = places[len(places) // 2] + len(space)
        if at >= 0:
            data[at + 1] ^= 0x04
            path.write_bytes(data)
            return
    raise AssertionError("the value is in no file")


@pytest.mark.parametrize("deferred", [False, True])
async def test_mail_beyond_the_damage_is_delivered(
    directory: Path, deferred: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    await _fill(directory, clock, deferred=deferred)
    _flip(directory, keys.DEFERRED if deferred else keys.WAITING)
    caplog.set_level(logging.CRITICAL)
    async with opened(directory, clock) as queue:
        if deferred:
            clock.ms += 5000
            while await queue.deferral.wake_due(clock.ms):
                pass
            await until(
                lambda: waiting(queue) > MESSAGES * 3 // 4 and not queue.deferral.moving, "the wake"
            )
        delivered: list[str] = []
        while True:
            try:
                held = queue.lease("default", "x.example", 1)
            except QueueCorrupt:  # as a worker does: this message is left alone, the next one is taken
                continue
            if held is None:
                window = queue.windows.zone("default")
                if window.spilled.has("x.example"):
                    continue
                break
            delivered.append(held.recipients[0].address)
            await settle(queue, held, OutcomeKind.DELIVERED)
        numbers = sorted(int(address.partition("@")[0]) for address in delivered)
        assert MESSAGES * 3 // 4 < len(numbers) < MESSAGES
        assert numbers[0] == 0
        assert numbers[-1] == MESSAGES - 1
        assert not any(task.done() for task in queue.background.tasks if task.get_name() == "deferral")
    assert "repair the queue" in caplog.text


async def test_damaged_keys_of_spilled_mail(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the next start there is room for all of it; every destination is offered to the workers."""
    clock, ready = Clock(), set[str]()
    async with opened(directory, clock, window=16) as queue:
        for n in range(MESSAGES):
            await accept(queue, f"{n}@x{n % 30}.example")
        assert next(queue.store.keys(keys.SPILL, keys.end_of(keys.SPILL)), None)
    _flip(directory, keys.SPILL)
    caplog.set_level(logging.CRITICAL)
    queue = make_queue(directory, clock, on_ready=lambda zone, destination, low: ready.add(destination))
    await begin(queue)
    await until(lambda: not queue.scanning, "the scan")
    assert len(ready) == 30
    assert queue.windows.zone("default").room.size == MESSAGES
    assert "spilled mail cannot be read" in caplog.text
    assert "task stopped" not in caplog.text
    await queue.close()


async def test_a_repair_leaves_no_chunk(directory: Path) -> None:
    """Those of a message that it removes go at once: a check of the repaired queue finds nothing."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        await accept(queue, "u@x.example", body=b"line\r\n" * 50_000)
    segment = next(directory.rglob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    queue = make_queue(directory, clock)
    queue.commits.start()
    rows = await repair_contents(queue, RecipientHistory([], addresses=True), ["default"])
    assert "removed" in {row["what"] for row in rows}
    assert problems(queue.store) == []
    await queue.close()


async def test_damage_with_nothing_whole_behind(directory: Path) -> None:
    """There a scan ends as if no key followed: a segment, or a suspension, would be forgotten. So nothing starts, and the check says so."""
    async with opened(directory) as queue:
        await accept(queue, "a@x.example")
    store = LevelDBStore(directory / "db")
    store.compact()
    (table,) = (directory / "db").glob("*.ldb")
    data = bytearray(table.read_bytes())
    data[20] ^= 1  # its only block
    table.write_bytes(data)
    assert any("the last keys cannot be read" in text for text in problems(store))
    store.close()
    with pytest.raises(QueueCorrupt, match=f"{directory}/db: the last keys cannot be read"):
        make_queue(directory, Clock())


async def test_the_check_reads_the_small_records(directory: Path) -> None:
    """Those of limits, rates and suspensions: LevelDB's sum of their block is the only one."""
    async with opened(directory) as queue:
        await accept(queue, "a@x.example")
        rates = [(keys.rate_key(f"zone-{n}"), b"value-%d;" % n) for n in range(2000)]
        queue.store.write(queue.store.batch(rates, sync=True))
    store = LevelDBStore(directory / "db")
    store.compact()
    assert problems(store) == []
    (table,) = (directory / "db").glob("*.ldb")
    data = bytearray(table.read_bytes())
    data[data.index(b"value-1500;") + 6] ^= 1
    table.write_bytes(data)
    assert [text for text in problems(store) if "b'meta/'" in text]
    store.close()
