"""Partitions of several relays in one Redis or bucket: who may write, and what the others see."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.servers import notice_queue, part_of, queue_settings
from tests.kit.stores import CHUNK, MARK, content, open_in_time, put, replaced, stop_renewing
from zonemta_py.config.schema import QueueSettings, RedisSettings, S3Settings
from zonemta_py.core.errors import LocalError, QueueLocked, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Store
from zonemta_py.storage.open import open_shared_storage, open_store
from zonemta_py.storage.redis import RedisStore
from zonemta_py.storage.remote import RemoteBodyStore
from zonemta_py.storage.s3 import S3Store
from zonemta_py.storage.shared import SharedStorage


def name_of(store: Store) -> str:
    return cast(RemoteBodyStore, store).name


async def test_one_relay_per_partition(storage: SharedStorage) -> None:
    """A second relay is refused, with the holder's name; another partition is free and empty."""
    one = storage.open("one")
    put(one, {b"a": b"1", CHUNK: b"c" * 70_000})
    with pytest.raises(QueueLocked, match=r"partition 'one': in use by .+:[0-9]+$"):
        storage.open("one")
    two = storage.open("two")
    assert content(two) == {}
    two.close()
    one.close()
    again = storage.open("one")
    assert content(again) == {b"a": b"1", CHUNK: b"c" * 70_000}
    again.close()


async def test_a_lease_is_renewed(storage: SharedStorage) -> None:
    """It lasts as long as its relay, however short it is."""
    one = storage.open("one")
    end_s = time.monotonic() + scaled(2.0)
    while time.monotonic() < end_s:
        with pytest.raises(QueueLocked):
            storage.open("one")
    put(one, {b"a": b"1"})
    one.close()


async def test_a_relay_that_hung(storage: SharedStorage, caplog: pytest.LogCaptureFixture) -> None:
    """Another relay has its partition: its writes are refused, and the log says so once."""
    one = storage.open("one")
    put(one, {b"a": b"1"})
    stop_renewing(one)
    two = await asyncio.to_thread(open_in_time, storage)
    put(two, {b"b": b"2"})
    with caplog.at_level(logging.CRITICAL):
        for _ in range(3):
            with pytest.raises(QueueUnavailable, match="the lease is lost"):
                put(one, {b"c": b"3", CHUNK: b"x"})
        one.close()
    assert len(caplog.records) == 1
    put(two, {b"d": b"4"})
    two.close()
    three = storage.open("one")
    assert content(three) == {b"a": b"1", b"b": b"2", b"d": b"4"}
    three.close()


async def test_a_loss_found_by_a_renewal(storage: SharedStorage) -> None:
    """Later writes are refused without a request."""
    one = storage.open("one")
    lease = cast(RemoteBodyStore, one)._lease
    lease.mark_lost()
    with pytest.raises(QueueUnavailable, match="the lease is lost"):
        put(one, {b"a": b"1"})
    one.close()
    two = await asyncio.to_thread(open_in_time, storage)
    assert content(two) == {}
    two.close()


