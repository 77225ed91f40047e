"""Stores that several relays share: leases, fences, and what a client sees when the server is not there."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.kit.deadlines import Deadline, scaled, until
from tests.kit.servers import DURABLE, SHARED, notice_queue, part_of, queue_settings, start_redis
from zonemta_py.config.schema import QueueSettings, RedisSettings, S3Settings
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueLocked, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage import redis as redis_store
from zonemta_py.storage import s3 as object_store
from zonemta_py.storage import s3_client as aws
from zonemta_py.storage.interface import Store
from zonemta_py.storage.loop_thread import LoopThread
from zonemta_py.storage.open import open_shared_storage, open_store
from zonemta_py.storage.partitions import SharedStorage
from zonemta_py.storage.redis import RedisStore
from zonemta_py.storage.s3 import S3Store

CHUNK = keys.chunk_key("0" * 24, 1)


@pytest.fixture(params=SHARED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(folder: Path, kind: str) -> Iterator[SharedStorage]:
    found = open_shared_storage(queue_settings(folder, kind, lease_s=scaled(0.6)))
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
        cast(S3Store, store)._lease.stop_renewing()


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()


async def test_one_part_has_one_relay(place: SharedStorage) -> None:
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


async def test_a_lease_is_renewed(place: SharedStorage) -> None:
    """It lasts as long as its relay, however short it is."""
    one = place.open("one")
    end_s = time.monotonic() + scaled(2.0)
    while time.monotonic() < end_s:
        with pytest.raises(QueueLocked):
            place.open("one")
    put(one, {b"a": b"1"})
    one.close()


async def test_a_relay_that_hung_writes_no_more(place: SharedStorage) -> None:
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


def opened_in_time(place: SharedStorage) -> Store:
    deadline = Deadline(20)
    while True:
        try:
            return place.open("one")
        except QueueLocked:
            assert not deadline.passed()
            time.sleep(0.05)


async def test_what_is_left_is_seen(place: SharedStorage) -> None:
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
        place = open_shared_storage(settings)
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
        directory=folder, store="redis", redis=RedisSettings(f"redis://127.0.0.1:{port}/0")
    )
    with pytest.raises(LocalError, match="set appendonly yes and appendfsync always"):
        open_store(settings)
    open_store(replaced(settings, durability="none")).close()


async def test_a_redis_that_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes are refused and reads fail, as from a broken disk; started again, all is there."""
    monkeypatch.setattr(redis_store, "RETRIES", 1)
    port, process = start_redis(*DURABLE)
    settings = QueueSettings(
        directory=folder, store="redis", redis=RedisSettings(f"redis://127.0.0.1:{port}/0")
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
        S3Settings("no-such-bucket", endpoint=settings.s3.endpoint),
        S3Settings("queues", endpoint="http://127.0.0.1:9"),
    ):
        with pytest.raises(LocalError, match="s3://"):
            open_store(replaced(settings, s3=changed))


async def test_snapshots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is cut, nothing else changes; only what began a life of the part stays of it."""
    monkeypatch.setattr(object_store, "SNAPSHOT_BATCHES", 5)
    settings = queue_settings(folder, "s3")
    wanted: dict[bytes, bytes] = {}
    for life in range(3):
        store = cast(S3Store, open_store(settings))
        assert content(store) == wanted
        for number in range(8):
            key = b"k/%d/%d" % (life, number)
            put(store, {key: b"v", b"k/0/0": None})
            wanted[key] = b"v"
            wanted.pop(b"k/0/0", None)
        store.close()
    store = cast(S3Store, open_store(settings))
    assert content(store) == wanted
    found = store._objects.paths("one/")
    assert len([path for path in found if "/snapshot/" in path]) == 1
    assert 4 <= len([path for path in found if "/log/" in path]) < 15
    store.close()


async def test_bodies_without_a_batch_go(folder: Path) -> None:
    """A crash between a body and the batch that names it leaves octets that nobody knows."""
    settings = queue_settings(folder, "s3")
    store = cast(S3Store, open_store(settings))
    put(store, {CHUNK: b"kept"})
    store._objects.put(store._path("body", "0" * 16, "f" * 24, "000001"), b"lost")
    store.close()
    store = cast(S3Store, open_store(settings))
    assert store._objects.paths("one/body/") == [store._path("body", f"{1:016x}", "0" * 24, "000001")]
    assert store.get(CHUNK) == b"kept"
    put(store, {CHUNK: None})
    store.close()
    store = cast(S3Store, open_store(settings))
    assert store._objects.paths("one/body/") == []
    store.close()


async def test_a_relay_that_hung_in_a_snapshot(folder: Path) -> None:
    """It removes what is old to it, and nothing that another wrote since."""
    settings = queue_settings(folder, "s3", lease_s=scaled(0.6))
    one = cast(S3Store, open_store(settings))
    put(one, {b"a": b"1"})
    stop_renewing(one)
    place = open_shared_storage(settings)
    assert place is not None
    two = await asyncio.to_thread(opened_in_time, place)
    put(two, {b"b": b"2"})
    one._snapshot()
    one.close()
    put(two, {b"c": b"3"})
    two.close()
    three = place.open("one")
    assert content(three) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    three.close()
    place.close()


async def test_a_batch_that_comes_again(folder: Path) -> None:
    """What was sent twice because its answer was lost is applied once, however late it comes."""
    store = cast(RedisStore, open_store(queue_settings(folder, "redis")))
    put(store, {b"k": b"1"})
    put(store, {b"k": None})
    part = store._part
    where = [part.lease, part.index, part.values, part.written]
    for number, answer in ((1, -1), (2, 1), (4, -1)):
        late = store._write(keys=where, args=[store._token, number, 1, b"k", b"1"])
        assert store._thread.run(late) == answer
    assert content(store) == {}
    put(store, {b"m": b"2"})
    store.close()


async def test_a_read_that_fails_is_not_damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written any more: a decision taken without the answer could lose mail."""
    monkeypatch.setattr(redis_store, "RETRIES", 0)
    port, process = start_redis(*DURABLE)
    settings = QueueSettings(
        directory=folder, store="redis", redis=RedisSettings(f"redis://127.0.0.1:{port}/0")
    )
    store = open_store(settings)
    put(store, {b"a": b"1"})
    process.kill()
    process.wait()
    with pytest.raises(QueueCorrupt, match="cannot be read"):
        store.get(b"a")
    with pytest.raises(QueueUnavailable, match="cannot be read"):
        put(store, {b"b": b"2"})
    store.close()


