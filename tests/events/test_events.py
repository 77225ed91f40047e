"""Events: their JSON, their segments, and that each reaches the log exactly once."""

import asyncio
import os
from pathlib import Path

import pytest
import zstandard

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, begin, lease, make_queue, opened, settle
from zonemta_py.config.schema import Events, Rotate
from zonemta_py.config.values import Seconds, Size
from zonemta_py.core.codec import from_json
from zonemta_py.core.model import OutcomeKind
from zonemta_py.events.accounting import RecipientHistory, read_history
from zonemta_py.events.recovery import recover, seal_recovered
from zonemta_py.events.schema import EVENTS, Rejected, encode, identify
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.events.segments import Segment
from zonemta_py.queue.format import keys
from zonemta_py.queue.outbox import Exporter

NOW_MS = 1_795_248_000_000  # 2026-11-21 08:00 UTC


def _lines(first: int, count: int) -> bytes:
    return b"".join(
        b'{"node":"abcdef","seq":%d,"position":0,"event":"x"}\n' % n for n in range(first, first + count)
    )


def test_an_event_is_one_json_object() -> None:
    event = Rejected(
        time_ms=5,
        listener="l",
        client_ip="c",
        helo='h"\n',
        user="",
        tenant="",
        command="MAIL",
        sender="",
        recipient="",
        code=550,
        reply="no",
    )
    lines = identify("abcdef", 7, [encode(event), encode(event)]).splitlines()
    assert [from_json(line)["position"] for line in lines] == [0, 1]
    assert list(from_json(lines[0]))[:5] == ["node", "seq", "position", "event", "time_ms"]
    assert from_json(lines[0])["helo"] == 'h"\n'
    assert len({kind.name for kind in EVENTS}) == len(EVENTS)


def test_segments_appear_whole(directory: Path) -> None:
    """Hidden while written, then under date and hour; several frames, read by any zstd reader."""
    segment = Segment(directory, "abcdef", 10)
    segment.append(_lines(10, 3), 12)
    assert sealed_segments(directory) == []
    segment.append(_lines(13, 2), 14)
    sealed = segment.seal(NOW_MS)
    assert sealed == directory / "date=2026-11-21/hour=08/abcdef-000000000000000a.jsonl.zst"
    assert [r["seq"] for r in read_segment(sealed)] == [10, 11, 12, 13, 14]
    with zstandard.open(sealed, "rt") as file:
        assert file.readline().startswith('{"node"')
    assert list(directory.glob(".*")) == []


@pytest.mark.parametrize("torn", [0, 1, 5, 20])
def test_a_crash_tears_at_most_the_last_frame(directory: Path, torn: int) -> None:
    segment = Segment(directory, "abcdef", 1)
    segment.append(_lines(1, 3), 3)
    whole = segment.size_bytes
    segment.append(_lines(4, 3), 6)
    path = next(directory.glob(".abcdef-*.open"))
    segment._file.close()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - torn])
    found = set(range(1, 7 if torn == 0 else 4))
    assert [recover(directory, "abcdef") for _ in range(2)] == [found] * 2
    assert sealed_segments(directory) == []
    seal_recovered(directory, "abcdef", NOW_MS)
    assert [r["seq"] for r in read_segment(sealed_segments(directory)[0])] == list(
        range(1, 7 if torn == 0 else 4)
    )
    assert whole > 0
    path.write_bytes(b"")
    assert recover(directory, "abcdef") == set()
    assert not path.exists()


