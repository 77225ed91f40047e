"""Stores that several relays share: leases, fences, and what a client sees when the server is not there."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conftest import until
from tests.servers import DURABLE, SHARED, notice_queue, part_of, queue_settings, start_redis
from zonemta_py.config.schema import ObjectQueue, QueueSettings, RedisQueue
from zonemta_py.errors import LocalError, QueueLocked, QueueUnavailable
from zonemta_py.queue import keys
from zonemta_py.queue.store import Store
from zonemta_py.stores import aws, object_store, redis_store
from zonemta_py.stores.object_store import ObjectStore
from zonemta_py.stores.opening import open_place, open_store
from zonemta_py.stores.redis_store import RedisStore
from zonemta_py.stores.shared import Place

CHUNK = keys.chunk_key("0" * 24, 1)


@pytest.fixture(params=SHARED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(folder: Path, kind: str) -> Iterator[Place]:
    found = open_place(queue_settings(folder, kind, lease_s=0.6))
    assert found is not None
    yield found
    found.close()


def put(store: Store, values: dict[bytes, bytes | None]) -> None:
    store.write(store.batch(values.items(), sync=True))


def content(store: Store) -> dict[bytes, bytes]:
    return dict(store.scan(b"", b"\xff\xff"))


def stop_renewing(store: Store) -> None:
    """What a machine that hangs does."""
    if isinstance(store, RedisStore):
        store._thread.run(_cancel(store._renewal))
    else:
        cast(ObjectStore, store)._lease.stop_renewing()


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()


async def test_one_part_has_one_relay(place: Place) -> None:
    """A second one is refused, by name; another part is free, and knows nothing of the first."""
    one = place.open("one")
    put(one, {b"a": b"1", CHUNK: b"c" * 70_000})
    with pytest.raises(QueueLocked, match=r"'one': in use by .+:[0-9]+$"):
        place.open("one")
    two = place.open("two")
    assert content(two) == {}
    two.close()
    one.close()
    again = place.open("one")
    assert content(again) == {b"a": b"1", CHUNK: b"c" * 70_000}
    again.close()


async def test_a_lease_is_renewed(place: Place) -> None:
    """It lasts as long as its relay, however short it is."""
    one = place.open("one")
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        with pytest.raises(QueueLocked):
            place.open("one")
    put(one, {b"a": b"1"})
    one.close()


async def test_a_relay_that_hung_writes_no_more(place: Place) -> None:
    """Another has the part by then: what the first would write is refused, whatever it believes."""
    one = place.open("one")
    put(one, {b"a": b"1"})
    stop_renewing(one)
    two = await asyncio.to_thread(opened_in_time, place)
    put(two, {b"b": b"2"})
    with pytest.raises(QueueUnavailable, match="the lease is lost"):
        put(one, {b"c": b"3", CHUNK: b"x"})
    one.close()
    put(two, {b"d": b"4"})
    two.close()
    three = place.open("one")
    assert content(three) == {b"a": b"1", b"b": b"2", b"d": b"4"}
    three.close()


def opened_in_time(place: Place) -> Store:
    end = time.monotonic() + 20
    while True:
        try:
            return place.open("one")
        except QueueLocked:
            assert time.monotonic() < end
            time.sleep(0.05)


async def test_what_is_left_is_seen(place: Place) -> None:
    """Parts with mail and without a relay; of those given back in order there is a hint, too."""
    assert place.orphans() == []
    for name, values in {"empty": {}, "with-mail": {keys.mark_key("0" * 24): b"x"}}.items():
        store = place.open(name)
        put(store, {b"meta/boot": b"1", **values})
        assert place.orphans() == []
        store.close()
    assert place.orphans() == ["with-mail"]
    store = place.open("with-mail")
    assert place.orphans() == []
    stop_renewing(store)
    await until(lambda: place.orphans() == ["with-mail"], "the lease to run out")
    store.close()


async def test_hints(folder: Path) -> None:
    """Redis keeps them in a list, SQS in a queue of its own; each comes once."""
    url = notice_queue(part_of(folder))
    for kind in SHARED:
        settings = queue_settings(folder, kind)
        settings = replaced(settings, s3=replaced(settings.s3, notices=url))
        place = open_place(settings)
        assert place is not None
        assert place.notice(0.1) is None
        store = place.open("one")
        put(store, {keys.mark_key("0" * 24): b"x"})
        store.close()
        assert place.notice(1) == "one"
        place.open("one").close()
        assert place.notice(1) == "one", "left with mail again"
        assert place.notice(0.1) is None
        place.close()


def replaced(record: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(record, **changes)


async def test_a_spare_part(folder: Path, kind: str) -> None:
    """A relay whose part is being delivered by another begins one beside it."""
    settings = queue_settings(folder, kind)
    one, two, three = (open_store(settings, spare=True) for _ in range(3))
    assert [cast(Any, store).name for store in (one, two, three)] == ["one", "one-2", "one-3"]
    with pytest.raises(QueueLocked):
        open_store(settings)
    for store in (one, two, three):
        store.close()


async def test_a_redis_that_answers_too_soon(folder: Path) -> None:
    """Mail is not entrusted to a server that has not written it down, unless that is wanted."""
    port, _ = start_redis()
    settings = QueueSettings(
        directory=folder, store="redis", redis=RedisQueue(f"redis://127.0.0.1:{port}/0")
    )
    with pytest.raises(LocalError, match="set appendonly yes and appendfsync always"):
        open_store(settings)
    open_store(replaced(settings, durability="none")).close()


async def test_a_redis_that_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes are refused and reads fail, as from a broken disk; started again, all is there."""
    monkeypatch.setattr(redis_store, "RETRIES", 1)
    port, process = start_redis(*DURABLE)
    settings = QueueSettings(
        directory=folder, store="redis", redis=RedisQueue(f"redis://127.0.0.1:{port}/0")
    )
    store = open_store(settings)
    put(store, {b"a": b"1"})
    process.kill()
    process.wait()
    with pytest.raises(QueueUnavailable, match="Redis part"):
        put(store, {b"b": b"2"})
    store.close()
    with pytest.raises(LocalError, match=r"queue\.redis\.url: redis://.* cannot be used"):
        open_store(settings)


