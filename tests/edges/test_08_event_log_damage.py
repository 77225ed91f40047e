"""8. Damage of the event log is named and never stops mail: flipped bits, cut and missing segments."""

import random
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import accept
from tests.kit.segments import of_earlier_version
from tests.kit.servers import queue_settings
from zonemta_py.config.schema import Config, Events, Rotate
from zonemta_py.config.values import Seconds, Size
from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.events.log import gaps, read_log
from zonemta_py.events.recovery import last_seq, recover, seal_recovered, sealed_seqs
from zonemta_py.events.schema import first_seq
from zonemta_py.events.segment_reading import open_segments, read_segment, read_trailer, sealed_segments
from zonemta_py.events.segments import Segment
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.outbox import Exporter

NODE = "abcdef"
NOW_MS = 1_795_248_000_000


def lines(first: int, count: int) -> bytes:
    return b"".join(
        b'{"node":"abcdef","seq":%d,"position":0,"event":"x","text":"%032x"}\n'
        % (n, random.getrandbits(128))
        for n in range(first, first + count)
    )


def sealed(directory: Path, first: int, frames: int, previous: int = 0) -> Path:
    """A segment of ``frames`` frames of ten records, by the relay's own writer."""
    segment = Segment(directory, NODE, first, previous)
    for start in range(first, first + 10 * frames, 10):
        segment.append(lines(start, 10), start + 9)
    path = segment.seal(NOW_MS)
    assert path is not None
    return path


def read_all(path: Path) -> list[int]:
    return [record["seq"] for record in read_segment(path)]


def test_every_flipped_bit_is_found(directory: Path) -> None:
    """No other record and no silence, wherever in the file it is."""
    path = sealed(directory, 1, 3)
    whole, choice = path.read_bytes(), random.Random(5)
    for at in {*range(40), *(choice.randrange(len(whole)) for _ in range(200)), len(whole) - 1}:
        data = bytearray(whole)
        data[at] ^= 1 << choice.randrange(8)
        path.write_bytes(data)
        records: list[int] = []
        with pytest.raises(SegmentDamaged, match=path.name):
            records.extend(record["seq"] for record in read_segment(path))
        assert records == list(range(1, len(records) + 1))


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_cut_segment_is_named(directory: Path, part: float) -> None:
    path = sealed(directory, 1, 3)
    sealed(directory, 31, 1, previous=30)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    problems: list[str] = []
    records = list(read_log(directory, problems))
    assert len(records) < 40
    problems += gaps(directory, {})
    assert any(str(path) in text for text in problems)


def test_a_cut_between_two_frames(directory: Path) -> None:
    """All that is left is whole, but for the trailer: the records are read, and the cut is named."""
    path = sealed(directory, 1, 3)
    data = path.read_bytes()
    for end, count in ((data.find(b"\x28\xb5\x2f\xfd", 10), 10), (-80, 30)):
        path.write_bytes(data[:end])
        problems: list[str] = []
        assert [record["seq"] for record in read_log(directory, problems)] == list(range(1, count + 1))
        assert problems == [f"{path}: its end is missing"]
    with pytest.raises(SegmentDamaged):
        read_trailer(path)


@pytest.mark.parametrize("cut", [80, 83])
def test_gaps_beside_a_cut_segment(directory: Path, cut: int) -> None:
    """What can be read of it is not missing, also when it is the only one; what was cut off is."""
    paths = [sealed(directory, first, 2, previous=first - 1) for first in (1, 21, 41)]
    whole = [path.read_bytes() for path in paths]
    for number, end in ((1, 40), (2, 60)):
        paths[number].write_bytes(whole[number][:-cut])
        found = list(gaps(directory, {NODE: 60}))
        assert len(found) == (cut > 80), found
        assert all(f"{end - 10:016x}" in text for text in found)
        paths[number].write_bytes(whole[number])
    paths[0].write_bytes(whole[0][:-cut])
    for path in paths[1:]:
        path.unlink()
    assert len(list(gaps(directory, {NODE: 20}))) == (cut > 80)
    paths[0].write_bytes(whole[0][:20])
    assert len(list(gaps(directory, {NODE: 20}))) == 1  # nothing of it can be read


@pytest.mark.parametrize("cut", [80, 83])
def test_what_a_cut_segment_has_is_not_exported_again(directory: Path, cut: int) -> None:
    path = sealed(directory, 1, 3)
    path.write_bytes(path.read_bytes()[:-cut])
    assert sealed_seqs(directory, NODE, 5) == set(range(5, 31 if cut == 80 else 21))


