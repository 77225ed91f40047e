"""4. The hourly sweep removes no body that is being received or accepted, whatever the clock says."""

import gc
from pathlib import Path

import pytest

from tests.kit.queue import HEADER, ORIGIN, lease, opened, problems, write
from zonemta_py.core.clock import now_ms
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.cleanup import ABANDONED_MS

BODY = b"b" * 200_000
NEW = NewMessage("s@x.example", HEADER, [NewRecipient("a@x.example", "x.example", "default")], ORIGIN)


def whole(queue: Queue) -> bool:
    return b"".join(queue.bodies.read(lease(queue, "x.example").active)) == BODY


@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_an_accept_in_the_same_turn(directory: Path, store: str) -> None:
    """The accept is submitted and not yet on disk when the sweep decides; its writer is gone already."""
    async with opened(directory, store=store) as queue:
        writer = queue.open_message()
        await write(writer, BODY)
        accepted = queue.accept(writer, NEW)
        del writer
        gc.collect()
        await queue.cleanup.sweep(queue.is_open, now_ms() + ABANDONED_MS + 1)
        await accepted
        assert problems(queue.store) == []
        assert whole(queue)


async def test_an_accept_while_the_sweep_is_at_work(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two old bodies; the second is accepted while the first is removed."""
    async with opened(directory) as queue:
        dead, alive = queue.open_message(), queue.open_message()
        for writer in (dead, alive):
            await write(writer, BODY)
        removed = dead.id
        del dead, writer
        gc.collect()
        remove = queue.cleanup.remove_chunks
        removals: list[str] = []

        async def remove_and_accept(message: str) -> None:
            removals.append(message)
            await queue.accept(alive, NEW)
            await remove(message)

        monkeypatch.setattr(queue.cleanup, "remove_chunks", remove_and_accept)
        await queue.cleanup.sweep(queue.is_open, now_ms() + ABANDONED_MS + 1)
        assert removals == [removed]
        assert problems(queue.store) == []
        assert whole(queue)


async def test_a_body_after_a_clock_jump(directory: Path) -> None:
    """A machine that slept for a day: the client goes on, and its message is accepted whole."""
    async with opened(directory) as queue:
        writer = queue.open_message()
        await write(writer, BODY[:100_000])
        await queue.cleanup.sweep(queue.is_open, now_ms() + ABANDONED_MS + 1)
        await write(writer, BODY[100_000:])
        await queue.accept(writer, NEW)
        assert whole(queue)
        await queue.cleanup.sweep(queue.is_open, now_ms() + ABANDONED_MS + 1)
        assert list(queue.store.keys(keys.OPEN, keys.end_of(keys.OPEN))) == []
