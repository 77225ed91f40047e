"""Kannader's contract on every store: its acceptance checks, restarts between calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.kit.queue import Clock, everything, make_queue, problems
from zonemta_py.queue.format import keys
from zonemta_py.queue.kannader.storage import (
    Damaged,
    InflightMail,
    MailMetadata,
    QueuedMail,
    ScheduleInfo,
    Storage,
)

NOW = ScheduleInfo(datetime(2026, 11, 21, tzinfo=UTC))
LATER = ScheduleInfo(datetime(2027, 1, 1, tzinfo=UTC), datetime(2026, 11, 21, tzinfo=UTC))
CONTENT = b"Subject: x\r\n\r\nhello\r\n..dot\r\n.\r\n"

pytestmark = pytest.mark.usefixtures("each_store")


def open_storage(directory: Path) -> Storage:
    queue = make_queue(directory, Clock())
    queue.commits.start()
    return Storage(queue)


async def close(storage: Storage) -> None:
    await storage._queue.close()


@asynccontextmanager
async def storing(directory: Path) -> AsyncIterator[Storage]:
    storage = open_storage(directory)
    try:
        yield storage
    finally:
        await close(storage)


async def put(storage: Storage, *to: str, content: bytes = CONTENT) -> list[QueuedMail]:
    enqueuer = storage.enqueue()
    await enqueuer.write(content)
    return await enqueuer.commit([(MailMetadata("s@x.example", address), NOW) for address in to])


async def listed(storage: Storage) -> list[str]:
    return [mail.id or "" async for mail in storage.list_queue()]


async def content_of(storage: Storage, mail: InflightMail) -> bytes:
    _, content = await storage.read_inflight(mail)
    return b"".join([chunk async for chunk in content])


async def test_content_comes_back_as_it_went_in(directory: Path) -> None:
    """Encoded in, encoded out, twice the same; raw below; large bodies in chunks."""
    large = b"Subject: x\r\n\r\n" + b"..line\r\n" * 30_000 + b".\r\n"
    async with storing(directory) as storage:
        for content in (CONTENT, large, b"A: 1\r\n\r\n.\r\n"):
            (mail,) = await put(storage, "a@x.example", content=content)
            lease = await storage.send_start(mail)
            assert lease is not None
            assert await content_of(storage, lease) == content == await content_of(storage, lease)
            metadata, _ = await storage.read_inflight(lease)
            assert metadata == MailMetadata("s@x.example", "a@x.example")


async def test_nothing_is_visible_before_commit(directory: Path) -> None:
    async with storing(directory) as storage:
        enqueuer = storage.enqueue()
        await enqueuer.write(b"Subject: x\r\n\r\n" + b"x" * 1_000_000)
        assert await listed(storage) == []
        with pytest.raises(ValueError, match="does not end"):
            await enqueuer.commit([(MailMetadata(None, "a@x.example"), NOW)])
        await enqueuer.abort()
        assert [mail async for mail in storage.find_pending_cleanup()] != []
        async for mail in storage.find_pending_cleanup():
            assert await storage.cleanup(mail)
        assert everything(storage._store) == []


async def test_several_destinations_in_order(directory: Path) -> None:
    async with storing(directory) as storage:
        mails = await put(storage, "c@x.example", "a@x.example", "b@y.example")
        assert [m.address for m in mails] == ["c@x.example", "a@x.example", "b@y.example"]
    async with storing(directory) as storage:
        assert sorted(await listed(storage)) == sorted(m.id for m in mails)


async def test_the_life_of_a_mail_with_restarts(directory: Path) -> None:
    """start, cancel, reschedule, start, done, cleanup: a new process between any two calls."""
    async with storing(directory) as storage:
        (mail,) = await put(storage, "a@x.example")
    async with storing(directory) as storage:
        lease = await storage.send_start(mail)
        assert lease is not None
        assert await storage.send_start(mail) is None
    async with storing(directory) as storage:
        (found,) = [m async for m in storage.find_inflight()]
        assert found.id == mail.id
        back = await storage.send_cancel(found)
        assert back is not None
        assert back.schedule == mail.schedule
    async with storing(directory) as storage:
        moved = await storage.reschedule(back, LATER)
        assert moved is not None
        assert moved.schedule.last_interval() == timedelta(days=41)
    async with storing(directory) as storage:
        (again,) = [m async for m in storage.list_queue()]
        assert isinstance(again, QueuedMail)
        assert again.schedule == LATER
        second = await storage.send_start(again)
        assert second is not None
        assert await storage.send_cancel(lease) is None, "a stale holder"
        assert await storage.send_done(lease) is None, "a stale holder"
        done = await storage.send_done(second)
        assert done is not None
    async with storing(directory) as storage:
        (pending,) = [m async for m in storage.find_pending_cleanup()]
        assert await storage.cleanup(pending) is True
        assert await storage.cleanup(pending) is False
        assert everything(storage._store) == []


async def test_content_goes_with_the_last_destination(directory: Path) -> None:
    async with storing(directory) as storage:
        one, two = await put(storage, "a@x.example", "b@x.example")
        lease = await storage.send_start(one)
        assert lease is not None
        done = await storage.send_done(lease)
        assert done is not None
        assert await storage.cleanup(done)
        assert problems(storage._store) == []
        dropped = await storage.drop(two)
        assert dropped is not None
        assert await storage.drop(two) is None
        assert await storage.cleanup(dropped)
        assert everything(storage._store) == []


async def test_one_damaged_item_does_not_end_the_list(directory: Path) -> None:
    async with storing(directory) as storage:
        good, bad = await put(storage, "a@x.example", "b@x.example")
        key = keys.deferred_key("default", bad.id.partition(".")[0], "b@x.example")
        if type(storage._store).__name__ == "FilesystemStore":
            return  # its own test damages a file: tests/storage/test_filesystem.py
        storage._store.write(storage._store.batch([(key, b"\xc1")], sync=True))
        found = [m async for m in storage.list_queue()]
        assert [type(m) for m in found] == [QueuedMail, Damaged]
        assert found[0].id == good.id
