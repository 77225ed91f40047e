"""The keys of the timer: which are left when recipients go while a batch is under way."""

import asyncio
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, everything, opened
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.operator import Operator


@pytest.mark.parametrize("way", ["hold", "accept"])
async def test_removed_before_the_hold_is_known_to_be_on_disk(tmp_path: Path, way: str) -> None:
    """The writer has written the recipient, and the loop has not heard of it: its ``due/`` key goes all the same."""
    async with opened(tmp_path, Clock(), store="memory") as queue:
        if way == "hold":
            message = await accept(queue, "a@x.example")
            holding: asyncio.Task[object] = asyncio.create_task(Operator(queue).hold(message))
        else:
            holding = asyncio.create_task(accept(queue, "a@x.example", hold="a test"))
        held = keys.due_key(keys.HELD_MS, "default", "")
        while not queue.commits._group:
            await asyncio.sleep(0)
        while not (found := list(queue.store.keys(held, keys.end_of(keys.DUE)))):
            pass  # the thread writes; its callback comes when the loop turns
        assert await Operator(queue).delete(keys.parse_due(found[0])[2]) == (1, 0)
        await holding
        await until(lambda: everything(queue.store) == [], "the key of the timer to go")
