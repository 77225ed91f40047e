"""3. No sequence number is used twice, and no segment is replaced, whatever was restored."""

import shutil
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import accept, lease, settle
from tests.kit.servers import queue_settings
from zonemta_py.config.schema import Config, Events
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.core.model import OutcomeKind
from zonemta_py.events.recovery import recover, seal_recovered
from zonemta_py.events.segment_reading import read_segment, read_trailer, sealed_segments
from zonemta_py.events.segments import Segment
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.format import keys
from zonemta_py.queue.outbox import Exporter
from zonemta_py.queue.queue import Queue
from zonemta_py.relay.runner import accept_older_queue, repair
from zonemta_py.storage.interface import Access

STORES = pytest.mark.parametrize("store", ["leveldb", "filesystem"])
NOW_MS = 1_795_248_000_000


def configured(directory: Path, store: str) -> Config:
    return Config(
        listeners=(),
        queue=queue_settings(directory / "queue", store),
        events=Events(directory=directory / "events"),
    )


async def life(config: Config, *addresses: str, deliver: bool = False) -> str:
    """One start: accept a message, perhaps deliver all, export, stop; returns the node."""
    queue = open_queue(config)
    await queue.recover()
    exporter = Exporter(queue, config.events)
    await exporter.start()
    await queue.begin()
    for address in addresses:
        await accept(queue, address)
    await until(lambda: not queue.scanning, "the start-up scan")
    while deliver and queue.lease("default", "x.example", 0) is None and waiting(queue):
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
    await exporter.close()
    await queue.close()
    return queue.node


def waiting(queue: Queue) -> bool:
    return next(queue.store.keys(keys.WAITING, keys.end_of(keys.WAITING)), None) is not None


def back_up(directory: Path) -> None:
    shutil.copytree(directory / "queue", directory / "backup", symlinks=True)


def restore(directory: Path) -> None:
    shutil.rmtree(directory / "queue")
    shutil.copytree(directory / "backup", directory / "queue", symlinks=True)


def logged(directory: Path) -> list[dict[str, Any]]:
    return [r for path in sealed_segments(directory / "events") for r in read_segment(path)]


async def take_as_it_is(config: Config) -> None:
    accept_older_queue(config)


async def take_repaired(config: Config) -> None:
    await repair(config, logged(config.events.directory.parent))


WAYS = {"--queue-is-older": take_as_it_is, "repair": take_repaired}


def identities(directory: Path) -> Counter[tuple[str, int, int]]:
    return Counter((record["node"], record["seq"], record["position"]) for record in logged(directory))


@STORES
async def test_a_restored_backup(directory: Path, store: str) -> None:
    """It is refused until an operator decides; then new events get new numbers, and none is overwritten."""
    config = configured(directory, store)
    await life(config, "a@x.example")
    back_up(directory)
    await life(config, "b@x.example", "c@x.example")
    segments_before = {path: path.read_bytes() for path in sealed_segments(directory / "events")}
    restore(directory)
    with pytest.raises(LocalError, match=r"older than its event log.*--queue-is-older"):
        open_queue(config)
    accept_older_queue(config)
    await life(config, "d@x.example")
    await life(config, "e@x.example")
    assert {path: path.read_bytes() for path in segments_before} == segments_before
    found = identities(directory)
    assert len(found) == 5
    assert set(found.values()) == {1}


@STORES
@pytest.mark.parametrize("way", WAYS)
async def test_a_backup_with_events_that_were_exported_since(
    directory: Path, store: str, way: str
) -> None:
    """A backup of a relay that was killed: its outbox is in sealed segments now, and is not exported again."""
    config = configured(directory, store)
    queue = open_queue(config)
    await queue.recover()
    await accept(queue, "a@x.example")
    await accept(queue, "b@x.example")
    await queue.close()
    back_up(directory)
    await life(config, "c@x.example")
    restore(directory)
    await WAYS[way](config)
    await life(config, "d@x.example")
    assert set(identities(directory).values()) == {1}


