"""The disk loses what was not synced and nothing else; and what a start finds in the cache after a kill, it does not take for synced."""

import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests.kit.queue import Clock, accept, everything, lease, make_queue, opened, problems, settle
from tests.simulation.disk import Disk, Failing, in_use
from zonemta_py.core.files import no_link, sync_directory
from zonemta_py.core.model import OutcomeKind
from zonemta_py.events.recovery import recover, seal_recovered
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.events.segments import Segment
from zonemta_py.queue.format import keys

NODE = "abcdef"
IMAGES = 2  # of each death


def made(directory: Path) -> tuple[Disk, Path]:
    """A disk, and an empty directory on it."""
    removed, place = directory / "removed", directory / "place"
    for each in (removed, place):
        each.mkdir(parents=True)
    disk = Disk(removed, Random(1))
    disk.settle(place)
    return disk, place


def images(disk: Disk, place: Path, number: int = IMAGES) -> Iterator[Path]:
    """What a power cut now may leave of ``place``."""
    for seed in range(number):
        image = place.with_name(f"{place.name}-image-{seed}")
        disk.image(place, image, Random(seed))
        yield image


def written(path: Path, data: bytes, *, synced: bool) -> None:
    """Make a file."""
    with open(path, "wb", opener=no_link) as file:
        file.write(data)
        file.flush()
        if synced:
            os.fsync(file.fileno())


# ---- the disk


def test_what_was_synced_is_there(directory: Path) -> None:
    disk, place = made(directory)
    with in_use(disk):
        written(place / "a", b"a" * 10_000, synced=True)
        (place / "inner").mkdir()
        sync_directory(place)
        written(place / "inner" / "b", b"b", synced=True)
        sync_directory(place / "inner")
        for image in images(disk, place):
            assert (image / "a").read_bytes() == b"a" * 10_000
            assert (image / "inner" / "b").read_bytes() == b"b"


def test_any_part_of_the_rest(directory: Path) -> None:
    """Names, lengths and pages: each may be there and may not, a rename as a whole."""
    disk, place = made(directory)
    found = set()
    with in_use(disk):
        written(place / "old", b"old", synced=True)
        sync_directory(place)
        (place / "old").replace(place / "new")
        written(place / "long", b"l" * 9000, synced=False)
        for seed in range(200):
            image = directory / f"image-{seed}"
            disk.image(place, image, Random(seed))
            names = {each.name for each in image.iterdir()}
            assert len(names & {"old", "new"}) == 1
            long = (image / "long").read_bytes() if "long" in names else b""
            found.add(("new" in names, "long" in names, bool(long), b"\0" in long))
    assert len(found) == 8


def test_a_removed_name_comes_back(directory: Path) -> None:
    disk, place = made(directory)
    with in_use(disk):
        written(place / "a", b"a", synced=True)
        sync_directory(place)
        (place / "a").unlink()
        left = [list(image.iterdir()) for image in images(disk, place, 30)]
        assert [] in left and any(left)
        sync_directory(place)
        assert not any(place.iterdir())
    assert [path.read_bytes() for paths in left for path in paths] == [b"a"] * sum(map(len, left))


def test_a_copy_after_a_kill_knows_what_was_synced(directory: Path) -> None:
    """Everything is there; after a power cut a part of it."""
    disk, place = made(directory)
    with in_use(disk):
        written(place / "a", b"a" * 5000, synced=False)
        disk.copy(place, place.with_name("after"))
    after = place.with_name("after")
    assert (after / "a").read_bytes() == b"a" * 5000
    lengths = [
        (image / "a").stat().st_size for image in images(disk, after, 30) if (image / "a").exists()
    ]
    assert len(lengths) < 30 and {0, 5000} < set(lengths)


def test_calls_fail(directory: Path) -> None:
    disk, place = made(directory)
    with in_use(disk):
        disk.fail(Failing(errno.ENOSPC, ["open"]))
        with pytest.raises(OSError, match="No space left"):
            written(place / "a", b"a", synced=False)
        written(directory / "b", b"b", synced=False)  # it is not of the relay
        disk.fail(None)
        written(place / "a", b"a", synced=False)


# ---- the relay: killed in front of each call of some work, then started, then the power is cut


