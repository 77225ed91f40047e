"""The export is interrupted at each step, and so is the start after it: each record is in the log once.

The open segment has two frames. A second export of the first frame would get the same file name and
replace the segment, which hides the repeat.
"""

import asyncio
from collections import Counter
from pathlib import Path
from threading import Event

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, opened
from zonemta_py.config.schema import Events, Rotate
from zonemta_py.config.values import Seconds, Size
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.queue import outbox
from zonemta_py.queue.format import keys
from zonemta_py.queue.outbox import Exporter
from zonemta_py.queue.queue import Queue

STORES = pytest.mark.parametrize("store", ["leveldb", "filesystem"])
DEAD = OSError("the process ends here")


def _settings(directory: Path) -> Events:
    return Events(directory / "events", Rotate(Size(1 << 20), Seconds(3600)))


def _records(directory: Path) -> Counter[tuple[int, int]]:
    sealed = sealed_segments(directory / "events")
    return Counter((r["seq"], r["position"]) for path in sealed for r in read_segment(path))


def _outbox(queue: Queue) -> list[bytes]:
    return list(queue.store.keys(keys.OUTBOX, keys.end_of(keys.OUTBOX)))


async def _die(*_: object) -> None:
    raise DEAD


def _dead(exporter: Exporter) -> None:
    """Close the files of ``exporter`` without finishing anything."""
    if exporter._segment is not None:
        exporter._segment._file.close()
    if exporter._task is not None:
        exporter._task.cancel()
    exporter._thread.shutdown()


async def _first_boot(directory: Path, store: str) -> None:
    """Two frames are in an open segment; the keys of the second are in the outbox."""
    async with opened(directory / "queue", Clock(), store=store) as queue:
        exporter = Exporter(queue, _settings(directory))
        await accept(queue, "a@x.example")
        await exporter._export()
        await accept(queue, "b@x.example")
        with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="ends here"):
            patch.setattr(exporter, "_delete", _die)
            await exporter._export()
        _dead(exporter)


async def _last_boot(directory: Path, store: str, records: int = 3) -> None:
    """Accept a third message, export, and stop in order."""
    async with opened(directory / "queue", Clock(), store=store) as queue:
        await accept(queue, "c@x.example")
        exporter = Exporter(queue, _settings(directory))
        await exporter.start()
        await until(lambda: not _outbox(queue), "the outbox to empty")
        await exporter.close()
    assert sorted(_records(directory).values()) == [1] * records


async def test_the_end_waits_for_events_that_are_being_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk: the last event is on its way to the queue when the exporter is closed."""
    async with opened(directory / "queue", Clock()) as queue:
        exporter = Exporter(queue, _settings(directory))
        await exporter.start()
        released, write = Event(), queue.store.write
        monkeypatch.setattr(queue.store, "write", lambda batch: released.wait() and write(batch))
        accepting = asyncio.create_task(accept(queue, "a@x.example"))
        await until(lambda: queue.commits._group, "the write")
        closing = asyncio.create_task(exporter.close())
        await until(lambda: exporter._task is not None and exporter._task.done(), "the end of the task")
        await asyncio.sleep(0)
        released.set()
        await asyncio.gather(accepting, closing)
        assert _outbox(queue) == []
    assert sorted(_records(directory).values()) == [1]


@STORES
@pytest.mark.parametrize("step", ["before the keys are deleted", "before the seal"])
async def test_the_start_that_finishes_it_ends_too(
    directory: Path, store: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _first_boot(directory, store)
    async with opened(directory / "queue", Clock(), store=store) as queue:
        exporter = Exporter(queue, _settings(directory))
        with monkeypatch.context() as patch:
            if step == "before the seal":
                patch.setattr(outbox, "seal_recovered", _unable)
            else:
                patch.setattr(exporter, "_delete", _die)
            await exporter.start()
            _dead(exporter)
        assert not exporter._recovered
    await _last_boot(directory, store)


def _unable(*_: object) -> None:
    raise DEAD


@STORES
async def test_a_relay_that_cannot_start_exports_nothing_at_its_end(
    directory: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write the records of the open segment a second time."""
    await _first_boot(directory, store)
    async with opened(directory / "queue", Clock(), store=store) as queue:
        exporter = Exporter(queue, _settings(directory))
        monkeypatch.setattr(exporter, "_delete", _die)
        await exporter.start()
        monkeypatch.undo()
        await exporter.close()
    await _last_boot(directory, store)


@STORES
@pytest.mark.parametrize("doubtful", [True, False])
async def test_a_queue_that_cannot_be_written_leaves_a_doubtful_segment_open(
    directory: Path, store: str, doubtful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outbox may still hold its records, so the next start must read it."""
    async with opened(directory / "queue", Clock(), store=store) as queue:
        exporter = Exporter(queue, _settings(directory))
        await exporter.start()
        await accept(queue, "a@x.example")
        await until(lambda: exporter._segment and not _outbox(queue), "the first frame")
        if doubtful:
            await accept(queue, "b@x.example")
        monkeypatch.setattr(queue.store, "write", _full)
        if not doubtful:
            with pytest.raises(QueueUnavailable):
                await accept(queue, "b@x.example")
        await until(lambda: queue.commits.failure, "the failure")
        await exporter.close()
        assert (sealed_segments(directory / "events") == []) == doubtful
    await _last_boot(directory, store, 3 if doubtful else 2)


def _full(_: object) -> None:
    raise QueueUnavailable("no space left on the queue's disk")


async def test_a_log_that_could_not_be_read_at_the_start_is_written_at_the_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk answers again between two tries. Seed 33221."""
    await _first_boot(directory, "leveldb")
    async with opened(directory / "queue", Clock()) as queue:
        exporter = Exporter(queue, _settings(directory))
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "recover", _refuse)
            await exporter.start()
            await asyncio.sleep(0)
        await accept(queue, "c@x.example")
        await exporter.close()
        assert not _outbox(queue)
    assert sorted(_records(directory).values()) == [1] * 3


def _refuse(*_: object) -> None:
    raise OSError("Input/output error")
