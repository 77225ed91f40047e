"""Stores on a server: only chunks are read there, and no read blocks the event loop."""

import asyncio
import time
from pathlib import Path
from typing import cast

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.queue import KINDS
from tests.kit.servers import queue_settings
from tests.kit.stores import CHUNK, MARK, content, kill, own_server, put, suspended
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage.open import open_store
from zonemta_py.storage.redis import RedisStore
from zonemta_py.storage.remote import RemoteBodyStore
from zonemta_py.storage.s3 import S3Store

AT_ONCE_S = 0.5  # for calls that take microseconds; one request would take as long as the server sleeps


async def test_reads_while_the_server_sleeps(directory: Path, kind: str) -> None:
    """Every call of an event loop returns at once, also while another thread waits in a write."""
    settings, process = own_server(directory, kind)
    store = cast(RemoteBodyStore, open_store(settings))
    values = {b"k/%03d" % number: b"value" for number in range(600)}
    put(store, {**values, MARK: b"m", CHUNK: b"c" * 70_000})
    with suspended(process):
        write = asyncio.create_task(asyncio.to_thread(put, store, {b"later": b"1"}))
        chunk = asyncio.create_task(store.fetch_chunk(CHUNK))
        await until(lambda: len(asyncio.all_tasks(store._thread._loop)) >= 2, "both requests")
        began_s = time.monotonic()
        assert dict(store.scan(b"k/", b"k/\xff")) == values
        assert store.get(b"k/007") == b"value"
        assert store.get(b"missing") is None
        assert next(store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE))) == MARK
        with store.frozen() as view:
            assert len(list(view.keys(b"", b"\xff\xff"))) == len(values) + 2
        assert store.size_bytes() > keys.CHUNK_BYTES
        assert not store.is_behind()
        assert store.is_remote()
        assert await store.fetch_chunk(keys.chunk_key("0" * 24, 2)) is None
        assert time.monotonic() - began_s < scaled(AT_ONCE_S)
        assert not write.done()
        assert not chunk.done()
    assert await chunk == b"c" * 70_000
    await write
    assert store.get(b"later") == b"1"
    await asyncio.to_thread(store.close)


@pytest.mark.parametrize("name", KINDS)
async def test_fetched_chunks(directory: Path, name: str) -> None:
    """On every store the same as ``get``, before and after it was opened again."""
    settings = queue_settings(directory, name)
    store = open_store(settings)
    put(store, {CHUNK: b"c" * 65_536, MARK: b"m"})
    for _ in range(2):
        assert await store.fetch_chunk(CHUNK) == store.get(CHUNK) == b"c" * 65_536
        assert await store.fetch_chunk(keys.chunk_key("1" * 24, 1)) is None
        if name != "memory":
            store.close()
            store = open_store(settings)
    store.close()


@pytest.mark.usefixtures("no_retries")
@pytest.mark.parametrize("how", ["get", "fetch_chunk"])
async def test_a_read_that_fails_is_not_damage(directory: Path, kind: str, how: str) -> None:
    """Nothing is written any more: a decision taken without the answer could lose mail."""
    settings, process = own_server(directory, kind)
    store = open_store(settings)
    put(store, {CHUNK: b"c", MARK: b"m"})
    kill(process)
    assert store.get(MARK) == b"m"
    with pytest.raises(QueueCorrupt, match="cannot be read"):
        if how == "get":
            store.get(CHUNK)
        else:
            await store.fetch_chunk(CHUNK)
    for _ in range(2):
        with pytest.raises(QueueUnavailable, match="cannot be read"):
            put(store, {b"b": b"2"})
    store.close()


@pytest.mark.usefixtures("no_retries")
async def test_a_write_that_fails_is_final(directory: Path, kind: str) -> None:
    """Later writes raise at once, and memory does not have what was not written."""
    settings, process = own_server(directory, kind)
    store = open_store(settings)
    put(store, {b"a": b"1"})
    kill(process)
    for _ in range(2):
        with pytest.raises(QueueUnavailable):
            put(store, {b"b": b"2"})
    assert content(store) == {b"a": b"1"}
    store.close()


async def test_a_cancelled_fetch_is_not_a_failure(directory: Path, kind: str) -> None:
    settings, process = own_server(directory, kind)
    store = cast(RemoteBodyStore, open_store(settings))
    put(store, {CHUNK: b"c"})
    with suspended(process):
        chunk = asyncio.create_task(store.fetch_chunk(CHUNK))
        await until(lambda: asyncio.all_tasks(store._thread._loop), "the request")
        chunk.cancel()
        with pytest.raises(asyncio.CancelledError):
            await chunk
    put(store, {b"a": b"1"})
    assert await store.fetch_chunk(CHUNK) == b"c"
    await asyncio.to_thread(store.close)


async def test_a_frozen_view_keeps_its_bodies(directory: Path, kind: str) -> None:
    """A batch that removes them is on the server, and the view can still read them."""
    store = cast(RemoteBodyStore, open_store(queue_settings(directory, kind)))
    put(store, {CHUNK: b"c", MARK: b"m"})
    with store.frozen() as view:
        write = asyncio.create_task(asyncio.to_thread(put, store, {CHUNK: None, MARK: None}))
        await until(lambda: _is_written(store), "the batch to be on the server")
        assert content(cast(RemoteBodyStore, view)) == {CHUNK: b"c", MARK: b"m"}
        assert not write.done()
    await write
    assert content(store) == {}
    assert await store.fetch_chunk(CHUNK) is None
    await asyncio.to_thread(store.close)


def _is_written(store: RemoteBodyStore) -> bool:
    """Whether the server has the second batch of ``store``."""
    if isinstance(store, RedisStore):
        return int(store._client.run(store._client.commands.get(store._where.written))) == 2
    assert isinstance(store, S3Store)
    return store._seq == 3  # the first one is empty


async def test_its_size(directory: Path, kind: str) -> None:
    """Of small values, and 64 KiB for each chunk; the same when it is opened again."""
    settings = queue_settings(directory, kind)
    store = open_store(settings)
    put(store, {b"a": b"12345", CHUNK: b"c"})
    put(store, {b"a": b"123"})
    assert store.size_bytes() == 3 + keys.CHUNK_BYTES
    store.close()
    store = open_store(settings)
    assert store.size_bytes() == 3 + keys.CHUNK_BYTES
    put(store, {b"a": None, CHUNK: None})
    assert store.size_bytes() == 0
    store.close()
