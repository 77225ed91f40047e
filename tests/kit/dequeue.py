"""A queue of the library, its contents and the reports in it."""

import email
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from email.message import Message as Mail
from pathlib import Path
from typing import Any

from tests.kit.deadlines import scaled
from tests.kit.servers import queue_settings
from zonemta_py import Config, Queue
from zonemta_py.config.schema import Events
from zonemta_py.config.values import Percent
from zonemta_py.config.zones import Retry, Zone
from zonemta_py.dequeue import AsyncMessage, Disposition, adequeue
from zonemta_py.queue.format.keys import MESSAGE, end_of, owner_of
from zonemta_py.queue.messages import read_message
from zonemta_py.queue.upkeep.inspect import recipient_rows

BODY = b"From: s@a.example\r\nSubject: x\r\n\r\nhello\r\n"
ZONE = "list"

AsyncRoutine = Callable[[AsyncMessage], Awaitable[object]]


def settings(directory: Path, store: str = "leveldb", **retry: Any) -> Config:
    """A configuration with a zone for programs, without jitter."""
    zone = Zone(retry=replace(Retry(jitter=Percent(0)), **retry))
    return Config(
        listeners=(),
        hostname="relay.example",
        zones={"default": zone, ZONE: zone},
        queue=queue_settings(directory / "queue", store, lease_s=scaled(1.0)),
        events=Events(directory=directory / "queue" / "events"),
    )


@asynccontextmanager
async def opened(directory: Path, store: str = "leveldb", **retry: Any) -> AsyncIterator[Queue]:
    """The queue in ``directory``."""
    async with Queue(settings(directory, store, **retry)) as queue:
        yield queue


async def run(queue: Queue, routine: AsyncRoutine, zone: str = ZONE, **options: Any) -> int:
    """Run ``routine`` for the messages that are due, then return."""
    options = {"retry_interval_s": 0.01, "max_attempts": 1, **options}
    return await adequeue(queue, zone, routine, **options)


def rows(queue: Queue, zone: str | None = None) -> list[dict[str, Any]]:
    """The recipients in the queue."""
    return list(recipient_rows(queue.channels.context.queue.store, zone))


def stored(queue: Queue) -> set[str]:
    """The messages with any key in the store."""
    store = queue.channels.context.queue.store
    return {owner_of(key) for key in store.keys(MESSAGE, end_of(MESSAGE))}


def meta_of(queue: Queue, message: str) -> Any:
    """Envelope of a stored message."""
    return read_message(queue.channels.context.queue.store, message)[0]


async def reports(queue: Queue) -> list[Mail]:
    """The queued reports, parsed; they are removed from the queue."""
    found: list[Mail] = []

    async def keep(message: AsyncMessage) -> None:
        list(message.recipients())
        assert message.sender == ""
        found.append(email.message_from_bytes(b"\r\n".join(message.lines()) + b"\r\n"))
        await message.finish(Disposition.DELIVERED)

    await run(queue, keep, "default")
    return found


def per_recipient(report: Mail) -> list[dict[str, str]]:
    """The fields for each recipient of a report (RFC 3464 section 2.3)."""
    status = next(part for part in report.walk() if part.get_content_type() == "message/delivery-status")
    blocks = status.get_payload()
    assert isinstance(blocks, list)
    return [dict(block.items()) for block in blocks[1:] if isinstance(block, Mail)]
