"""8. A start does not make a damaged event log valid; audit, history and export say what is gone; retention goes by number."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.kit.deadlines import until
from tests.kit.queue import accept, lease, settle
from tests.kit.segments import of_earlier_version
from tests.kit.shared_relays import shared_storage
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import run_operation
from zonemta_py.admin.relay_port import RunningRelay
from zonemta_py.admin.requests import HistoryRequest
from zonemta_py.cli.main import main
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.config.values import Keep
from zonemta_py.core.clock import now_ms
from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.core.model import OutcomeKind
from zonemta_py.events.history import missing_events
from zonemta_py.events.log import Needed, gaps, read_extent, read_log, remove_old
from zonemta_py.events.recovery import recover, seal_recovered
from zonemta_py.events.schema import first_seq
from zonemta_py.events.segment_reading import (
    by_number,
    open_segments,
    read_segment,
    sealed_segments,
    verify_segment,
)
from zonemta_py.events.segments import Segment
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.format import keys
from zonemta_py.queue.outbox import Exporter
from zonemta_py.queue.upkeep.transfer import export_queue, import_queue
from zonemta_py.storage.interface import Access
from zonemta_py.storage.open import open_store

NODE = "abcdef"
NOW_MS = 1_795_248_000_000


def configured(directory: Path, name: str = "relay", **changes: Any) -> Config:
    document = {
        "queue": {"directory": f"queue-{name}", "min_free_disk": "1MiB"},
        "events": {"directory": "events", "rotate": {"size": "1GiB", "age": "1h"}},
        "listeners": [{"address": "127.0.0.1:0"}], "admin": {"address": None}, **changes,
    }  # fmt: skip
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return parse_config(path.read_text(), path)


async def life(config: Config, *addresses: str, killed: bool = False, deliver: bool = False) -> str:
    """One start: accept a message for each address, a frame each; returns the node. ``killed``: nothing is sealed."""
    queue = open_queue(config)
    await queue.recover()
    exporter = Exporter(queue, config.events)
    await exporter._recover()
    await queue.begin()
    for address in addresses:
        await accept(queue, address)
        await exporter._export()
        if deliver:
            await settle(queue, lease(queue, address.partition("@")[2]), OutcomeKind.DELIVERED)
            await exporter._export()
    if killed and exporter._segment is not None:
        exporter._segment.leave()
    elif not killed:
        await exporter._seal_if_due(now=True)
    exporter._thread.shutdown()
    await queue.close()
    return queue.node


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, list(arguments))


async def audit(directory: Path, *names: str) -> Result:
    paths = [f"-c{directory / name}.yaml" for name in names or ("relay",)]
    return await run("audit", *paths)


def frames(path: Path) -> list[int]:
    data, found, at = path.read_bytes(), [], 0
    while (at := data.find(b"\x28\xb5\x2f\xfd", at)) >= 0:
        found.append(at)
        at += 1
    return found


def flip(path: Path, frame: int) -> None:
    data, starts = bytearray(path.read_bytes()), frames(path)
    data[starts[frame] + 30] ^= 4
    path.write_bytes(data)


def zero(path: Path, frame: int) -> None:
    data, starts = bytearray(path.read_bytes()), [*frames(path), path.stat().st_size]
    data[starts[frame] : starts[frame + 1]] = bytes(starts[frame + 1] - starts[frame])
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [flip, zero])
@pytest.mark.parametrize("frame", [0, 1, 3])
async def test_a_start_does_not_make_damage_valid(
    directory: Path, harm: Callable[[Path, int], None], frame: int
) -> None:
    """Whichever frame of the unsealed segment it is, also the first and the last: it is named before the start and ever after."""
    config = configured(directory)
    node = await life(config, *(f"u{n}@x.example" for n in range(4)), killed=True)
    [path] = open_segments(directory / "events", node)
    original = path.read_bytes()
    harm(path, frame)
    damaged = path.read_bytes()
    assert damaged != original
    problems = [(await audit(directory)).output]
    for _ in range(2):
        await life(config, "later@x.example")
        problems.append((await audit(directory)).output)
    expected = "and events were written up to" if frame == 3 else "are missing"
    assert expected in problems[0]
    for text in problems[1:]:
        assert f"of node {node} are missing" in text
        assert "every recipient is accounted for" not in text
    kept = list((directory / "events").glob(".*.damaged"))
    assert [each.read_bytes() for each in kept] == [damaged]
    exported = await run("export", "-c", str(directory / "relay.yaml"), "--format", "kumomta")
    assert exported.exit_code == 1
    assert "are missing" in exported.stderr
    assert len(exported.stdout.splitlines()) == 5  # of the damaged segment and of two starts


async def test_an_undamaged_segment_stays_as_it_is(directory: Path) -> None:
    """A torn end, which a crash leaves, is no damage; frames of two boots in one segment neither."""
    config = configured(directory)
    node = await life(config, "a@x.example", killed=True)
    [path] = open_segments(directory / "events", node)
    path.write_bytes(path.read_bytes() + b"\x28\xb5\x2f\xfdtorn")
    await life(config, "b@x.example", killed=True)
    await life(config, "c@x.example")
    assert "every recipient is accounted for" in (await audit(directory)).output
    assert list((directory / "events").glob(".*.damaged")) == []


def lines(first: int, count: int) -> bytes:
    return b"".join(
        b'{"node":"abcdef","seq":%d,"position":0,"event":"x","text":"%s"}\n' % (n, os.urandom(8).hex().encode() * 40)
        for n in range(first, first + count)
    )  # fmt: skip


def test_damage_between_two_boots(directory: Path) -> None:
    """The first number of a boot does not say what was before it: the bytes do."""
    boots = (first_seq(1), first_seq(2), first_seq(3))
    segment = Segment(directory, NODE, boots[0])
    for first in boots:
        segment.append(lines(first, 5), first + 4)
    segment.leave()
    [path] = open_segments(directory, NODE)
    zero(path, 1)
    assert len(list(gaps(directory, {}))) == 1
    recover(directory, NODE, boots[2] + 4)
    seal_recovered(directory, NODE, NOW_MS)
    assert len(sealed_segments(directory)) == 2
    assert len(list(gaps(directory, {}))) == 1


@pytest.mark.parametrize(("exported", "is_damaged"), [(4, False), (5, True)])
def test_a_first_frame_that_is_torn(
    directory: Path, caplog: pytest.LogCaptureFixture, exported: int, *, is_damaged: bool
) -> None:
    """A power cut does that, unless the queue knows that the frame was on disk: what is in front of it is in other segments."""
    one = Segment(directory, NODE, 1)
    one.append(lines(1, 4), 4)
    one.seal(NOW_MS)
    two = Segment(directory, NODE, 5, 4)
    two.append(lines(5, 1), 5)
    two.leave()
    [path] = open_segments(directory, NODE)
    os.truncate(path, path.stat().st_size // 2)
    assert recover(directory, NODE, exported) == set()
    assert bool(list(directory.glob(".*.damaged"))) == is_damaged
    assert bool(caplog.records) == is_damaged
    assert not open_segments(directory, NODE)


def test_a_removed_segment_in_front_of_an_unsealed_one(directory: Path) -> None:
    """Its name says what is before it."""
    one = Segment(directory, NODE, first_seq(1))
    one.append(lines(first_seq(1), 5), first_seq(1) + 4)
    sealed = one.seal(NOW_MS)
    assert sealed is not None
    two = Segment(directory, NODE, first_seq(2), first_seq(1) + 9)  # of a segment that is gone
    two.append(lines(first_seq(2), 5), first_seq(2) + 4)
    two.leave()
    assert len(list(gaps(directory, {}))) == 1
    recover(directory, NODE)
    seal_recovered(directory, NODE, NOW_MS)
    assert len(list(gaps(directory, {}))) == 1


def test_what_an_earlier_version_sealed_with_a_gap(directory: Path) -> None:
    """Its starts put the frames that could be read into one segment."""
    segment = Segment(directory, NODE, 1)
    segment.append(lines(1, 5), 5)
    segment.append(lines(11, 5), 15)
    path = segment.seal(NOW_MS)
    assert path is not None
    problems: list[str] = []
    assert len(list(read_log(directory, problems))) == 10
    assert [text.partition(": ")[2] for text in problems] == [
        f"events between {5:016x} and {11:016x} of node {NODE} are missing"
    ]


@pytest.mark.parametrize("is_one_frame", [False, True])
@pytest.mark.parametrize("has_trailer", [False, True])
def test_the_rows_of_a_sealed_segment(directory: Path, is_one_frame: bool, has_trailer: bool) -> None:
    """The check of a whole segment, as jobs make it, sees the gap, too. Two boots one behind the other are none."""
    second = first_seq(2)
    for begins in (11, second):
        segment = Segment(directory, NODE, 1)
        if is_one_frame:
            segment.append(lines(1, 5) + lines(begins, 5), begins + 4)
        else:
            segment.append(lines(1, 5), 5)
            segment.append(lines(begins, 5), begins + 4)
        path = segment.seal(NOW_MS)
        assert path is not None
        content = path.read_bytes()
        if not has_trailer:
            content = of_earlier_version(content)
        if begins == second:
            assert verify_segment(content, path).records == 10
            continue
        words = f"events between {5:016x} and {11:016x} of node {NODE} are missing"
        with pytest.raises(SegmentDamaged, match=words):
            verify_segment(content, path)


def test_a_line_that_is_no_event(directory: Path) -> None:
    """A start goes on with the others, and the log names the segment for good."""
    segment = Segment(directory, NODE, 1)
    segment.append(lines(1, 2) + bytes(4096) + b"\n" + lines(3, 2), 4)
    segment.leave()
    assert recover(directory, NODE) == {1, 2, 3, 4}
    seal_recovered(directory, NODE, NOW_MS)
    problems: list[str] = []
    assert len(list(read_log(directory, problems))) == 2
    assert ["damaged at byte 0" in text for text in problems] == [True]


async def test_a_number_that_the_queue_has_lost(directory: Path) -> None:
    """A key of the outbox that is gone: the log says so, whatever the frame would look like."""
    config = configured(directory)
    queue = open_queue(config)
    await queue.recover()
    for name in "abc":
        await accept(queue, f"{name}@x.example")
    waiting = list(queue.store.keys(keys.OUTBOX, keys.end_of(keys.OUTBOX)))
    queue.store.write(queue.store.batch([(waiting[1], None)], sync=True))
    exporter = Exporter(queue, config.events)
    await exporter.start()
    await exporter.close()
    await queue.close()
    assert len(list(gaps(directory / "events", {}))) == 1
    assert len(sealed_segments(directory / "events")) == 2


# ---- what is gone


GONE: dict[str, Callable[[Path], object]] = {
    "all": shutil.rmtree,
    "the segments": lambda log: [shutil.rmtree(day) for day in log.glob("date=*")],
    "the first": lambda log: by_number(sealed_segments(log))[0].unlink(),
    "the last": lambda log: by_number(sealed_segments(log))[-1].unlink(),
    "one between": lambda log: by_number(sealed_segments(log))[1].unlink(),
}


@pytest.mark.parametrize("gone", GONE)
async def test_what_is_gone_is_named(directory: Path, gone: str) -> None:
    """By the audit, by history and by export (but for a log of which there is nothing); before a start, and after it."""
    config = configured(directory)
    for name in "abc":
        await life(config, f"{name}@x.example", deliver=True)
    log, path = directory / "events", str(directory / "relay.yaml")
    assert (await audit(directory)).exit_code == 0
    assert list(missing_events(log, 0, {})) == []
    GONE[gone](log)
    found = await run("history", "-c", path, "a@x.example")
    assert found.exit_code == 1
    assert found.stderr.startswith("event log: ")
    exported = await run("export", "-c", path, "--format", "kumomta")
    assert exported.exit_code == 1
    for start in range(2):
        result = await audit(directory)
        assert result.exit_code == 1, start
        assert "events were written up to" in result.output or "are missing" in result.output
        await life(config, "d@x.example")
        assert len(list(missing_events(log, 0, {}))) == 1


async def test_a_damaged_segment_in_history(directory: Path) -> None:
    """What can be read of it is shown, and that there may be more is said; also to a tenant, without names of files."""
    config = configured(directory)
    await life(config, "a@x.example", deliver=True)  # accepted and delivered, a frame each
    [path] = sealed_segments(directory / "events")
    flip(path, 1)
    found = await run("history", "-c", str(directory / "relay.yaml"), "a@x.example", "--json")
    assert found.exit_code == 1
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert [row.get("event") for row in rows] == ["accepted", None]
    assert str(path) in rows[1]["problem"]
    queue = open_queue(config)
    operations = Operations(queue, RunningRelay(events=directory / "events"))
    told = [row async for row in run_operation(operations, HistoryRequest("a@x.example", tenant=""))]
    await queue.close()
    assert "problem" in told[-1]
    assert str(directory) not in str(told)


async def test_an_old_queue_under_a_newer_log(directory: Path) -> None:
    config = configured(directory)
    await life(config, "a@x.example")
    shutil.copytree(directory / "queue-relay", directory / "backup")
    await life(config, "b@x.example", deliver=True)
    shutil.rmtree(directory / "queue-relay")
    (directory / "backup").rename(directory / "queue-relay")
    result = await audit(directory)
    assert result.exit_code == 1
    assert "is older than its event log" in result.output


async def test_two_queues_with_one_event_log(directory: Path) -> None:
    """Each alone cannot be proved while mail of the other waits; both together can, and one of them twice is refused."""
    nodes = [
        await life(configured(directory, name), "a@x.example", "b@x.example") for name in ("one", "two")
    ]
    for name, other in (("one", nodes[1]), ("two", nodes[0])):
        result = await audit(directory, name)
        assert result.exit_code == 1
        assert result.output.count("problem:") == 1
        assert f"2 recipients that node {other} accepted" in result.output
    result = await audit(directory, "one", "two")
    assert result.exit_code == 0, result.output
    assert "every recipient is accounted for" in result.output
    configured(directory, "again", queue={"directory": "queue-one"})
    assert (await audit(directory, "one", "again")).exit_code == 2
    # and with a log each, of which one has a part of the other's
    shutil.copytree(directory / "events", directory / "events-two")
    configured(directory, "two", events={"directory": "events-two"})
    assert (await audit(directory, "one", "two")).exit_code == 0


async def deliver(config: Config, *addresses: str) -> None:
    """One start, that of a take-over: deliver what another relay accepted."""
    queue = open_queue(config)
    await queue.recover()
    exporter = Exporter(queue, config.events)
    await exporter._recover()
    await queue.begin()
    await until(lambda: not queue.scanning, "the queue")
    for address in addresses:
        await settle(queue, lease(queue, address.partition("@")[2]), OutcomeKind.DELIVERED)
    while not exporter._is_empty():
        await exporter._export()
    await exporter._seal_if_due(now=True)
    exporter._thread.shutdown()
    await queue.close()


async def test_a_take_over_with_a_log_each(directory: Path) -> None:
    """Each relay's log has a part of the partition's events: both audits together are right, one alone says what to do."""

    def relay(name: str, partition: str, events: str) -> Config:
        (directory / f"queue-{name}").mkdir(mode=0o700)
        queue = {
            "directory": f"queue-{name}", "min_free_disk": "1MiB", **shared_storage(directory, "redis"),
            "shared": {"name": partition, "lease": "2s"},
        }  # fmt: skip
        return configured(directory, name, queue=queue, events={"directory": events})

    two, one = relay("two", "two", "events-two"), relay("one", "one", "events-one")
    taken = relay("taken", "one", "events-two")
    relay("taken-one", "one", "events-one")
    await life(two, "o@x.example", deliver=True)  # its log begins first
    await life(one, "u@x.example", "v@y.example", killed=True)
    for address, names in (("u@x.example", ("two", "taken-one")), ("v@y.example", ("one", "two"))):
        await deliver(taken, address)
        result = await audit(directory, *names)
        assert result.exit_code == 0, result.output
    await life(one, "w@z.example", killed=True)
    await deliver(taken, "w@z.example")
    node = await life(one)
    assert (await audit(directory, "one", "two")).exit_code == 0
    alone = await audit(directory, "two")
    assert alone.exit_code == 1
    assert f"3 recipients that node {node} accepted are settled or queued here" in alone.output
    assert alone.output.count("acceptance") == 1
    for name in ("one", "two"):
        assert "audit all of them together" in (await audit(directory, name)).stderr
    for path in sealed_segments(directory / "events-one", node)[:1]:  # and a log that is lost is named
        path.unlink()
    assert (await audit(directory, "one", "two")).exit_code == 1


async def test_a_queue_that_an_earlier_version_imported(directory: Path) -> None:
    """It does not know where its log begins: the audit says what it may be, and the operator can take the log as it is."""
    config = configured(directory, "old")
    await life(config, "a@x.example", deliver=True)
    await life(config, "b@y.example")
    store = open_store(config.queue, access=Access.EXISTING)
    export_queue(store, directory / "file", lambda done: None)
    store.close()
    config = configured(directory)
    store = open_store(config.queue)
    import_queue(store, directory / "file", lambda done: None)
    store.write(store.batch([(keys.META_LOG_BEGINS, None)], sync=True))
    store.close()
    may_be = "none is missing if an earlier version imported the queue of this node"
    result = await audit(directory)
    assert (result.exit_code, result.output.count(may_be)) == (1, 1)
    node = await life(config, "c@x.example", deliver=True)
    result = await audit(directory)
    assert (result.exit_code, result.output.count(may_be)) == (1, 1)
    (directory / "events" / f".{node}.range").unlink()
    for _ in range(2):
        await life(config, "d@x.example", deliver=True)
        result = await audit(directory)
        assert result.exit_code == 0, result.output
    by_number(sealed_segments(directory / "events", node))[0].unlink()
    assert (await audit(directory)).exit_code == 1


# ---- retention


def sealed_at(directory: Path, number: int, at_ms: int) -> Path:
    segment = Segment(directory, NODE, number, number - 1)
    segment.append(lines(number, 1), number)
    path = segment.seal(at_ms)
    assert path is not None
    os.utime(path, (at_ms / 1000,) * 2)
    return path


def test_a_clock_that_was_ahead_does_not_turn_retention_round(directory: Path) -> None:
    """Segments 3 and 4 were sealed a year ahead: the oldest numbers go first all the same, and never the newest."""
    times = [NOW_MS, NOW_MS, NOW_MS + 365 * 86_400_000, NOW_MS + 365 * 86_400_000, NOW_MS, NOW_MS]
    paths = [sealed_at(directory, number, at_ms) for number, at_ms in enumerate(times, 1)]
    size = sum(path.stat().st_size for path in paths)
    later_s = NOW_MS / 1000 + 10 * 86_400
    one = paths[0].stat().st_size
    assert remove_old(directory, NODE, Keep(size_bytes=size - one - 1), Needed(1e12, ""), later_s) == 2
    assert [path.exists() for path in paths] == [False, False, True, True, True, True]
    assert remove_old(directory, NODE, Keep(size_bytes=0), Needed(1e12, ""), later_s) == 3
    assert [path.exists() for path in paths] == [False] * 5 + [True]
    extent = read_extent(directory, NODE)
    assert extent is not None
    assert extent.after == 5
    assert list(gaps(directory, {NODE: 6})) == []


def test_an_age_is_that_of_the_oldest_behind(directory: Path) -> None:
    """A segment that was sealed a year ahead is not kept for a year."""
    day_s = 86_400
    times = [0, 365 * day_s, 1, 8 * day_s]
    paths = [sealed_at(directory, n, NOW_MS + at_s * 1000) for n, at_s in enumerate(times, 1)]
    now_s = NOW_MS / 1000 + 10 * day_s
    assert remove_old(directory, NODE, Keep(age_s=5 * day_s), Needed(1e12, ""), now_s) == 3
    assert [path.exists() for path in paths] == [False] * 3 + [True]


async def test_queued_mail_keeps_its_acceptance_whatever_the_clock_said(directory: Path) -> None:
    """Two messages wait, accepted in the second segment; the file times say that all is old."""
    config = configured(directory)
    await life(config, "a@x.example", deliver=True)
    node = await life(config, "b@x.example")
    await life(config, "c@x.example", deliver=True)
    log = directory / "events"
    paths = by_number(sealed_segments(log))
    accepted = [r for r in read_segment(paths[1]) if r["event"] == "accepted"]
    for index in (True, False):
        if not index:
            for each in log.rglob(".index"):
                each.unlink()
        needed = Needed(1e12, accepted[0]["message"])
        assert remove_old(log, node, Keep(size_bytes=0), needed, now_ms() / 1000) == (1 if index else 0)
    assert [path.exists() for path in paths] == [False, True, True]
    assert list(gaps(log, {})) == []


# ---- memory


PROGRAM = """
import resource, sys
from pathlib import Path
from zonemta_py.events.recovery import recover, seal_recovered
directory = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = recover(directory, "abcdef")
seal_recovered(directory, "abcdef", 1_795_248_000_000)
print(len(found), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_start_after_a_kill_reads_frame_by_frame(directory: Path) -> None:
    """Whose lines are a hundred times as long as the file."""
    text = b'{"node":"abcdef","seq":%d,"position":0,"event":"x","text":"' + b"0" * 4000 + b'"}\n'
    segment = Segment(directory, NODE, 1)
    for frame in range(15):
        first = frame * 1000 + 1
        segment.append(b"".join(text % n for n in range(first, first + 1000)), first + 999)
    segment.leave()
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory)], capture_output=True, text=True, check=True
    ).stdout
    records, grown_kib = map(int, out.split())
    assert records == 15_000
    assert grown_kib < 40_000, "60 MB of lines"