@STORES
@pytest.mark.parametrize("way", WAYS)
async def test_message_ids_after_a_clock_that_was_ahead(
    directory: Path, store: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids do not follow the time then; those that were given since the backup are not given again."""
    config = configured(directory, store)
    ahead = SimpleNamespace(time_ns=lambda: time.time_ns() + 10**15, monotonic=time.monotonic)
    with monkeypatch.context() as patch:
        patch.setattr(clock, "time", ahead)
        await life(config, "a@x.example")
    back_up(directory)
    await life(config, "b@x.example", "c@x.example")
    restore(directory)
    await WAYS[way](config)
    await life(config, "d@x.example", "e@x.example")
    records = logged(directory)
    ids = [record["message"] for record in records if record["event"] == "accepted"]
    assert len(set(ids)) == len(ids) == 5


@STORES
async def test_repair_removes_what_was_settled_since(directory: Path, store: str) -> None:
    config = configured(directory, store)
    await life(config, "a@x.example")
    back_up(directory)
    queue = open_queue(config)
    await queue.recover()
    exporter = Exporter(queue, config.events)
    await exporter.start()
    await queue.begin()
    await until(lambda: not queue.scanning, "the start-up scan")
    await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
    await exporter.close()
    await queue.close()
    restore(directory)
    records = logged(directory)
    rows = await repair(config, records)
    assert any(row["reason"] == "the event log has its outcome" for row in rows)
    queue = open_queue(config)  # and it starts as usual afterwards
    assert not waiting(queue)
    await queue.close()


@STORES
async def test_a_queue_that_lost_its_newest_writes(directory: Path, store: str) -> None:
    """The same boot, but the events of the log are neither exported nor waiting."""
    config = configured(directory, store)
    await life(config, "a@x.example")
    queue = open_queue(config)
    exported = int(queue.store.get(keys.META_EXPORTED) or b"", 16)
    older = b"%x" % (exported - 1)
    queue.store.write(queue.store.batch([(keys.META_EXPORTED, older)], sync=True))
    await queue.close()
    with pytest.raises(LocalError, match="older than its event log"):
        open_queue(config, access=Access.EXISTING)


@STORES
async def test_an_interrupted_export_is_not_an_older_queue(
    directory: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are in the log and still in the outbox: a crash, not a restore."""
    config = configured(directory, store)
    queue = open_queue(config)
    await queue.recover()
    exporter = Exporter(queue, config.events)
    await accept(queue, "a@x.example")
    await exporter._export()
    await accept(queue, "b@x.example")

    async def die(_: object) -> None:
        raise OSError("the process ends here")

    monkeypatch.setattr(exporter, "_delete", die)
    with pytest.raises(OSError, match="ends here"):
        await exporter._export()
    assert exporter._segment is not None
    exporter._segment.leave()
    await queue.close()
    await life(config, "c@x.example")
    assert sorted(identities(directory).values()) == [1, 1, 1]


def test_a_file_of_the_same_name_stays(directory: Path) -> None:
    paths = []
    for text in (b'{"seq":5}\n', b'{"seq":5,"x":1}\n'):
        segment = Segment(directory, "abcdef", 5)
        segment.append(text, 5)
        path = segment.seal(NOW_MS)
        assert path is not None
        paths.append(path)
    assert [path.name for path in paths] == [
        "abcdef-0000000000000005.jsonl.zst", "abcdef-0000000000000005-2.jsonl.zst",
    ]  # fmt: skip
    assert [len(next(read_segment(path))) for path in paths] == [1, 2]


def test_a_crash_between_the_two_names(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has its final name and the hidden one: the next start removes the hidden one."""
    segment = Segment(directory, "abcdef", 5)
    segment.append(b'{"seq":5}\n', 5)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _die)
        with pytest.raises(OSError, match="ends here"):
            segment.seal(NOW_MS)
    assert recover(directory, "abcdef") == {5}
    seal_recovered(directory, "abcdef", NOW_MS)
    assert len(sealed_segments(directory)) == 1
    assert list(directory.glob(".*")) == []
    assert read_trailer(sealed_segments(directory)[0]).records == 1


def _die(*_: object, **__: object) -> None:
    raise OSError("the process ends here")
