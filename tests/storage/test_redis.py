"""The store in Redis: which servers are refused, and what its scripts do with batches."""

from pathlib import Path
from typing import cast

import pytest

from tests.kit.servers import DURABLE, queue_settings, start_redis
from tests.kit.stores import CHUNK, content, kill, own_server, put, replaced, suspended
from zonemta_py.config.schema import QueueSettings, RedisSettings
from zonemta_py.core.errors import LocalError
from zonemta_py.queue.format import keys
from zonemta_py.storage import redis as redis_client
from zonemta_py.storage import redis as redis_store
from zonemta_py.storage.open import open_store
from zonemta_py.storage.redis import RedisStore


def opened(directory: Path) -> RedisStore:
    return cast(RedisStore, open_store(queue_settings(directory, "redis")))


def on_server(store: RedisStore) -> set[bytes]:
    """The keys that have values in Redis."""
    return set(store._client.run(store._client.commands.hkeys(store._where.values)))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "set appendonly yes and appendfsync always"),
        ((*DURABLE, "--no-appendfsync-on-rewrite", "yes"), "no-appendfsync-on-rewrite no"),
        ((*DURABLE, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "maxmemory-policy noeviction"),
    ],
)  # fmt: skip
async def test_a_redis_that_may_lose_mail(
    directory: Path, options: tuple[str, ...], problem: str
) -> None:
    """Refused, unless the configuration allows it."""
    port, _ = start_redis(*options)
    redis = RedisSettings(f"redis://127.0.0.1:{port}/0")
    settings = QueueSettings(directory=directory, store="redis", redis=redis)
    with pytest.raises(LocalError, match=problem):
        open_store(settings)
    open_store(replaced(settings, durability="none")).close()


@pytest.mark.usefixtures("no_retries")
async def test_a_redis_that_ended(directory: Path) -> None:
    settings, process = own_server(directory, "redis")
    open_store(settings).close()
    kill(process)
    with pytest.raises(LocalError, match=r"queue\.redis\.url: redis://.* cannot be used"):
        open_store(settings)


async def test_a_redis_that_hangs_at_the_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A relay that stops asks once: the release is not repeated until all retries are used up."""
    settings, process = own_server(directory, "redis")
    store = cast(RedisStore, open_store(settings))
    monkeypatch.setattr(redis_client, "ANSWER_S", 0.2)
    with suspended(process):
        store.close()
    assert "the lease is not released and has to expire" in caplog.text
    assert "no answer within" in caplog.text
    kill(process)


async def test_a_batch_that_comes_again(directory: Path) -> None:
    """A batch that is sent twice because its answer was lost is applied once, however late it comes."""
    store = opened(directory)
    put(store, {b"k": b"1"})
    put(store, {b"k": None})
    where = store._where
    names = [where.lease, where.index, where.values, where.written]
    for number, answer in ((1, -1), (2, 1), (4, -1)):
        late = store._script(keys=names, args=[store._lease.token, number, 1, 0, b"k", b"1"])
        assert store._client.run(late) == answer
    put(store, {b"m": b"2"})
    store.close()
    store = opened(directory)
    assert content(store) == {b"m": b"2"}
    store.close()


async def test_removed_chunks(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their values go with the next batch or at the close; at once when they are many."""
    second = keys.chunk_key("0" * 24, 2)
    store = opened(directory)
    put(store, {CHUNK: b"c", second: b"d"})
    put(store, {CHUNK: None})
    assert on_server(store) == {CHUNK, second}
    put(store, {second: None})
    assert on_server(store) == {second}
    put(store, {second: b"e"})
    assert store.get(second) == b"e", "put again under the same key"
    put(store, {second: None})
    store.close()
    store = opened(directory)
    assert on_server(store) == set()
    monkeypatch.setattr(redis_store, "REMOVED_CHUNKS_MAX", 1)
    put(store, {CHUNK: b"c", second: b"d"})
    put(store, {CHUNK: None, second: None})
    assert on_server(store) == set()
    store.close()


async def test_chunks_that_a_crash_left(directory: Path) -> None:
    """Removed from the index and not from the values: the next writer removes them."""
    store = opened(directory)
    put(store, {b"a": b"1"})
    store._client.run(store._client.commands.hset(store._where.values, CHUNK, b"left"))
    store.close()
    store = opened(directory)
    assert content(store) == {b"a": b"1"}
    put(store, {b"b": b"2"})
    assert on_server(store) == {b"a", b"b"}
    store.close()


async def test_more_than_a_page(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key is loaded, whatever the size of a page."""
    values = {b"k/%03d" % number: b"%d" % number for number in range(10)}
    values |= {keys.chunk_key("0" * 24, number): b"c" for number in range(1, 6)}
    store = opened(directory)
    put(store, values)
    store.close()
    for page in (1, 2, 5, 15, 16):
        monkeypatch.setattr(redis_store, "PAGE_KEYS", page)
        store = opened(directory)
        assert content(store) == values
        store.close()
