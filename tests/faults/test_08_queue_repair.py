"""8. Damage in LevelDB's log: after a repair no mail goes to an address that was not submitted, no byte is altered, and each loss is named."""

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from tests.kit.queue import accept, begin, lease, problems, settle
from tests.kit.relay import empty, relaying, staged
from zonemta_py.cli.main import main
from zonemta_py.config.load import load_config
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.core.model import OutcomeKind
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.format import keys
from zonemta_py.queue.outbox import Exporter
from zonemta_py.storage.interface import Access
from zonemta_py.storage.leveldb_store import LevelDBStore

PAGE = 4096
CONFIG = """\
queue: {directory: queue}
events: {directory: events}
zones: {default: {}, bulk: {}}
"""


class Sound(NamedTuple):
    """A queue that was closed with mail in LevelDB's log. ``submitted``: message and body by recipient; ``delivered`` before."""

    config: Config
    submitted: dict[str, tuple[str, bytes]]
    delivered: set[str]

    def restore(self) -> Path:
        """Put the queue back as it was; returns its log."""
        directory = self.config.queue.directory.parent
        for name in ("queue", "events"):
            shutil.rmtree(directory / name, ignore_errors=True)
            shutil.copytree(directory / "sound" / name, directory / name)
        logs = (self.config.queue.directory / "db").glob("*.log")
        return max(logs, key=lambda path: path.stat().st_size)


@pytest.fixture
async def sound(directory: Path) -> Sound:
    """Two zones, two domains; some mail is delivered or deferred; a part of the events is in the event log."""
    (directory / "zonemta.yaml").write_text(CONFIG)
    config = load_config(directory / "zonemta.yaml")
    submitted: dict[str, tuple[str, bytes]] = {}
    delivered: set[str] = set()
    queue = open_queue(config)
    await begin(queue)

    async def add(numbers: range) -> None:
        for n in numbers:
            zone, domain = ("default", "dead.test") if n % 2 else ("bulk", "live.test")
            to = [f"rq{n}-{k}@{domain}" for k in range(3)]
            body = (b"line %d\r\n" % n) * 700
            message = await accept(queue, *to, body=body, zone=zone)
            submitted.update(dict.fromkeys(to, (message, body)))

    exporter = Exporter(queue, config.events)
    await exporter.start()
    await add(range(2))
    await exporter.close()
    exporter = Exporter(queue, config.events)
    await exporter.start()
    await add(range(2, 6))
    held = lease(queue, "dead.test", 2)
    delivered |= {each.address for each in held.recipients}
    await settle(queue, held, OutcomeKind.DELIVERED)
    await exporter.close()
    await add(range(6, 12))
    await settle(queue, lease(queue, "live.test", 1, "bulk"), OutcomeKind.DEFERRED, queue.now() + 10)
    await queue.close()
    for name in ("queue", "events"):
        shutil.copytree(directory / name, directory / "sound" / name)
    return Sound(config, submitted, delivered)


class Played(NamedTuple):
    """``rows`` of the repair, None when a start did without; ``sent``: how often, by recipient; ``problems`` of the audit."""

    rows: list[dict[str, Any]] | None
    sent: dict[str, int]
    problems: list[str]


async def play(sound: Sound) -> Played:
    """Start; repair if that is asked for, and start; deliver all that is there; audit."""
    rows = None
    try:
        sent = await deliver_all(sound)
    except LocalError:
        *rows, _ = await command(sound, "queue", "repair")
        sent = await deliver_all(sound)
    audit = await command(sound, "audit")
    return Played(rows, sent, [row["problem"] for row in audit if "problem" in row])


async def command(sound: Sound, *words: str) -> list[dict[str, Any]]:
    arguments = [*words, "--json", "-c", str(sound.config.queue.directory.parent / "zonemta.yaml")]
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return [json.loads(line) for line in result.stdout.splitlines()]


async def deliver_all(sound: Sound) -> dict[str, int]:
    """What a relay does. Every byte that it would send is compared with what was submitted."""
    sent: dict[str, int] = {}
    queue = open_queue(sound.config)
    try:
        await begin(queue)
        exporter = Exporter(queue, sound.config.events)
        await exporter.start()
        await queue.deferral.wake_due(queue.now() + 100_000)
        for zone, domain in (("default", "dead.test"), ("bulk", "live.test")):
            while (held := queue.lease(zone, domain, 100)) is not None:
                text = b"".join(queue.bodies.read(held.active))
                assert held.active.meta.header == b"Subject: test\r\n"
                assert held.active.meta.sender == "s@sender.example"
                for each in held.recipients:
                    assert (each.message, text) == sound.submitted[each.address]
                    sent[each.address] = sent.get(each.address, 0) + 1
                await settle(queue, held, OutcomeKind.DELIVERED)
        await exporter.close()
        assert problems(queue.store) == []
        assert list(queue.store.keys(keys.WAITING, keys.end_of(keys.DEFERRED))) == []
    finally:
        await queue.close()
    return sent