async def test_a_server_that_lost_its_data(
    directory: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss is not another relay's doing, and the queue that opens then is not the one that was there."""
    settings = queue_settings(directory, kind)
    one = cast(RemoteBodyStore, open_store(settings))
    put(one, {keys.META_NODE: b"abcdef", keys.META_BOOT: b"7", MARK: b"x"})
    forget_partition(one)
    one._lease.renew()
    with pytest.raises(
        QueueUnavailable, match="no relay has it: it has expired, or the server has lost"
    ):
        put(one, {b"a": b"1"})
    one.close()
    two = open_store(settings)
    assert "the server has lost the queue abcdef, which this process had open" in caplog.text
    put(two, {keys.META_NODE: b"abcdef", keys.META_BOOT: b"6"})
    two.close()
    caplog.clear()
    open_store(settings).close()
    assert caplog.text == ""


def forget_partition(store: RemoteBodyStore) -> None:
    """Delete all that the server has of a partition."""
    if isinstance(store, RedisStore):
        where = store._where
        store._client.run(store._client.commands.delete(where.index, where.values, where.lease))
    else:
        client = cast(S3Store, store)._client
        client.delete(client.paths(""))


async def test_partitions_without_a_relay(storage: SharedStorage) -> None:
    """Those with mail are listed, whether their lease was released or expired."""
    assert storage.orphans() == []
    for name, mail in {"empty": {}, "with-mail": {MARK: b"x"}}.items():
        store = storage.open(name)
        put(store, {b"meta/boot": b"1", **mail})
        assert storage.orphans() == []
        store.close()
    assert storage.orphans() == ["with-mail"]
    store = storage.open("with-mail")
    assert storage.orphans() == []
    stop_renewing(store)
    await until(lambda: storage.orphans() == ["with-mail"], "the lease to expire")
    store.close()


def test_a_partition_with_a_digest_only(storage: SharedStorage) -> None:
    """A report that waits for its hour is mail, too."""
    store = storage.open("one")
    put(store, {keys.digest_key("00" * 16, "1" * 24): b"x"})
    store.close()
    assert storage.orphans() == ["one"]


async def test_notifications(directory: Path, kind: str) -> None:
    """Redis keeps them in a list, SQS in a queue; each is received once."""
    settings = queue_settings(directory, kind)
    url = notice_queue(part_of(directory))
    storage = open_shared_storage(replaced(settings, s3=replaced(settings.s3, notices=url)))
    assert storage is not None
    assert storage.wait_for_notification(0.1) is None
    store = storage.open("one")
    put(store, {MARK: b"x"})
    store.close()
    assert storage.wait_for_notification(1) == "one"
    storage.open("one").close()
    assert storage.wait_for_notification(1) == "one", "released with mail again"
    assert storage.wait_for_notification(0.1) is None
    storage.close()


async def test_a_standby_partition(directory: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A relay whose partition is being delivered by another opens a standby, which has no suspensions."""
    settings = queue_settings(directory, kind)
    stores = [open_store(settings, standby=True) for _ in range(3)]
    assert [name_of(store) for store in stores] == ["one", "one-2", "one-3"]
    assert caplog.text.count("what an operator has suspended in 'one' is not suspended there") == 2
    with pytest.raises(QueueLocked):
        open_store(settings)
    for store in stores:
        store.close()


async def test_a_relay_that_comes_back_soon(directory: Path, kind: str) -> None:
    """After a crash it waits for its own lease: its submission keys and its mail are in that partition."""
    settings = queue_settings(directory, kind, lease_s=scaled(0.6))
    code = (
        "import os, sys; from pathlib import Path; from tests.kit.servers import queue_settings; "
        "from zonemta_py.storage.open import open_store; "
        "open_store(queue_settings(Path(sys.argv[1]), sys.argv[2], lease_s=0.6)); os._exit(9)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, directory, kind], env=environment, check=False)
    assert done.returncode == 9
    store = open_store(settings, standby=True)
    assert name_of(store) == "one"
    store.close()


@pytest.mark.parametrize("standby", [True, False])
async def test_a_relay_with_the_number_of_the_one_before(
    directory: Path, kind: str, standby: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In a container each is process 1: the lease of the one before is waited for, and the log says so."""
    settings = queue_settings(directory, kind, lease_s=scaled(0.6))
    store = cast(RemoteBodyStore, open_store(settings))
    lease = store._lease
    lease.release(mail=True)
    lease._backend.try_acquire(f"{socket.getfqdn()}:{os.getpid()}:{'0' * 16}")
    store._closed = True
    store._disconnect()
    again = open_store(settings, standby=standby)
    assert name_of(again) == "one"
    assert "which has ended: waiting until its lease expires" in caplog.text
    again.close()


def test_invalid_addresses(directory: Path) -> None:
    with pytest.raises(LocalError, match=r"queue\.redis\.url: what"):
        open_store(QueueSettings(directory=directory, store="redis", redis=RedisSettings("what")))
    with pytest.raises(LocalError, match="s3://queues"):
        open_store(
            QueueSettings(directory=directory, store="s3", s3=S3Settings("queues", endpoint="what"))
        )