async def deaths(
    directory: Path, work: Callable[[Path], Awaitable[None]], start: Callable[[Path], Awaitable[None]]
) -> list[Path]:
    """What is left when ``work`` is killed in front of each of its calls to the disk, ``start`` follows, and the power is cut."""
    found: list[Path] = []
    for calls in count(1):
        disk, place = made(directory / str(calls))
        after = place.with_name("after")
        with in_use(disk):
            disk.interrupt(calls, lambda: disk.copy(place, after))  # noqa: B023 - called in this round
            await work(place)
            disk.interrupt(0, None)
            if not after.exists():
                assert calls > 3
                return found
            await start(after)
            found += images(disk, after)
    raise AssertionError


def lines(first: int, number: int) -> bytes:
    """Records of the event log."""
    text = '{"node":"abcdef","seq":%d,"time_ms":1,"event":"x"}\n'
    return "".join(text % seq for seq in range(first, first + number)).encode()


async def test_a_segment(directory: Path) -> None:
    """What a start finds of a log stays, also what a killed process had written and not synced: its outbox has it no longer."""
    known: dict[Path, set[int]] = {}

    async def work(place: Path) -> None:
        segment = Segment(place / "events", NODE, 1)
        segment.append(lines(1, 3), 3)
        segment.append(lines(4, 3), 6)
        segment.seal(1_800_000_000_000)

    async def start(place: Path) -> None:
        (place / "events").mkdir(exist_ok=True)
        found = recover(place / "events", NODE)
        seal_recovered(place / "events", NODE, 1_800_000_000_000)
        known[place] = found | set(_numbers(place))

    for image in await deaths(directory, work, start):
        after = image.with_name("after")
        assert set(_numbers(image)) >= known[after], image


def _numbers(place: Path) -> Iterator[int]:
    for path in sealed_segments(place / "events"):
        yield from (record["seq"] for record in read_segment(path))


async def test_a_trailer_whose_sync_failed(directory: Path) -> None:
    """It is not on disk, though it can be read until the power is cut: the next start writes it again."""
    disk, place = made(directory)
    with in_use(disk):
        segment = Segment(place / "events", NODE, 1)
        segment.append(lines(1, 3), 3)
        disk.fail(Failing(errno.EIO, ["sync"]))
        with pytest.raises(OSError, match="Input/output"):
            segment.seal(1_800_000_000_000)
        disk.fail(None)
        assert recover(place / "events", NODE) == {1, 2, 3}
        seal_recovered(place / "events", NODE, 1_800_000_000_000)
        for image in images(disk, place):
            assert list(_numbers(image)) == [1, 2, 3]


@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_a_store(directory: Path, store: str) -> None:
    """What was accepted before a kill is there, and all that the start which follows it has found and written."""
    clock, accepted, found = Clock(), dict[Path, list[str]](), dict[Path, list[bytes]]()

    async def work(place: Path) -> None:
        async with opened(place / "queue", clock, store=store) as queue:
            made_id = await accept(queue, "a@x.example", "b@y.example", body=b"b" * 70_000)
            if not place.with_name("after").exists():
                accepted[place] = [made_id]
            held = lease(queue, "x.example")
            await queue.start(held)
            await settle(queue, held, OutcomeKind.DEFERRED, clock.ms + 60_000)
            await queue.start(lease(queue, "y.example"))

    async def start(place: Path) -> None:
        queue = make_queue(place / "queue", clock, store=store)
        await queue.recover()
        await accept(queue, "after@x.example", body=b"c" * 70_000)
        found[place] = everything(queue.store)
        known = {keys.mark_key(each) for each in accepted.get(place.with_name("place"), ())}
        assert known <= set(found[place])
        await queue.close()

    for image in await deaths(directory, work, start):
        queue = make_queue(image / "queue", clock, store=store)
        assert set(everything(queue.store)) >= set(found[image.with_name("after")]), image
        await queue.recover()
        assert problems(queue.store) == []
        while held := queue.lease("default", "x.example", 1):
            assert sum(map(len, queue.bodies.read(held.active))) == held.active.mark.size
            await settle(queue, held, OutcomeKind.DELIVERED)
        await queue.close()
