"""Bodies are read in chunks, from memory, a local store, or a remote one without blocking the loop."""

from pathlib import Path

import pytest

from tests.kit.queue import accept, lease, opened
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.format import keys
from zonemta_py.queue.messages import Bodies

SIZES = [0, 1, keys.CHUNK_BYTES, keys.CHUNK_BYTES + 1, 5 * keys.CHUNK_BYTES // 2]


def _body(size: int) -> bytes:
    return bytes(n % 251 for n in range(size))


@pytest.mark.parametrize("size", SIZES)
async def test_every_way_of_reading_returns_the_same(
    directory: Path, each_store: str, size: int
) -> None:
    body = _body(size)
    async with opened(directory, cache=0) as queue:
        await accept(queue, "a@x.example", body=body)
        active = lease(queue, "x.example").active
        bodies: Bodies = queue.bodies
        assert b"".join([chunk async for chunk in bodies.stream(active)]) == body
        assert bodies.small(active) in (None, body)
        async with bodies.spooled(active) as chunks:
            assert b"".join(chunks()) == body
            assert b"".join(chunks()) == body, "a second time from the first byte"
        await bodies.prefetch(active, limit_bytes=len(body))
        assert b"".join(bodies.read(active)) == body


async def test_a_damaged_body_is_never_complete(directory: Path, each_store: str) -> None:
    body = _body(3 * keys.CHUNK_BYTES)
    async with opened(directory, cache=0) as queue:
        message = await accept(queue, "a@x.example", body=body)
        spoiled = [(keys.chunk_key(message, 3), b"other")]
        queue.store.write(queue.store.batch(spoiled, sync=True))
        active = lease(queue, "x.example").active
        got_bytes = 0
        with pytest.raises(QueueCorrupt):
            async for chunk in queue.bodies.stream(active):
                got_bytes += len(chunk)
        assert got_bytes < len(body)
        async with queue.bodies.spooled(active) as chunks:
            with pytest.raises(QueueCorrupt):
                b"".join(chunks())
