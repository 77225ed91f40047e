"""The check of bodies that reads chunk by chunk, as a running relay on a remote store does."""

from pathlib import Path

from tests.kit.queue import accept, opened, spoil_chunk
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.check import check_bodies, check_queue


async def test_it_finds_what_the_check_without_bodies_does_not(directory: Path, each_store: str) -> None:
    async with opened(directory, cache=0) as queue:
        store = queue.store
        sound = await accept(queue, "a@x.example", body=b"x" * 3 * keys.CHUNK_BYTES)
        spoiled = await accept(queue, "b@x.example", body=b"y" * 3 * keys.CHUNK_BYTES)
        assert [text async for text in check_bodies(store) if text] == []
        spoil_chunk(store, keys.chunk_key(spoiled, 2), b"other")
        assert [text for text in check_queue(store, bodies=False) if text] == []
        found = [text async for text in check_bodies(store) if text]
        assert len(found) == 1
        assert spoiled in found[0]
        assert "damaged" in found[0]
        assert sound not in found[0]
