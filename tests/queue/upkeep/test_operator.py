"""An operator's hold, release and delete in every order, beside windows that are closed and values that are damaged."""

import asyncio
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import accept, everything, lease, opened, problems, settle
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue

pytestmark = pytest.mark.usefixtures("each_store")


def addresses(queue: Queue, most: int = 10) -> list[str]:
    held = queue.lease("default", "x.example", most)
    return [recipient.address for recipient in held.recipients] if held else []


async def test_hold_release_delete(directory: Path) -> None:
    """One that was held and released in the window can be deleted, and is then not sent."""
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example", "z@y.example")
        assert await queue.operator.hold(message, "a@x.example") == (1, 0)
        assert await queue.operator.release(message) == 1
        assert await queue.operator.delete(message, "a@x.example") == (1, 0)
        assert addresses(queue) == []
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DELIVERED)
        assert everything(queue.store) == []


async def test_hold_release_hold(directory: Path) -> None:
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example")
        for _ in range(3):
            assert await queue.operator.hold(message) == (1, 0)
            assert addresses(queue) == []
            assert await queue.operator.release(message) == 1
        held = lease(queue, "x.example")
        assert await queue.operator.hold(message) == (0, 1)
        await settle(queue, held, OutcomeKind.DELIVERED)
        assert everything(queue.store) == []


async def test_released_while_its_destination_rests(directory: Path) -> None:
    """A closed window puts its mail back on disk; a recipient released meanwhile is found there."""
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example")
        other = await accept(queue, "b@x.example")
        await queue.operator.hold(message)
        queue.windows.suspend("default", "x.example")
        await queue.operator.release(message)
        queue.windows.zone("default").resume("x.example")
        found: list[str] = []

        def all_found() -> bool:
            while held := queue.lease("default", "x.example", 10):
                found.extend(r.message for r in held.recipients)
            return sorted(found) == [message, other]

        await until(all_found, "both")


async def test_a_damaged_recipient_does_not_stop_the_operator(directory: Path, each_store: str) -> None:
    """The readable ones are deleted, the damaged one stays, nothing is left withdrawn or pinned."""
    if each_store == "filesystem":
        return  # its records cannot be damaged by key
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example", "b@x.example", "c@y.example")
        key = keys.waiting_key("default", message, "b@x.example")
        queue.store.write(queue.store.batch([(key, b"\xc1")], sync=True))
        assert await queue.operator.delete(message, "a@x.example") == (1, 0)
        assert await queue.operator.delete(message) == (1, 0)
        assert problems(queue.store) != []


async def test_leased_the_moment_it_is_on_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that finds a spilled message before its accept has returned counts with the same entry."""
    async with opened(directory, window=100) as queue:
        for n in range(20):
            await accept(queue, f"{n}@x.example")
        done: list[str] = []
        write = queue.store.write

        def watched(batch: object) -> None:
            write(batch)
            done.append("written")

        monkeypatch.setattr(queue.store, "write", watched)
        accepting = asyncio.ensure_future(accept(queue, "last@x.example", "last@y.example"))
        while not accepting.done():
            while held := queue.lease("default", "x.example", 1):
                await settle(queue, held, OutcomeKind.DELIVERED)
            await asyncio.sleep(0)
        while held := queue.lease("default", "x.example", 1):
            await settle(queue, held, OutcomeKind.DELIVERED)
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DELIVERED)
        monkeypatch.undo()
        await until(lambda: everything(queue.store) == [], "the last key to go")
