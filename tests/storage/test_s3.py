"""The store in S3: its snapshots, its bodies, and servers that do not fit."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.kit.cut_proxy import cut_proxy
from tests.kit.deadlines import scaled
from tests.kit.servers import queue_settings
from tests.kit.stores import CHUNK, MARK, content, open_in_time, put, replaced, stop_renewing
from zonemta_py.config.schema import QueueSettings, S3Settings
from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.storage import s3 as s3_store
from zonemta_py.storage import s3_client
from zonemta_py.storage.open import open_shared_storage, open_store
from zonemta_py.storage.s3 import S3Lease, S3Store
from zonemta_py.storage.s3_client import Conflict, S3Client


@contextmanager
def client_of(settings: QueueSettings) -> Iterator[S3Client]:
    client = S3Client(settings.s3)
    try:
        yield client
    finally:
        client.close()


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


def through(settings: QueueSettings, port: int) -> QueueSettings:
    """``settings`` with a proxy before the server."""
    return replaced(settings, s3=replaced(settings.s3, endpoint=f"http://127.0.0.1:{port}"))  # type: ignore[no-any-return]  # of any settings


@pytest.mark.parametrize("times", [1, 9])
async def test_a_connection_that_ends_in_an_object(directory: Path, times: int) -> None:
    """It is read again; when that does not help, the error is one of the store."""
    settings, wanted = queue_settings(directory, "s3"), b"/body/"
    store = open_store(settings)
    put(store, {CHUNK: b"c" * 60_000, MARK: b"m" * 40_000})
    store.close()

    def cut_after(request: bytes) -> int | None:
        matches = request.startswith(b"GET ") and wanted in request.partition(b"\r\n")[0]
        return 2000 if matches and b"list-type" not in request and proxy.cuts < times else None

    with cut_proxy(str(settings.s3.endpoint), cut_after) as proxy:
        store = open_store(through(settings, proxy.port))
        if times == 1:
            assert await store.fetch_chunk(CHUNK) == b"c" * 60_000
        else:
            with pytest.raises(QueueCorrupt, match="cannot be read"):
                await store.fetch_chunk(CHUNK)
        assert proxy.cuts == min(times, s3_client.READ_ATTEMPTS)
        store.close()
        proxy.cuts, wanted = 0, b"/log/"
        if times == 1:
            open_store(through(settings, proxy.port)).close()
        else:
            with pytest.raises(LocalError, match="s3://queues"):
                open_store(through(settings, proxy.port))


async def test_a_lost_answer_to_the_acquisition(directory: Path) -> None:
    """The client sends the request again and is refused: the lease is this relay's nevertheless."""
    settings = queue_settings(directory, "s3")
    open_store(settings).close()

    def cut_after(request: bytes) -> int | None:
        lease = request.startswith(b"PUT ") and b"/lease" in request.partition(b"\r\n")[0]
        return 0 if lease and not proxy.cuts else None

    with cut_proxy(str(settings.s3.endpoint), cut_after) as proxy:
        store = cast(S3Store, open_store(through(settings, proxy.port), standby=True))
        assert (proxy.cuts, store.name) == (1, "one")
        store._lease.renew()
        put(store, {b"a": b"1"})
        store.close()
    with client_of(settings) as client:
        lease = client.get("one/lease")
    assert lease is not None
    assert b'"token":""' in lease.data


async def test_a_version_that_is_missing(directory: Path) -> None:
    """It is no version: nothing is written, with or without an object."""
    with client_of(queue_settings(directory, "s3")) as client:
        for _ in range(2):
            with pytest.raises(Conflict):
                client.replace("x", b"2", "")
            client.put("x", b"1")
        found = client.get("x")
        assert found is not None
        assert found.data == b"1"


async def test_deletions_that_are_refused(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The answer to a deletion has the status 200 and a list of errors: the log names the first."""

    async def refused(**_: object) -> dict[str, Any]:
        return {"Errors": [{"Key": "p/one/body/1", "Code": "AccessDenied", "Message": "no"}]}

    with client_of(queue_settings(directory, "s3")) as client:
        client._s3.delete_objects = refused
        client.delete(["one/body/1"])
    assert "1 unused objects are not deleted: p/one/body/1: AccessDenied no" in caplog.text


async def test_a_store_without_conditions(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two relays could write one partition there: refused when it is opened."""
    conditional = S3Client._put

    async def careless(self: S3Client, path: str, data: bytes, condition: Any) -> str:
        return await conditional(self, path, data, {})

    monkeypatch.setattr(S3Client, "_put", careless)
    with pytest.raises(LocalError, match="ignores If-None-Match"):
        opened(directory)


@pytest.mark.parametrize("kind", ["log", "snapshot"])
async def test_a_damaged_object(directory: Path, kind: str) -> None:
    """The error names it, and a remedy that there is."""
    store = opened(directory)
    put(store, {MARK: b"x"})
    if kind == "snapshot":
        store._snapshot()
    path = store._client.paths(f"one/{kind}/")[-1]
    store.close()
    with client_of(queue_settings(directory, "s3")) as client:
        client.put(path, b"\xc1")
    with pytest.raises(LocalError, match=rf"one/{kind}/\w+: damaged .*restore this object") as caught:
        opened(directory)
    assert not isinstance(caught.value, QueueCorrupt)


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
