"""The filesystem store: its directories, its links, and recovery from a crash between any two steps."""

import asyncio
import json
import os
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import (
    Clock,
    accept,
    begin,
    everything,
    lease,
    make_queue,
    opened,
    problems,
    settle,
)
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    FORMAT,
    RecipientRecord,
    new_recipient_record,
    pack_record,
)
from zonemta_py.storage import filesystem as files
from zonemta_py.storage import filesystem_layout
from zonemta_py.storage.filesystem import FilesystemStore
from zonemta_py.storage.filesystem_layout import read_recipient, write_recipient
from zonemta_py.storage.interface import Access

STORE = "filesystem"


def listing(root: Path) -> list[str]:
    """Every entry below ``root`` except the relay's own."""
    found = [str(path.relative_to(root)) for path in root.glob("**/*")]
    return sorted(name for name in found if "data/.relay" not in name)


def test_an_empty_store_is_four_private_directories(directory: Path) -> None:
    store = FilesystemStore(directory / "q")
    assert listing(directory / "q") == ["cleanup", "data", "inflight", "queue"]
    assert all(
        (directory / "q" / name).stat().st_mode & 0o777 == 0o700 for name in listing(directory / "q")
    )
    store.close()


async def test_a_recipient_that_is_no_file_is_left_alone(directory: Path) -> None:
    """The store is opened without it; only a disk that refuses to read keeps it from being opened."""
    queue = make_queue(directory, Clock(), store=STORE)
    await begin(queue)
    await accept(queue, "a@x.example", "b@x.example")
    await queue.close()
    (found,) = (directory / "files").glob("data/*/1/metadata")
    found.unlink()
    found.mkdir()
    store = FilesystemStore(directory / "files", Access.EXISTING)
    assert len(list(store.keys(keys.WAITING, keys.end_of(keys.WAITING)))) == 1
    assert [found.parent.name in each for each in store.check()] == [True]
    store.close()


async def test_links_follow_the_states(directory: Path) -> None:
    root = directory / "files"
    async with opened(directory, store=STORE) as queue:
        message = await accept(queue, "a@x.example", "b@x.example", "c@y.example", body=b"b" * 70_000)
        targets = {link.name: str(link.readlink()) for link in (root / "queue").iterdir()}
        assert targets == {f"{message}.{i}": f"../data/{message}/{i}" for i in range(3)}
        assert (root / "data" / message / "contents").read_bytes() == b"b" * 70_000
        metadata = json.loads((root / "queue" / f"{message}.0" / "metadata").read_text())
        assert (metadata["from"], metadata["to"]) == ("s@sender.example", "a@x.example")
        assert set(json.loads((root / "queue" / f"{message}.0" / "schedule").read_text())) == {
            "at",
            "last_attempt",
        }

        held = lease(queue, "x.example")
        await queue.start(held)
        assert sorted(p.name for p in (root / "inflight").iterdir()) == [f"{message}.0", f"{message}.1"]
        assert [p.name for p in (root / "queue").iterdir()] == [f"{message}.2"]
        await settle(queue, held, OutcomeKind.DELIVERED)
        assert not (root / "data" / message / "0").exists()
        assert (root / "data" / message / "contents").exists()
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DEFERRED, due_ms=2_000_000_000_000)
        schedule = json.loads((root / "queue" / f"{message}.2" / "schedule").read_text())
        assert schedule["at"] == "2033-05-18T03:33:20.000Z"


async def test_an_edited_schedule_counts_at_the_next_start(directory: Path) -> None:
    clock = Clock()
    async with opened(directory, clock, store=STORE) as queue:
        message = await accept(queue, "a@x.example")
        await settle(
            queue, lease(queue, "x.example"), OutcomeKind.DEFERRED, due_ms=clock.ms + 10_000_000
        )
    path = directory / "files" / "queue" / f"{message}.0" / "schedule"
    path.write_text(path.read_text().replace("2027", "2026"))
    async with opened(directory, clock, store=STORE) as queue:
        await until(lambda: queue.lease("default", "x.example", 1), "the recipient to be due")


async def test_links_removed_by_hand_come_back_and_foreign_ones_go(directory: Path) -> None:
    async with opened(directory, store=STORE) as queue:
        message = await accept(queue, "a@x.example")
    root = directory / "files"
    (root / "queue" / f"{message}.0").unlink()
    gone = "0" * 24
    (root / "cleanup" / gone).symlink_to(f"../data/{gone}")
    async with opened(directory, store=STORE) as queue:
        assert lease(queue, "x.example").active.id == message
        assert list((root / "cleanup").iterdir()) == []


async def test_a_damaged_recipient_is_named_and_the_others_are_delivered(directory: Path) -> None:
    async with opened(directory, store=STORE) as queue:
        message = await accept(queue, "a@x.example", "b@y.example")
    (directory / "files" / "data" / message / "0" / "schedule").write_text("{torn")
    async with opened(directory, store=STORE) as queue:
        [damaged] = queue.store.check()
        assert damaged.startswith(f"data/{message}/0: ")
        held = lease(queue, "y.example")
        assert held.recipients[0].address == "b@y.example"
        await settle(queue, held, OutcomeKind.DELIVERED)
        assert queue.store.get(keys.mark_key(message)), "the message is still needed for the other one"
    assert (directory / "files" / "data" / message / "0").exists()


class Killed(Exception):
    """The end of the process."""


def _steps(monkeypatch: pytest.MonkeyPatch, survive: int) -> None:
    """Let the first ``survive`` changes of files succeed, and no later one."""
    left = survive

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(5, "killed")
            return real(*args, **kwargs)

        return call

    for name in ("_write_file", "_link"):
        monkeypatch.setattr(files, name, guarded(getattr(files, name)))
    monkeypatch.setattr(Path, "unlink", guarded(Path.unlink))


