"""Segments that cannot be created or sealed for a while: the export goes on, and nothing is missing."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, opened
from zonemta_py.config.schema import Events, Rotate
from zonemta_py.config.values import Seconds, Size
from zonemta_py.core import clock
from zonemta_py.events import segments
from zonemta_py.events.log import gaps, read_log
from zonemta_py.events.segment_reading import open_segments, read_segment, sealed_segments
from zonemta_py.events.segments import Segment
from zonemta_py.queue import outbox
from zonemta_py.queue.outbox import Exporter

NOW_MS = 1_795_600_000_000
NODE = "abcdef"
LINES = b'{"node":"abcdef","seq":1,"position":0,"event":"test"}\n'


class Broken:
    """Calls of a function fail while ``times`` is above 0."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: object, name: str, times: int) -> None:
        self.times = times
        self._function = getattr(owner, name)
        patch.setattr(owner, name, self)

    def __call__(self, *args: object) -> object:
        if self.times > 0:
            self.times -= 1
            raise OSError(24, "Too many open files")
        return self._function(*args)


def test_a_name_that_cannot_be_synced_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Broken(monkeypatch, segments, "sync_directory", 1)
    with pytest.raises(OSError, match="Too many"):
        Segment(tmp_path, NODE, 1)
    assert list(tmp_path.iterdir()) == []
    Segment(tmp_path, NODE, 1).leave()


@pytest.mark.parametrize("function", ["_write", "_link", "sync_directory"])
def test_a_seal_is_tried_again(
    tmp_path: Path, function: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever step fails, the next call does the rest: one file, with one trailer, in the hour of its name."""
    segment = Segment(tmp_path, NODE, 1)
    segment.append(LINES, 1)
    Broken(monkeypatch, segments, function, 2)
    for hour in range(2):
        with pytest.raises(OSError, match="Too many"):
            segment.seal(NOW_MS + hour * 3_600_000)
    path = segment.seal(NOW_MS + 2 * 3_600_000)
    assert sealed_segments(tmp_path) == [path]
    assert path is not None
    assert [record["seq"] for record in read_segment(path)] == [1]
    assert open_segments(tmp_path, NODE) == []
    assert caplog.text == ""


def test_the_rest_of_a_failed_write_is_cut_off(tmp_path: Path) -> None:
    segment = Segment(tmp_path, NODE, 1)
    segment.append(LINES, 1)
    segment._file.write(b"torn")
    path = segment.seal(NOW_MS)
    assert path is not None
    assert len(list(read_segment(path))) == 1


def _settings(directory: Path) -> Events:
    return Events(directory / "events", Rotate(Size(1), Seconds(3600)))  # a segment for each frame


def test_an_unsealed_segment_between_others_is_no_gap(tmp_path: Path) -> None:
    for seq in (1, 2, 3):
        segment = Segment(tmp_path, NODE, seq, seq - 1)
        segment.append(LINES.replace(b"1", b"%d" % seq), seq)
        if seq == 2:
            segment.leave()
        else:
            segment.seal(NOW_MS)
    assert list(gaps(tmp_path, {NODE: 3})) == []
    assert len(list(gaps(tmp_path, {NODE: 4}))) == 1
    open_segments(tmp_path, NODE)[0].unlink()
    assert len(list(gaps(tmp_path, {NODE: 3}))) == 1


async def test_the_export_goes_on_and_the_seal_follows(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "RETRY_S", 0.05)
    events = directory / "events"
    async with opened(directory / "queue", Clock()) as queue:
        exporter = Exporter(queue, _settings(directory))
        await exporter.start()
        broken = Broken(monkeypatch, segments, "_link", 1 << 30)
        for number in (1, 2):
            await accept(queue, "a@x.example")
            await until(lambda wanted=number: len(exporter._ended) == wanted, "the export")
        problems: list[str] = []
        assert len(list(read_log(events, problems))) == 2
        assert [*problems, *gaps(events, {queue.node: exporter._exported})] == []
        broken.times = 0
        await until(lambda: len(sealed_segments(events)) == 2, "the seal, without another event")
        await exporter.close()
    assert "is tried again" in caplog.text


@pytest.mark.parametrize("works", [True, False])
async def test_the_stop_tries_it_once_more(
    directory: Path, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = directory / "events"
    async with opened(directory / "queue", Clock()) as queue:
        exporter = Exporter(queue, _settings(directory))
        await exporter.start()
        broken = Broken(monkeypatch, segments, "_link", 1 << 30)
        await accept(queue, "a@x.example")
        await until(lambda: exporter._ended, "the export")
        broken.times = 0 if works else 1 << 30
        await exporter.close()
        assert (len(sealed_segments(events)), len(open_segments(events, queue.node))) == (
            (1, 0) if works else (0, 1)
        )
        broken.times = 0
        exporter = Exporter(queue, _settings(directory))
        await exporter.start()
        await exporter.close()
        assert len(sealed_segments(events)) == 1
        assert open_segments(events, queue.node) == []


async def test_a_removed_segment_is_given_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(directory / "queue", Clock()) as queue:
        exporter = Exporter(queue, _settings(directory))
        await exporter.start()
        Broken(monkeypatch, segments, "_link", 1)
        await accept(queue, "a@x.example")
        await until(lambda: exporter._seal_at_s, "the first attempt")
        open_segments(directory / "events", queue.node)[0].unlink()
        await exporter._seal_ended(now=True)
        assert exporter._ended == []
        await exporter.close()
    assert "was removed before it was sealed" in caplog.text


async def test_a_clock_that_is_set_back_delays_no_seal(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Events(directory / "events", Rotate(Size(1 << 20), Seconds(0.01)))
    async with opened(directory / "queue", Clock()) as queue:
        exporter = Exporter(queue, settings)
        await exporter.start()
        monkeypatch.setattr(clock, "now_ms", lambda: NOW_MS)
        await accept(queue, "a@x.example")
        await until(lambda: exporter._segment or sealed_segments(directory / "events"), "the export")
        monkeypatch.setattr(clock, "now_ms", lambda: NOW_MS - 172_800_000)
        await until(lambda: sealed_segments(directory / "events"), "the seal")
        await exporter.close()