async def test_an_object_store_that_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        aws, "_CONFIG", aws._CONFIG.merge(type(aws._CONFIG)(retries={"max_attempts": 0}))
    )
    settings = queue_settings(folder, "s3")
    for changed in (
        ObjectQueue("no-such-bucket", endpoint=settings.s3.endpoint),
        ObjectQueue("queues", endpoint="http://127.0.0.1:9"),
    ):
        with pytest.raises(LocalError, match="s3://"):
            open_store(replaced(settings, s3=changed))


async def test_snapshots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is cut, nothing else changes; only what began a life of the part stays of it."""
    monkeypatch.setattr(object_store, "SNAPSHOT_BATCHES", 5)
    settings = queue_settings(folder, "s3")
    wanted: dict[bytes, bytes] = {}
    for life in range(3):
        store = cast(ObjectStore, open_store(settings))
        assert content(store) == wanted
        for number in range(8):
            key = b"k/%d/%d" % (life, number)
            put(store, {key: b"v", b"k/0/0": None})
            wanted[key] = b"v"
            wanted.pop(b"k/0/0", None)
        store.close()
    store = cast(ObjectStore, open_store(settings))
    assert content(store) == wanted
    found = store._objects.paths("one/")
    assert len([path for path in found if "/snapshot/" in path]) == 1
    assert 4 <= len([path for path in found if "/log/" in path]) < 15
    store.close()


async def test_bodies_without_a_batch_go(folder: Path) -> None:
    """A crash between a body and the batch that names it leaves octets that nobody knows."""
    settings = queue_settings(folder, "s3")
    store = cast(ObjectStore, open_store(settings))
    put(store, {CHUNK: b"kept"})
    store._objects.put(store._path("body", "f" * 24, "000001"), b"lost")
    store.close()
    store = cast(ObjectStore, open_store(settings))
    assert store._objects.paths("one/body/") == [store._path("body", "0" * 24, "000001")]
    assert store.get(CHUNK) == b"kept"
    put(store, {CHUNK: None})
    store.close()
    store = cast(ObjectStore, open_store(settings))
    assert store._objects.paths("one/body/") == []
    store.close()