@pytest.mark.parametrize("cut", [1, 80, 81, 250])
def test_a_start_behind_a_cut_segment(directory: Path, cut: int) -> None:
    """What is readable counts, so that no number is given again; the open segment is sealed all the same."""
    path = sealed(directory, 1, 3)
    path.write_bytes(path.read_bytes()[:-cut])
    assert last_seq(directory, NODE) == (30 if cut <= 80 else 20)
    following = Segment(directory, NODE, 31, 30)
    following.append(lines(31, 10), 40)
    following.leave()
    assert recover(directory, NODE) == set(range(31, 41))
    seal_recovered(directory, NODE, NOW_MS)
    assert [read_all(each) for each in sealed_segments(directory) if each != path] == [
        list(range(31, 41))
    ]


@pytest.mark.parametrize("trailers", [True, False])
def test_a_removed_segment_is_named(directory: Path, trailers: bool) -> None:
    """With the trailers of this version, and by the numbers of an earlier one's."""
    paths = [sealed(directory, first, 1, previous=first - 1) for first in (1, 11, 21)]
    if not trailers:
        for path in paths:
            path.write_bytes(of_earlier_version(path.read_bytes()))
            assert read_trailer(path).records == 10
    assert list(gaps(directory, {NODE: 30})) == []
    paths[1].unlink()
    [gap] = gaps(directory, {NODE: 30})
    assert gap.startswith(str(paths[2]))


def test_a_new_boot_and_removed_old_segments_are_no_gap(directory: Path) -> None:
    old, new = first_seq(7), first_seq(8)
    sealed(directory, old + 50, 1, previous=old + 49)  # older ones were removed
    sealed(directory, new, 1, previous=old + 59)
    assert list(gaps(directory, {NODE: new + 9})) == []


@pytest.mark.parametrize("at", ["middle", "last frame", "json"])
def test_damage_in_the_open_segment(directory: Path, at: str, caplog: pytest.LogCaptureFixture) -> None:
    """What is whole is kept, what is not is logged and kept aside; the log goes on."""
    segment = Segment(directory, NODE, 1)
    ends = []
    for start in (1, 11, 21):
        segment.append(lines(start, 10) if at != "json" or start != 11 else b"{torn\n", start + 9)
        ends.append(segment.size_bytes)
    segment.leave()
    [path] = open_segments(directory, NODE)
    data = bytearray(path.read_bytes())
    if at != "json":
        data[(ends[0] + ends[1]) // 2 if at == "middle" else ends[2] - 20] ^= 4
    path.write_bytes(data)
    expected = {*range(1, 11), *range(21, 31)} if at != "last frame" else set(range(1, 21))
    assert last_seq(directory, NODE) == max(expected)
    assert recover(directory, NODE) == recover(directory, NODE) == expected
    seal_recovered(directory, NODE, NOW_MS)
    whole = sealed_segments(directory)
    assert [seq for path in whole for seq in read_all(path)] == sorted(expected)
    assert len(whole) == (1 if at == "last frame" else 2), "a segment for each part"
    named = list(gaps(directory, {NODE: 20 if at == "last frame" else 30}))
    assert [f"{10:016x} and {21:016x}" in text for text in named] == [True] * (len(whole) - 1)
    kept = list(directory.glob(".*.damaged"))
    assert [file.read_bytes() for file in kept] == ([] if at == "last frame" else [bytes(data)])
    assert ("is damaged; it is kept" in caplog.text) == bool(kept)


async def test_mail_does_not_wait_for_a_damaged_log(directory: Path) -> None:
    """Garbage in the open segment: the relay starts, and exports what comes."""
    config = Config(
        listeners=(),
        queue=queue_settings(directory / "queue", "leveldb"),
        events=Events(directory / "events", Rotate(Size(1 << 20), Seconds(3600))),
    )
    queue = open_queue(config)
    (directory / "events").mkdir()
    (directory / "events" / f".{queue.node}-{5:016x}.open").write_bytes(b"\x28\xb5\x2f\xfd garbage")
    await queue.recover()
    exporter = Exporter(queue, config.events)
    await exporter.start()
    await accept(queue, "a@x.example")
    await until(lambda: exporter._exported, "the export")
    await exporter.close()
    await queue.close()
    problems: list[str] = []
    assert [record["event"] for record in read_log(directory / "events", problems)] == ["accepted"]
    assert problems == []


async def test_a_shortened_log_is_said_at_the_start(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(
        listeners=(),
        queue=queue_settings(directory / "queue", "leveldb"),
        events=Events(directory / "events", Rotate(Size(1), Seconds(3600))),  # a segment for each frame
    )
    for name in "abc":
        queue = open_queue(config)
        await queue.recover()
        exporter = Exporter(queue, config.events)
        await exporter.start()
        await accept(queue, f"{name}@x.example")
        await exporter.close()
        await queue.close()
        if name == "b":
            assert "see zonemta audit" not in caplog.text
            sealed_segments(directory / "events")[-1].unlink()
    assert "see zonemta audit" in caplog.text
    assert len(list(gaps(directory / "events", {}))) == 1
