"""The disk refuses to read for a while: what was to be read then is sent later, without a restart."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, begin, everything, lease, make_queue, problems, settle
from tests.simulation.disk import Disk, Failing, in_use
from zonemta_py.core.errors import LocalError, QueueUnreadable
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format.keys import CHUNK_BYTES
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep import cleanup, startup
from zonemta_py.storage.filesystem import FilesystemStore
from zonemta_py.storage.interface import Access

WINDOW = 4  # recipients
DELAY_MS = 60_000


@pytest.fixture
def disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """That of ``directory / queue``; failed reads are followed at once."""
    monkeypatch.setattr(startup, "AGAIN_S", 0.0)
    for name in ("queue", "removed"):
        (directory / name).mkdir()
    disk = Disk(directory / "removed", Random(1))
    disk.settle(directory / "queue")
    with in_use(disk):
        yield disk


def fail(disk: Disk, work: Callable[[], object]) -> None:
    """Call ``work`` while reads fail."""
    disk.fail(Failing(errno.EIO, ["read"]))
    try:
        work()
    except QueueUnreadable:
        pass
    disk.fail(None)


async def deliver_all(queue: Queue, recipients: int) -> None:
    """Deliver what is offered, until the queue is empty: reads have failed."""
    assert queue.store.failed_reads
    left = recipients
    while left:
        await until(lambda: queue.windows.zone("default").has_mail("x.example"), "mail")
        held = queue.lease("default", "x.example", recipients)
        if held is not None:
            left -= len(held.recipients)
            await settle(queue, held, OutcomeKind.DELIVERED)
    assert problems(queue.store) == []


async def test_a_lease(directory: Path, disk: Disk) -> None:
    """The message is read for it: also the number of its recipients, so that it ends with the last one."""
    queue = make_queue(directory / "queue", Clock())
    await begin(queue)
    await accept(queue, "a@x.example", "b@x.example")
    queue._active._entries.clear()  # as after many other messages
    fail(disk, lambda: queue.lease("default", "x.example", 2))
    await deliver_all(queue, 2)
    await queue.close()


async def test_mail_that_is_not_in_the_window(directory: Path, disk: Disk) -> None:
    """It is read when the window has room, and not found then."""
    queue = make_queue(directory / "queue", Clock(), window=WINDOW)
    await begin(queue)
    for n in range(3 * WINDOW):
        await accept(queue, f"u{n}@x.example")
    waiting = queue.windows.zone("default").waiting("x.example")
    for _ in range(waiting):
        held = queue.windows.zone("default").take("x.example", 1)
        queue.windows.zone("default").forget([held[0].key])  # it is found again
        fail(disk, lambda: queue.windows.refill("default", "x.example"))
    assert not queue.windows.zone("default").has_mail("x.example")
    await deliver_all(queue, 3 * WINDOW)
    await queue.close()


async def test_deferred_mail(directory: Path, disk: Disk) -> None:
    clock = Clock()
    queue = make_queue(directory / "queue", clock)
    await begin(queue)
    await accept(queue, "a@x.example")
    await settle(queue, lease(queue, "x.example"), OutcomeKind.DEFERRED, clock.ms + DELAY_MS)
    clock.ms += DELAY_MS
    fail(disk, lambda: list(queue.deferral._due_keys(b"e")))
    await deliver_all(queue, 1)
    await queue.close()


async def test_a_body_that_is_removed(directory: Path, disk: Disk) -> None:
    """What it has in a segment could not be looked up: it is no problem, and goes when the segment is emptied."""
    queue = make_queue(directory / "queue", Clock())
    await begin(queue)
    await accept(queue, "a@x.example", body=b"x" * 200_000)
    held = lease(queue, "x.example")
    disk.fail(Failing(errno.EIO, ["read"]))
    done = settle(queue, held, OutcomeKind.DELIVERED)
    disk.fail(None)
    await done
    assert problems(queue.store) == []
    await queue.close()


async def test_chunks_that_are_removed(
    directory: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked for again, and not before the next start only. Seed 31291."""
    monkeypatch.setattr(cleanup, "AGAIN_S", 0.0)
    queue = make_queue(directory / "queue", Clock())
    await begin(queue)
    await accept(queue, "a@x.example", body=b"x" * (3 * CHUNK_BYTES))
    held = lease(queue, "x.example")
    refused = queue.store.failed_reads
    await settle(queue, held, OutcomeKind.DELIVERED)
    disk.fail(Failing(errno.EIO, ["read"]))
    await until(lambda: queue.store.failed_reads > refused, "a look for its chunks")
    disk.fail(None)
    await until(lambda: everything(queue.store) == [], "an empty queue")
    await queue.close()


async def test_the_filesystem_store_is_opened_with_all_or_not_at_all(
    directory: Path, disk: Disk
) -> None:
    """A recipient whose file cannot be read for a moment would not be sent to before the next start."""
    queue = make_queue(directory / "queue", Clock(), store="filesystem")
    await begin(queue)
    await accept(queue, *(f"u{n}@x.example" for n in range(6)))
    expected = everything(queue.store)
    await queue.close()
    results = set()
    for _ in range(60):
        disk.fail(Failing(errno.EIO, ["read"], 0.05))
        try:
            store = FilesystemStore(directory / "queue" / "files", Access.EXISTING)
        except LocalError as exc:
            results.add("refused")
            assert "Input/output error" in str(exc)
        else:
            results.add("opened")
            assert everything(store) == expected and list(store.check()) == []
            store.close()
        disk.fail(None)
    assert results == {"refused", "opened"}