def judge(sound: Sound, played: Played, log: str) -> set[str]:
    """The recipients that were not delivered, each of which is named."""
    missing = sound.submitted.keys() - played.sent.keys() - sound.delivered
    lost = [row for row in played.rows or () if row["what"] == "lost"]
    named = {row["recipient"] or row["message"] for row in lost}  # of some, only the message can be read
    assert max(played.sent.values(), default=1) == 1
    for address in missing:
        assert {address, sound.submitted[address][0]} & named or (played.rows is None and address in log)
    again = played.sent.keys() & sound.delivered
    assert not again  # the event log has their outcome
    return set(missing)


def flip(data: bytearray, at: int, rng: random.Random) -> None:
    data[at] ^= 1 << rng.randrange(8)


def spoil(data: bytearray, at: int, rng: random.Random) -> None:
    data[at : at + 5] = rng.randbytes(5)


def zero(data: bytearray, at: int, rng: random.Random) -> None:
    at -= at % PAGE
    data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))


@pytest.mark.parametrize(("change", "places", "lost_max"), [(flip, 8, 0), (spoil, 4, 9), (zero, 6, 9)])
async def test_no_other_address_and_no_other_byte(
    sound: Sound,
    change: Callable[[bytearray, int, random.Random], None],
    places: int,
    lost_max: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At places that are spread over the log."""
    rng = random.Random(places)
    for place in range(places):
        path = sound.restore()
        data = bytearray(path.read_bytes())
        change(data, len(data) * place // places + rng.randrange(len(data) // places), rng)
        path.write_bytes(data)
        caplog.clear()
        played = await play(sound)
        missing = judge(sound, played, caplog.text)
        assert len(missing) <= lost_max, f"{change.__name__} {place}: {missing}"
        assert not missing or played.problems or played.rows
        assert played.rows is None or (await command(sound, "queue", "repair"))[:-1] == []


@pytest.mark.parametrize("processes", [0, 2])
async def test_the_relay_sends_what_was_submitted(sound: Sound, processes: int) -> None:
    """A bit of one recipient, another address in a second one, three bytes of a header block: to both receivers, by all processes."""
    path = sound.restore()
    data = bytearray(path.read_bytes())
    data[data.index(b"@dead.test", data.index(b"rq3-0@")) + 1] ^= 1
    at = data.index(b"@live.test", data.index(b"rq8-1@"))
    data[at + 1 : at + 4] = b"lov"
    at = data.rindex(b"Subject: test", 0, data.index(b"rq11-0@"))
    data[at : at + 3] = b"Bcc"
    path.write_bytes(data)
    async with staged(sound.config.queue.directory.parent) as stage:
        sinks = [await stage.receiver(domain) for domain in ("dead.test", "live.test")]
        counts = {"receivers": processes, "senders": processes}
        config = stage.config(processes=counts, zones={"default": {}, "bulk": {}})
        with pytest.raises(QueueCorrupt, match="is damaged at byte"):
            async with relaying(config):
                pass
        rows = (await command(sound, "queue", "repair"))[:-1]
        async with relaying(config) as relay:
            await relay.flush()
            await empty(relay)
        sent = sinks[0].tally.by_recipient + sinks[1].tally.by_recipient
        for message in (*sinks[0].messages, *sinks[1].messages):
            head, _, text = message.data.partition(b"\r\n\r\n")
            assert head.endswith(b"Subject: test")
            assert all(text == sound.submitted[address][1] for address in message.recipients)
    lost = judge(sound, Played(rows, sent, []), "")
    assert lost == {f"rq{n}-{k}@{d}.test" for n, d in ((8, "live"), (11, "dead")) for k in range(3)}
    audit = await command(sound, "audit")
    assert {row["lost"]["recipient"] for row in audit if "lost" in row and "zone" not in row} == lost
    assert not [row for row in audit if "problem" in row]


async def test_a_log_that_ends_too_soon(sound: Sound) -> None:
    """What the event log has is named; a queue that is older than its event log is not started."""
    path = sound.restore()
    data = path.read_bytes()
    for size in (len(data) // 3, len(data) // 4):
        path = sound.restore()
        path.write_bytes(data[:size])
        played = await play(sound)
        assert played.rows is not None
        judge_cut(sound, played)


def judge_cut(sound: Sound, played: Played) -> None:
    assert played.rows is not None
    lost = {row["recipient"] for row in played.rows if row["what"] == "lost"}
    exported = {address for address in sound.submitted if int(address[2:].split("-")[0]) < 6}
    assert exported <= played.sent.keys() | lost | sound.delivered
    assert not played.sent.keys() & (lost | sound.delivered)
    assert played.problems == []


def writes(store: LevelDBStore, *ops: tuple[bytes, bytes | None]) -> None:
    store.write(store.batch(ops, sync=True))


async def test_an_address_is_compared_with_the_accepted_event(sound: Sound) -> None:
    """A store that a repair of an earlier version has left: the address is another one, and every sum is right."""
    sound.restore()
    store = LevelDBStore(sound.config.queue.directory / "db", Access.EXISTING)
    found = {
        keys.parse_recipient(k)[2]: (k, v)
        for k, v in store.scan(keys.WAITING, keys.end_of(keys.WAITING))
    }
    for address in ("rq3-0@dead.test", "rq9-0@dead.test"):  # in the event log, in the outbox
        key, value = found[address]
        writes(store, (key, None), (key.replace(b"@dead", b"@eead"), value))
    key, value = found["rq5-0@dead.test"]
    writes(store, (key, None), (key.replace(b"rq5", b"rq4"), value))
    store.close()
    rows = await command(sound, "queue", "repair")
    removed = {row["recipient"] for row in rows[:-1] if row["what"] == "removed"}
    assert removed >= {"rq3-0@eead.test", "rq9-0@eead.test", "rq4-0@dead.test"}
    restored = {row["recipient"] for row in rows[:-1] if row["what"] == "restored"}
    assert restored == {"rq3-0@dead.test", "rq9-0@dead.test", "rq5-0@dead.test"}
    played = await play(sound)
    assert judge(sound, played, "") == set()
    assert played.problems == []


@pytest.mark.parametrize("is_repaired", [False, True])
async def test_a_flipped_bit_in_an_envelope(sound: Sound, is_repaired: bool) -> None:
    """As memory or a store without sums could flip it: nothing of that message is sent, and check and repair name it."""
    sound.restore()
    store = LevelDBStore(sound.config.queue.directory / "db", Access.EXISTING)
    message = sound.submitted["rq3-0@dead.test"][0]
    value = store.get(keys.meta_key(message))
    assert value is not None
    writes(store, (keys.meta_key(message), value.replace(b"Subject: test", b"Subject: tesu")))
    assert any("checksum" in text for text in problems(store))
    store.close()
    if not is_repaired:
        queue = open_queue(sound.config)
        await begin(queue)
        with pytest.raises(QueueCorrupt, match="checksum"):
            while queue.lease("default", "dead.test", 100) is not None:
                pass
        await queue.close()
    rows = (await command(sound, "queue", "repair"))[:-1]
    played = (await play(sound))._replace(rows=rows)
    assert judge(sound, played, "") == {f"rq3-{k}@dead.test" for k in range(3)}
    assert played.problems == []


@pytest.mark.parametrize("is_repaired", [False, True])
@pytest.mark.parametrize("value", [bytes(PAGE), None])
async def test_events_that_cannot_be_read(
    sound: Sound, is_repaired: bool, value: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """They are kept aside, the others are exported, and the audit names what is missing. None: a flipped bit."""
    sound.restore()
    store = LevelDBStore(sound.config.queue.directory / "db", Access.EXISTING)
    outbox = list(store.scan(keys.OUTBOX, keys.end_of(keys.OUTBOX)))
    key, before = outbox[2]
    spoiled = before.replace(b"sender", b"sendes", 1) if value is None else value
    assert spoiled != before
    writes(store, (key, spoiled))
    store.close()
    if is_repaired:
        rows = await command(sound, "queue", "repair")
        assert any(key.decode() in row.get("reason", "") for row in rows)
    played = await play(sound)
    assert set(played.sent) | sound.delivered == sound.submitted.keys()
    assert played.problems
    store = LevelDBStore(sound.config.queue.directory / "db", Access.EXISTING)
    assert store.get(keys.damaged_key(key)) == spoiled
    assert list(store.keys(keys.OUTBOX, keys.end_of(keys.OUTBOX))) == []
    assert is_repaired or "it is kept as meta/damaged/" in caplog.text
    store.close()


async def test_keys_and_values_of_garbage(sound: Sound) -> None:
    """As LevelDB's repair of an earlier version left them, of zeroed pages: no traceback, and the mail is delivered."""
    sound.restore()
    store = LevelDBStore(sound.config.queue.directory / "db", Access.EXISTING)
    spaces = (
        keys.MESSAGE, keys.WAITING, keys.DEFERRED, keys.DUE, keys.SPILL, keys.INFLIGHT, keys.OPEN, keys.CLEANUP, keys.BOUNCE,
        keys.DIGEST, keys.SUBMITTED, keys.OUTBOX,
    )  # fmt: skip
    for space in spaces:
        for tail in (b"\xfe\x80", bytes(30), b"x/y/z", b"default/" + bytes(40)):
            writes(store, (space + tail, bytes(12)))
    store.close()
    rows = await command(sound, "queue", "repair")
    assert {row["what"] for row in rows[:-1]} <= {"removed", "damaged", "lost"}
    played = await play(sound)
    assert judge(sound, played, "") == set()
    assert (await command(sound, "queue", "repair"))[:-1] == []
