"""The store in S3: its snapshots, its bodies, and servers that do not fit."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from tests.kit.deadlines import scaled
from tests.kit.servers import queue_settings
from tests.kit.stores import CHUNK, MARK, content, open_in_time, put, replaced, stop_renewing
from zonemta_py.config.schema import S3Settings
from zonemta_py.core.errors import LocalError
from zonemta_py.storage import s3 as s3_store
from zonemta_py.storage.open import open_shared_storage, open_store
from zonemta_py.storage.s3 import S3Store
from zonemta_py.storage.s3_client import S3Client
from zonemta_py.storage.s3_lease import S3Lease


def opened(directory: Path) -> S3Store:
    return cast(S3Store, open_store(queue_settings(directory, "s3")))


@pytest.mark.usefixtures("no_retries")
async def test_a_server_that_is_not_there(directory: Path) -> None:
    settings = queue_settings(directory, "s3")
    for changed in (
        S3Settings("no-such-bucket", endpoint=settings.s3.endpoint),
        S3Settings("queues", endpoint="http://127.0.0.1:9"),
    ):
        with pytest.raises(LocalError, match="s3://"):
            open_store(replaced(settings, s3=changed))


async def test_snapshots(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is cut; the first batch of each boot stays."""
    monkeypatch.setattr(s3_store, "SNAPSHOT_BATCHES", 5)
    expected: dict[bytes, bytes] = {}
    for boot in range(3):
        store = opened(directory)
        assert content(store) == expected
        for number in range(8):
            key = b"k/%d/%d" % (boot, number)
            put(store, {key: b"v", b"k/0/0": None})
            expected[key] = b"v"
            expected.pop(b"k/0/0", None)
        store.close()
    store = opened(directory)
    assert content(store) == expected
    found = store._client.paths("one/")
    assert len([path for path in found if "/snapshot/" in path]) == 1
    assert 4 <= len([path for path in found if "/log/" in path]) < 15
    store.close()


async def test_bodies_without_a_batch(directory: Path) -> None:
    """A crash between a body and its batch leaves an unused object: the next opening deletes it."""
    store = opened(directory)
    put(store, {CHUNK: b"kept"})
    store._client.put(store._path("body", "0" * 16, "f" * 24, "000001"), b"lost")
    store.close()
    store = opened(directory)
    assert store._client.paths("one/body/") == [store._path("body", f"{1:016x}", "0" * 24, "000001")]
    assert store.get(CHUNK) == b"kept"
    put(store, {CHUNK: None})
    store.close()
    store = opened(directory)
    assert store._client.paths("one/body/") == []
    store.close()


async def test_a_relay_that_hung_in_a_snapshot(directory: Path) -> None:
    """It deletes older objects, and none that another relay wrote since."""
    settings = queue_settings(directory, "s3", lease_s=scaled(0.6))
    one = cast(S3Store, open_store(settings))
    put(one, {b"a": b"1"})
    stop_renewing(one)
    storage = open_shared_storage(settings)
    assert storage is not None
    two = await asyncio.to_thread(open_in_time, storage)
    put(two, {b"b": b"2"})
    one._snapshot()
    one.close()
    put(two, {b"c": b"3"})
    two.close()
    three = storage.open("one")
    assert content(three) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    three.close()
    storage.close()


async def test_a_lease_whose_version_changed(directory: Path) -> None:
    """By a request of this relay that was sent again: it is kept. By another relay: it is lost."""
    settings = queue_settings(directory, "s3")
    client = S3Client(settings.s3)
    lease = S3Lease(client, "one", 30)
    assert lease.try_acquire("a:1:b") is None
    lease._etag = '"another"'
    assert lease.renew("a:1:b")
    client.put("one/lease", b'{"token": "x:1:y", "lease_s": 30, "mail": true}')
    assert not lease.renew("a:1:b")
    client.close()


async def test_a_store_without_conditions(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two relays could write one partition there: refused when it is opened."""
    conditional = S3Client._put

    async def careless(self: S3Client, path: str, data: bytes, condition: Any) -> str:
        return await conditional(self, path, data, {})

    monkeypatch.setattr(S3Client, "_put", careless)
    with pytest.raises(LocalError, match="ignores If-None-Match"):
        opened(directory)


async def test_a_damaged_lease(directory: Path) -> None:
    """Its partition is ignored and cannot be opened; the others are listed."""
    store = opened(directory)
    put(store, {MARK: b"x"})
    for name, data in (("two", b"{}"), ("three", b"garbage"), ("four", b"[]")):
        store._client.put(f"{name}/lease", data)
    store.close()
    storage = open_shared_storage(queue_settings(directory, "s3"))
    assert storage is not None
    assert storage.orphans() == ["one"]
    for name in ("two", "three", "four"):
        with pytest.raises(LocalError, match=f"{name}/lease is not a lease"):
            storage.open(name)
    storage.close()