@pytest.mark.parametrize("restarts_after_ms", [0, 3_600_000])
def test_a_crash_before_a_sealed_segment_loses_its_hidden_name(
    directory: Path, restarts_after_ms: int
) -> None:
    """The next start does not seal its records once more, in the same hour or in another."""
    segment = Segment(directory, "abcdef", 1)
    segment.append(_lines(1, 3), 3)
    sealed = segment.seal(NOW_MS)
    assert sealed is not None
    hidden = directory / ".abcdef-0000000000000001.open"
    hidden.hardlink_to(sealed)
    assert recover(directory, "abcdef") == {1, 2, 3}
    seal_recovered(directory, "abcdef", NOW_MS + restarts_after_ms)
    assert sealed_segments(directory) == [sealed]
    assert [record["seq"] for record in read_segment(sealed)] == [1, 2, 3]
    assert not hidden.exists()


async def test_every_event_once_also_when_the_relay_dies_between_log_and_outbox(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of an exported frame are still there: the next run deletes them, and nothing twice."""
    clock, settings = Clock(), Events(directory / "events", Rotate(Size(1 << 20), Seconds(3600)))
    queue = make_queue(directory / "queue", clock)
    await begin(queue)
    for n in range(5):
        await accept(queue, f"a{n}@x.example")
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
    exporter = Exporter(queue, settings)

    async def die(last: bytes) -> None:
        raise OSError("the process ends here")

    monkeypatch.setattr(exporter, "_delete", die)
    with pytest.raises(OSError, match="ends here"):
        await exporter._export()
    assert exporter._segment is not None
    exporter._segment._file.close()
    await queue.close()

    async with opened(directory / "queue", clock) as queue:
        await accept(queue, "b@x.example")
        exporter = Exporter(queue, settings)
        await exporter.start()
        await until(
            lambda: not list(queue.store.keys(keys.OUTBOX, keys.end_of(keys.OUTBOX))),
            "the outbox to empty",
        )
        await exporter.close()
    records = [r for path in sealed_segments(directory / "events") for r in read_segment(path)]
    assert len(records) == 11
    assert len({(r["node"], r["seq"], r["position"]) for r in records}) == 11
    account = read_history(directory / "events")
    assert (account.total("accepted"), account.queued("default")) == (6, 1)


async def test_a_log_that_cannot_be_written_keeps_events_in_the_queue(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC on the event log: nothing is lost, and it goes on when there is room again."""
    from zonemta_py.queue import outbox as export

    monkeypatch.setattr(export, "RETRY_S", 0.05)
    full, real = [True], os.fsync

    def fsync(handle: int) -> None:
        if full[0]:
            raise OSError(28, "No space left on device")
        real(handle)

    async with opened(directory / "queue") as queue:
        monkeypatch.setattr(os, "fsync", fsync)
        seen: list[bytes] = []
        settings = Events(directory / "events", Rotate(Size(1 << 20), Seconds(0.2)))
        exporter = Exporter(queue, settings, [seen.append])
        await exporter.start()
        await accept(queue, "a@x.example")
        for _ in range(30):
            await asyncio.sleep(0)
        assert seen == []
        full[0] = False
        await until(lambda: seen, "the export to go on")
        await until(lambda: sealed_segments(directory / "events"), "a seal by age")
        await exporter.close()
    assert read_history(directory / "events").total("accepted") == 1


def test_the_account_counts_a_repeat_once() -> None:
    record = {
        "node": "n",
        "time_ms": 1,
        "seq": 1,
        "position": 0,
        "event": "accepted",
        "report_for": "",
        "message": "m",
        "recipients": [{"index": n, "recipient": f"{n}@x.example", "zone": "z"} for n in range(3)],
    }
    account = RecipientHistory()
    account.add(record)
    account.add(record)
    account.add(
        {
            "node": "n",
            "time_ms": 1,
            "seq": 2,
            "position": 0,
            "event": "moved",
            "zone": "z",
            "new_zone": "y",
            "message": "m",
            "recipients": [0],
        }
    )
    final = {"node": "n", "time_ms": 1, "seq": 3, "position": 0, "event": "delivered", "zone": "z"}
    account.add({**final, "message": "m", "index": 1})
    assert (account.queued("z"), account.queued("y"), account.total("accepted")) == (1, 1, 3)
