"""18. A power cut with holes: unsynced pages of LevelDB's log, some on disk and some not. A lost log is noticed."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kit.queue import Clock, accept, begin, make_queue, opened, problems
from tests.kit.relay import empty, relaying, send, staged
from zonemta_py.cli.main import main
from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.queue.format import keys
from zonemta_py.sink.script import Rule, Script, Step

PAGE = 4096
STATES = 24
ACKNOWLEDGED, LATE = 6, 4


def log_of(directory: Path) -> Path:
    return max((directory / "db").glob("*.log"), key=lambda path: path.stat().st_size)


def holes(data: bytes, synced: int, rng: random.Random) -> bytes:
    """What may be on disk: all that was synced, any pages behind it, and any length."""
    found = bytearray(data)
    begin = (
        -(-synced // PAGE) * PAGE
    )  # the page with the end of what was synced is whole, or its rest is not there
    if rng.random() < 0.5:
        found[synced:begin] = bytes(len(found[synced:begin]))
    for at in range(begin, len(data), PAGE):
        if rng.random() < 0.5:
            found[at : at + PAGE] = bytes(len(found[at : at + PAGE]))
    if rng.random() < 0.3:
        del found[rng.randint(synced, len(found)) :]
    return bytes(found)


async def test_a_start_goes_on(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a repair, with all that was acknowledged; the log says what was cut off, and where it is kept."""
    rng, clock, whole = random.Random(18), Clock(), directory / "whole"
    queue = make_queue(whole, clock)
    await begin(queue)
    for n in range(ACKNOWLEDGED):
        await accept(queue, f"a{n}@x.example", body=b"line\r\n" * 300, zone="default")
    synced = log_of(whole).stat().st_size
    late = [accept(queue, f"b{n}@x.example", body=rng.randbytes(9000)) for n in range(LATE)]
    await asyncio.gather(*late)  # one group
    data = log_of(whole).read_bytes()
    await queue.close()
    said = 0
    for state in range(STATES):
        copy = directory / f"state-{state}"
        shutil.copytree(whole, copy)
        changed = holes(data, synced, rng)
        log_of(copy).write_bytes(changed)
        caplog.clear()
        async with opened(copy, clock) as after:
            assert problems(after.store) == []
            waiting = list(after.store.keys(keys.WAITING, keys.end_of(keys.WAITING)))
            addresses = {keys.parse_recipient(key)[2] for key in waiting}
            assert {f"a{n}@x.example" for n in range(ACKNOWLEDGED)} <= addresses
            assert len(addresses) in (ACKNOWLEDGED, ACKNOWLEDGED + LATE)
        kept = list((copy / "db" / "lost").glob("*"))
        if len(addresses) == ACKNOWLEDGED and len(changed) > synced:
            assert [path.read_bytes() for path in kept] == [changed]
            assert "was not whole and is cut off" in caplog.text
            said += 1
        else:
            assert kept == []
    assert said > STATES // 2


async def test_a_look_changes_nothing(directory: Path) -> None:
    """A command that reads shows what a start would have, and leaves the log as it is."""
    async with opened(directory, Clock()) as queue:
        await accept(queue, "a@x.example")
        await accept(queue, "b@x.example", body=b"line\r\n" * 3000)
        data = log_of(directory).read_bytes()  # a stop in order would write one more group
    path = log_of(directory)
    at = len(data) - 3 * PAGE
    path.write_bytes(data[:at] + bytes(PAGE) + data[at + PAGE :])
    before = path.read_bytes()
    (directory / "zonemta.yaml").write_text(f"queue: {{directory: {directory}}}\n")
    command = ["queue", "list", "-c", str(directory / "zonemta.yaml")]
    result = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert "a@x.example" in result.output
    assert "b@x.example" not in result.output
    assert path.read_bytes() == before
    assert not (directory / "db" / "lost").exists()


async def test_damage_in_front_of_whole_writes_is_no_torn_end(directory: Path) -> None:
    """Nor is one flipped bit in the last write, which no power cut leaves. LevelDB itself takes zeros for unused space."""
    async with opened(directory, Clock()) as queue:
        for n in range(4):
            await accept(queue, f"a{n}@x.example", body=b"line\r\n" * 2500)
    path = log_of(directory)
    data = path.read_bytes()
    pages = range(0, len(data) - 2 * PAGE, PAGE)
    damaged = [data[:at] + bytes(PAGE) + data[at + PAGE :] for at in pages]
    damaged.append(data[:-200] + bytes([data[-200] ^ 4]) + data[-199:])
    for changed in damaged[:-4] + damaged[-1:]:
        path.write_bytes(changed)
        with pytest.raises(QueueCorrupt, match="is damaged at"):
            make_queue(directory, Clock())
        assert path.read_bytes() == changed


@pytest.mark.parametrize("how", ["removed", "emptied"])
@pytest.mark.parametrize("lives", [1, 2])
async def test_a_lost_log_is_noticed(directory: Path, how: str, lives: int) -> None:
    """Also in the first life of a queue, which is in nothing but that log."""
    for n in range(lives):
        async with opened(directory, Clock()) as queue:
            await accept(queue, f"a{n}@x.example")
    path = log_of(directory)
    path.unlink() if how == "removed" else path.write_bytes(b"")
    found = {path.name for path in (directory / "db").iterdir()}
    for _ in range(2):
        with pytest.raises(LocalError, match="which has the newest mail, is"):
            make_queue(directory, Clock())
    assert {path.name for path in (directory / "db").iterdir()} == found
    (directory / "zonemta.yaml").write_text(f"queue: {{directory: {directory}}}\n")
    config = str(directory / "zonemta.yaml")
    result = await asyncio.to_thread(CliRunner().invoke, main, ["queue", "list", "-c", config])
    assert result.exit_code == 1
    assert "zonemta queue repair" in result.output


@pytest.mark.parametrize("processes", ["0/0", "2/2"])
async def test_a_relay_names_what_its_lost_log_had(
    directory: Path, processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two zones, two receivers: after a repair the event log says of each recipient that it is lost, and mail flows."""
    receivers, senders = map(int, processes.split("/"))
    async with staged(directory) as stage:
        later = Rule(Step.RCPT, reply="451 4.7.1 later")
        sinks = [await stage.receiver(f"{name}.example", later) for name in "ab"]
        config = stage.config(
            processes={"receivers": receivers, "senders": senders},
            zones={"default": {"retry": {"delays": ["1h"]}}, "bulk": {}},
            routing=[{"recipient_domain": "b.example", "zone": "bulk"}],
        )
        async with relaying(config) as relay:
            await send(relay, ["u@a.example", "u@b.example"])
        log_of(config.queue.directory).unlink()
        with pytest.raises(QueueCorrupt, match="is missing"):
            async with relaying(config):
                pass
        command = ["queue", "repair", "-c", str(directory / "zonemta.yaml")]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert "2 lost" in result.output
        assert result.exit_code == 1
        for sink in sinks:
            sink.script = Script(())
        async with relaying(config) as relay:
            await send(relay, ["v@a.example", "v@b.example"])
            await empty(relay)
        assert [sum(sink.tally.by_recipient.values()) for sink in sinks] == [1, 1]
        result = await asyncio.to_thread(CliRunner().invoke, main, ["audit", *command[2:]])
        assert "every recipient is accounted for" in result.output
