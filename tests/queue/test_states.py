"""One message through every state, in qmail's and Kannader's words."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import accept, lease, opened, settle, write
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format.keys import cleanup_key
from zonemta_py.queue.upkeep.inspect import state_of_message

pytestmark = pytest.mark.usefixtures("each_store")


async def test_every_state(directory: Path) -> None:
    async with opened(directory) as queue:
        store = queue.store

        def state(message: str) -> tuple[str, list[str]]:
            row = state_of_message(store, message)
            return row["qmail"], [r["kannader"] for r in row["recipients"]]

        assert state("0" * 24) == ("S1", [])
        writer = queue.open_message()
        await write(writer, b"b" * 200_000)
        assert state(writer.id) == ("S3", [])
        queue.abort(writer)
        await until(lambda: state(writer.id) == ("S1", []), "the chunks to go")

        message = await accept(queue, "a@x.example", "b@y.example", body=b"b" * 200_000)
        assert state(message) == ("S4", ["queued", "queued"])
        held = lease(queue, "x.example")
        await queue.start(held)
        assert state(message) == ("S5", ["in flight", "queued"])
        await settle(queue, held, OutcomeKind.DELIVERED)
        assert state(message) == ("S5", ["queued"])
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DELIVERED)
        await until(lambda: state(message) == ("S1", []), "the chunks to go")

        batch = WriteBatch()
        batch.put(cleanup_key(message), b"")
        await queue.commits.submit(batch)
        row = state_of_message(store, message)
        assert (row["qmail"], row["kannader"]) == ("S2", "pending cleanup")
        await queue.cleanup.remove_chunks(message)
