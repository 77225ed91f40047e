"""Failures of programs: every message is then delivered, deferred or waiting, and no lease is left."""

import asyncio
import sys
import threading
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import pytest

from tests.kit.deadlines import scaled, time_limit, until
from tests.kit.dequeue import BODY, ZONE, opened, rows, run, stored
from tests.kit.relay import ONE_PROCESS, staged
from zonemta_py import Queue, Relay
from zonemta_py.core.errors import LocalError, QueueUnavailable
from zonemta_py.dequeue import (
    AsyncMessage,
    BadArgument,
    Disposition,
    Message,
    NoSuchZone,
    WrongThread,
    adequeue,
    dequeue,
)
from zonemta_py.queue import messages
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.queue.upkeep.operator import Operator

FAST: dict[str, Any] = {"retry_interval_s": 0.01, "max_attempts": 1}


def in_flight(queue: Queue) -> list[bytes]:
    store = queue.channels.context.queue.store
    return list(store.keys(keys.INFLIGHT, keys.end_of(keys.INFLIGHT)))


async def put(queue: Queue, *to: str, body: bytes = BODY) -> str:
    return await queue.enqueue("s@a.example", to or ["u@x.example"], body, zone=ZONE)


def broken(recipient: object, attempts: int) -> float:
    """A backoff function with a defect."""
    return 1 / (attempts - attempts)


@pytest.mark.parametrize("backoff", [broken, lambda recipient, attempts: float("inf")])
async def test_a_backoff_function_that_fails(directory: Path, backoff: Any) -> None:
    """Deferred recipients are tried again after five minutes; delivered ones are not."""

    async def routine(message: AsyncMessage) -> None:
        for recipient in message.recipients():
            if recipient.address.startswith("a"):
                message.dispose(recipient.address, Disposition.DELIVERED)
        await message.finish()

    async with opened(directory) as queue:
        await put(queue, "a@x.example", "b@x.example")
        await run(queue, routine, backoff=backoff)
        left = rows(queue)
        found = [(row["state"], row["attempts"], row["recipient"]) for row in left]
        assert found == [("deferred", 1, "b@x.example")]
        assert all(
            290_000 < row["due_ms"] - queue.channels.context.queue.now() <= 300_000 for row in left
        )
        assert in_flight(queue) == []


async def test_a_reason_that_is_an_exception(directory: Path) -> None:
    async def routine(message: AsyncMessage) -> None:
        await message.finish(Disposition.DEFERRED, ValueError("the disk is full"))  # type: ignore[arg-type]  # a mistake that many will make

    async with opened(directory) as queue:
        await put(queue)
        await run(queue, routine)
        assert [row["reply"] for row in rows(queue)] == ["the disk is full"]


async def test_a_mixed_end_that_is_cut_off(directory: Path) -> None:
    """Cancelled while the body is copied: every recipient is deferred, and nothing of the copy is left."""

    async def routine(message: AsyncMessage) -> None:
        recipients = list(message.recipients())
        message.dispose(recipients[0].address, Disposition.DELIVERED)
        task = asyncio.create_task(message.finish())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    async with opened(directory) as queue:
        message = await put(queue, "a@x.example", "b@x.example", body=BODY + b"line\r\n" * 500_000)
        await run(queue, routine)
        await until(lambda: stored(queue) == {message}, "the copy to go")
        await until(lambda: [row["state"] for row in rows(queue)] == ["deferred"] * 2, "the deferral")
        assert in_flight(queue) == []


async def test_a_damaged_body_in_a_mixed_end(directory: Path) -> None:
    async def routine(message: AsyncMessage) -> None:
        message.dispose(next(message.recipients()).address, Disposition.DELIVERED)
        await message.finish()

    async with opened(directory) as queue:
        message = await put(queue, "a@x.example", "b@x.example", body=BODY + b"line\r\n" * 50_000)
        inner = queue.channels.context.queue
        inner.store.write(inner.store.batch([(keys.chunk_key(message, 1), b"?")], sync=True))
        await run(queue, routine)
        await until(lambda: [row["state"] for row in rows(queue)] == ["deferred"] * 2, "the deferral")