async def test_a_lease_whose_version_changed(folder: Path) -> None:
    """By our own request, sent again: it is still ours. By somebody else's token: it is lost."""
    store = cast(S3Store, open_store(queue_settings(folder, "s3")))
    lease = store._lease
    lease._etag = '"another"'
    assert lease._renew()
    store._objects.put("one/lease", b'{"token": "x:1:y", "lease_s": 30, "mail": true}')
    assert not lease._renew()
    lease.stop_renewing()
    store.close()


async def test_a_store_without_conditions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would keep two relays apart: refused when it is opened."""
    conditional = aws.Objects._put

    async def careless(self: aws.Objects, path: str, data: bytes, condition: Any) -> str:
        return await conditional(self, path, data, {})

    monkeypatch.setattr(aws.Objects, "_put", careless)
    with pytest.raises(LocalError, match="ignores If-None-Match"):
        open_store(queue_settings(folder, "s3"))


async def test_a_lease_that_cannot_be_read(folder: Path) -> None:
    """Its part is left alone; the others are seen."""
    settings = queue_settings(folder, "s3")
    store = cast(S3Store, open_store(settings))
    put(store, {keys.mark_key("0" * 24): b"x"})
    for name, data in (("two", b"{}"), ("three", b"garbage"), ("four", b"[]")):
        store._objects.put(f"{name}/lease", data)
    store.close()
    place = open_shared_storage(settings)
    assert place is not None
    assert place.orphans() == ["one"]
    place.close()


async def test_a_relay_that_comes_back_soon(folder: Path, kind: str) -> None:
    """After its own crash it waits for the lease: its submission keys and its mail are in that part."""
    settings = queue_settings(folder, kind, lease_s=scaled(0.6))
    code = (
        "import os, sys; from pathlib import Path; from tests.kit.servers import queue_settings; "
        "from zonemta_py.storage.open import open_store; "
        "open_store(queue_settings(Path(sys.argv[1]), sys.argv[2], lease_s=0.6)); os._exit(9)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, folder, kind], env=environment, check=False)
    assert done.returncode == 9
    store = open_store(settings, spare=True)
    assert cast(Any, store).name == "one"
    store.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--no-appendfsync-on-rewrite", "yes"), "no-appendfsync-on-rewrite no"),
        (("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "maxmemory-policy noeviction"),
    ],
)
async def test_a_redis_that_may_forget(folder: Path, options: tuple[str, ...], problem: str) -> None:
    port, _ = start_redis(*DURABLE, *options)
    settings = QueueSettings(
        directory=folder, store="redis", redis=RedisSettings(f"redis://127.0.0.1:{port}/0")
    )
    with pytest.raises(LocalError, match=problem):
        open_store(settings)


def test_an_address_that_is_none(folder: Path) -> None:
    with pytest.raises(LocalError, match=r"queue\.redis\.url: what"):
        open_store(QueueSettings(directory=folder, store="redis", redis=RedisSettings("what")))
    with pytest.raises(LocalError, match="s3://queues"):
        open_store(
            QueueSettings(directory=folder, store="s3", s3=S3Settings("queues", endpoint="what"))
        )


def test_a_thread_that_is_closed() -> None:
    """Who waits for an answer gets an error, and so does who asks later."""
    thread = LoopThread("test")
    problems: list[Exception] = []

    def ask() -> None:
        try:
            thread.run(asyncio.sleep(100))
        except LocalError as exc:
            problems.append(exc)

    waiting = threading.Thread(target=ask)
    waiting.start()
    while not asyncio.all_tasks(thread._loop):
        pass
    thread.close()
    waiting.join()
    ask()
    assert [str(exc) for exc in problems] == ["the store is closed"] * 2
    thread.close()