ENOUGH = 40


@pytest.mark.parametrize("survive", [*range(12), ENOUGH])
async def test_a_crash_between_any_two_steps(
    directory: Path, monkeypatch: pytest.MonkeyPatch, survive: int
) -> None:
    """Each of accept, start and settle is complete or absent after the next opening."""
    clock = Clock()
    queue = make_queue(directory, clock, store=STORE)
    await begin(queue)
    first = await accept(queue, "a@x.example")
    held = lease(queue, "x.example")
    await queue.start(held)
    with monkeypatch.context() as patch:
        _steps(patch, survive)
        results = await asyncio.gather(
            settle(queue, held, OutcomeKind.DEFERRED, due_ms=clock.ms + 1000),
            accept(queue, "b@y.example", body=b"c" * 100),
            return_exceptions=True,
        )
    cut = any(isinstance(result, QueueUnavailable) for result in results)
    assert cut or survive == ENOUGH
    await queue.close()
    async with opened(directory, clock, store=STORE) as queue:
        assert problems(queue.store) == []
        here = {
            keys.parse_recipient(k)[2]
            for k in everything(queue.store)
            if k.startswith((keys.WAITING, keys.DEFERRED))
        }
        assert "a@x.example" in here
        if not cut:
            assert "b@y.example" in here
        assert queue.store.get(keys.mark_key(first)) is not None


@pytest.mark.parametrize("data", [b"", b"\xc1", pack((1, [("data/.relay/meta/k", "write", b"2")]))])
def test_a_damaged_intent(directory: Path, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """An opening names the file; a repair keeps it under another name, and opens what is there."""
    store = FilesystemStore(directory)
    store.write(store.batch([(b"meta/k", b"1")], sync=True))
    store.close()
    intent = directory / "data" / ".relay" / "intent"
    intent.write_bytes(data)
    for access in (Access.CREATE, Access.READ):
        with pytest.raises(QueueCorrupt, match=f"{intent}: damaged"):
            FilesystemStore(directory, access)
    FilesystemStore(directory, Access.REPAIR).close()
    assert "kept in intent.damaged" in caplog.text
    assert intent.with_name("intent.damaged").read_bytes() == data
    store = FilesystemStore(directory)
    assert store.get(b"meta/k") == b"1"
    store.close()


def test_an_incomplete_intent_is_ignored(directory: Path) -> None:
    store = FilesystemStore(directory)
    store.close()
    (directory / "data" / ".relay" / "intent.new").write_bytes(b"half")
    store = FilesystemStore(directory)
    store.write(store.batch([(b"meta/x", b"1")], sync=True))
    assert store.get(b"meta/x") == b"1"
    store.close()


def test_a_recipient_without_a_message_keeps_its_key(directory: Path) -> None:
    store = FilesystemStore(directory)
    key = keys.waiting_key("default", "0" * 24, "a@x.example")
    store.write(
        store.batch(
            [
                (keys.mark_key("0" * 24), b"m"),
                (key, pack_record(new_recipient_record(0, "x.example", ""))),
            ],
            sync=True,
        )
    )
    store.close()
    store = FilesystemStore(directory)
    assert list(store.keys(keys.WAITING, keys.end_of(keys.WAITING))) == [key]
    assert FORMAT
    store.close()


def test_a_disk_that_is_full_for_a_moment(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of a part of a chunk is continued, and fails when nothing more can be written."""
    real, store = os.pwrite, FilesystemStore(directory)
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: real(handle, data[:1000], at))
    chunk, message = os.urandom(keys.CHUNK_BYTES), "0" * 24
    store.write(store.batch([(keys.chunk_key(message, 1), chunk)], sync=True))
    assert store.get(keys.chunk_key(message, 1)) == chunk

    def full(handle: int, data: bytes, at: int) -> int:
        if at % keys.CHUNK_BYTES:
            raise OSError(28, "No space left on device")
        return real(handle, data[:1000], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(QueueUnavailable, match="No space left"):
        store.write(store.batch([(keys.chunk_key(message, 2), chunk)], sync=True))
    store.close()


async def test_a_changed_address_is_found(directory: Path) -> None:
    """A flipped bit in the file of a recipient: it is not sent to, and a repair of its event brings it back."""
    async with opened(directory, Clock(), store="filesystem") as queue:
        await accept(queue, "a@dead.example", "b@dead.example")
    path = sorted(directory.rglob("metadata"))[0]
    path.write_bytes(path.read_bytes().replace(b"a@dead", b"a@eead"))
    async with opened(directory, Clock(), store="filesystem") as queue:
        waiting = list(queue.store.keys(keys.WAITING, keys.end_of(keys.WAITING)))
        assert [keys.parse_recipient(key)[2] for key in waiting] == ["b@dead.example"]
        assert any("checksum" in text for text in queue.store.check())


def test_the_sum_of_a_record_with_fewer_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an earlier version is read by one whose record has one more field; a changed one is found."""
    key = keys.waiting_key("default", "0" * 24, "a@x.example")
    metadata, schedule = write_recipient(
        key, new_recipient_record(3, "x.example", "flow"), "s@x.example"
    )
    names = [*RecipientRecord._fields, "added"]
    later = namedtuple("later", names, defaults=("",))
    monkeypatch.setattr(filesystem_layout, "RecipientRecord", later)
    found, record = read_recipient("0" * 24, metadata, schedule)
    assert (found, record.recipient_index, record[-1]) == (key, 3, "")
    with pytest.raises(QueueCorrupt, match="checksum"):
        read_recipient("0" * 24, metadata.replace(b"a@x", b"b@x"), schedule)