async def test_cancelled_before_the_routine(directory: Path) -> None:
    """The routine was not called: the message waits, and no attempt is counted."""
    async with opened(directory) as queue:
        await put(queue)
        task = asyncio.create_task(adequeue(queue, ZONE, lambda message: asyncio.Event().wait()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: in_flight(queue) == [])
        seen: list[str] = []

        async def routine(message: AsyncMessage) -> None:
            seen.append(message.info.id)
            await message.finish(Disposition.DELIVERED)

        await flush(queue.channels.context.queue)
        await run(queue, routine)
        assert len(seen) == 1


@pytest.mark.parametrize("turns", range(6))
async def test_cancelled_while_mail_is_skipped(directory: Path, turns: int) -> None:
    """At any turn of the loop: a message with options still waits, one of a suspended user is held or waits."""
    async with opened(directory) as queue:
        inner = queue.channels.context.queue
        await put(queue, body=b"X-Priority-Class: urgent\r\n" + BODY)
        await queue.enqueue("s@a.example", ["a@x.example"], BODY, zone=ZONE, user="ann")
        await inner.suspended.suspend("user:ann", "test")
        task = asyncio.create_task(adequeue(queue, ZONE, lambda message: asyncio.Event().wait()))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: in_flight(queue) == [])
        await inner.suspended.resume("user:ann")
        seen: list[str] = []

        async def routine(message: AsyncMessage) -> None:
            seen.append(message.info.id)
            await message.finish(Disposition.DELIVERED)

        await flush(inner)
        for message in stored(queue):
            await Operator(inner).release(message)
        await run(queue, routine)
        assert len(seen) == 2


async def test_a_routine_that_exits(directory: Path) -> None:
    """sys.exit() ends the routine, not the thread that others wait for."""

    def routine(message: object) -> None:
        sys.exit(3)

    async with opened(directory) as queue:
        await put(queue)
        assert await asyncio.to_thread(dequeue, queue, ZONE, routine, routine, **FAST) == 1
        assert [row["state"] for row in rows(queue)] == ["deferred"]


async def test_a_routine_that_hangs(directory: Path) -> None:
    """The call returns after its time limit; the queue closes; the next start finds the message."""
    go_on = threading.Event()

    def routine(message: Message) -> None:
        go_on.wait(scaled(60))

    async with opened(directory) as queue:
        message = await put(queue)
        late: dict[str, Any] = {"wait_timeout_s": 0.2, **FAST}
        assert await asyncio.to_thread(dequeue, queue, ZONE, routine, lambda _: None, **late) == 1
    go_on.set()
    async with opened(directory) as queue:
        assert [row["message"] for row in rows(queue)] == [message]


async def test_a_relay_that_stops(directory: Path) -> None:
    """Running routines have the grace period of the shutdown; no further one is started."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def routine(message: AsyncMessage) -> None:
        begun.set()
        await go_on.wait()
        await message.finish(Disposition.DELIVERED)
        ended.append(message.sender)

    async with staged(directory) as stage:
        config = stage.config(zones={"list": {"transport": "dequeue"}}, processes=ONE_PROCESS, shutdown_grace=time_limit(20),
                              routing=[{"recipient_domain": "x.example", "zone": "list"}])  # fmt: skip
        async with Relay(config) as relay:
            for _ in range(3):
                await relay.enqueue("s@a.example", ["u@x.example"], BODY)
            task = asyncio.create_task(adequeue(relay, "list", routine, max_threads=1))
            await begun.wait()
            stopping = asyncio.create_task(relay.stop())
            await until(lambda: relay._stopped)
            go_on.set()
            await stopping
            assert await task == 1
            assert len(ended) == 1


@pytest.mark.parametrize("addresses", [("u@x.example",), ("u@x.example", "v@x.example")])
async def test_a_routine_that_ends_after_its_relay(directory: Path, addresses: tuple[str, ...]) -> None:
    """The queue is closed: the call says so, and the next start defers what the routine had."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def routine(message: AsyncMessage) -> None:
        list(message.recipients())
        begun.set()
        await go_on.wait()
        message.dispose("u@x.example", Disposition.DELIVERED)
        await message.finish()

    async with staged(directory) as stage:
        zones = {"list": {"transport": "dequeue"}}
        async with Relay(stage.config(zones=zones, processes=ONE_PROCESS)) as relay:
            await relay.enqueue("s@a.example", addresses, BODY + b"x\r\n" * 100_000, zone="list")
            task = asyncio.create_task(adequeue(relay, "list", routine))
            await begun.wait()
            await relay.stop(0)
            go_on.set()
            with pytest.raises(QueueUnavailable, match="the queue is closed"):
                await task


async def test_another_thread_from_the_first_call_on(directory: Path) -> None:
    """Another thread may not use the message, even before its own thread does."""
    caught: list[BaseException] = []

    def routine(message: Message) -> None:
        def elsewhere() -> None:
            try:
                message.finish(Disposition.DELIVERED)
            except WrongThread as exc:
                caught.append(exc)

        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()

    async with opened(directory) as queue:
        await put(queue)
        await asyncio.to_thread(dequeue, queue, ZONE, routine, **FAST)
        assert len(caught) == 1
        assert [row["state"] for row in rows(queue)] == ["deferred"]


async def test_new_mail_for_a_zone_that_is_not_there(directory: Path) -> None:
    """Refused before anything is stored."""
    problems: list[str] = []

    async def routine(message: AsyncMessage) -> None:
        for zone in ("nope", "a/b", ""):
            try:
                message.start(zone=zone)
            except NoSuchZone as exc:
                problems.append(str(exc))
        new = message.start(zone="default")
        for address in ("nobody", "u@x.example\r\nBcc: all@x.example"):
            with pytest.raises(BadArgument):
                new.to(address, field="To")
        await new.abort()
        await message.finish(Disposition.DELIVERED)

    async with staged(directory) as stage:
        config = stage.config(
            zones={"default": {"transport": "dequeue"}, "other": {"transport": "blackhole"}},
            processes=ONE_PROCESS,
        )
        async with Relay(config) as relay:
            await relay.enqueue("s@a.example", ["u@x.example"], BODY)
            await adequeue(relay, "default", routine, **FAST)
    assert len(problems) == 3


async def test_header_fields_of_new_mail(directory: Path) -> None:
    """Once each, before the first line written."""
    async with opened(directory) as queue:
        new = queue.start("s@a.example", zone=ZONE)
        new.to("u@x.example", field="To")
        new.to("v@x.example", field="Cc")
        new.to("w@x.example", field="To", envelope=False)
        await new.write(b"")
        for line in (b"Subject: x", b"", *[b""] * 70_000, b"end"):
            await new.write_line(line)
        await new.finish()
        found: list[list[bytes]] = []

        async def routine(message: AsyncMessage) -> None:
            assert [r.address for r in message.recipients()] == ["u@x.example", "v@x.example"]
            found.append(list(message.lines()))
            await message.finish(Disposition.DELIVERED)

        await run(queue, routine)
        header = found[0][: found[0].index(b"")]
        assert [line for line in header if line.startswith((b"To", b"Cc", b"Subject"))] == [
            b"To: u@x.example, w@x.example", b"Cc: v@x.example", b"Subject: x",
        ]  # fmt: skip
        assert found[0][-1] == b"end"


async def test_the_wrong_kind_of_routine(directory: Path) -> None:
    """An error, before the first message or with it; no message is lost."""

    async def coroutine(message: AsyncMessage) -> None:
        """Never called."""

    async with opened(directory) as queue:
        await put(queue)
        with pytest.raises(BadArgument, match="use adequeue"):
            await asyncio.to_thread(dequeue, queue, ZONE, coroutine)  # type: ignore[arg-type]  # the mistake
        await run(queue, lambda message: None)  # type: ignore[arg-type, return-value]  # the mistake
        assert [row["state"] for row in rows(queue)] == ["deferred"]
        with pytest.raises(WrongThread, match="an event loop runs in this thread"):
            dequeue(directory, ZONE, print)
    with pytest.raises(LocalError, match="does not exist"):
        await asyncio.to_thread(dequeue, directory / "nowhere", ZONE, print)
    assert not (directory / "nowhere").exists()


async def test_no_room_for_the_copy_of_a_body(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store on a server: the message is deferred, and its lease has ended."""

    async def routine(message: AsyncMessage) -> None:
        raise AssertionError("it has no body")

    class FullDisk(SpooledTemporaryFile[bytes]):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    async with opened(directory) as queue:
        await put(queue, body=b"hello\r\n" * 20_000)
        monkeypatch.setattr(messages, "SpooledTemporaryFile", FullDisk)
        monkeypatch.setattr(type(queue.channels.context.queue.store), "is_remote", lambda self: True)
        await run(queue, routine)
        await until(lambda: not in_flight(queue))  # the call does not wait for the batch that defers it
        assert [(row["state"], row["attempts"]) for row in rows(queue)] == [("deferred", 1)]


async def test_nothing_of_a_suspended_zone(directory: Path) -> None:
    """Also what waited before; it is there again when the zone is resumed."""

    async def routine(message: AsyncMessage) -> None:
        await message.finish(Disposition.DELIVERED)

    async with opened(directory) as queue:
        suspended = queue.channels.context.queue.suspended
        await put(queue)
        await suspended.suspend(f"zone:{ZONE}", "maintenance")
        assert await adequeue(queue, ZONE, routine, **FAST) == 0
        assert len(rows(queue)) == 1 and in_flight(queue) == []
        await suspended.resume(f"zone:{ZONE}")
        assert await adequeue(queue, ZONE, routine, **FAST) == 1
        assert rows(queue) == []
