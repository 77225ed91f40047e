"""``zonemta audit`` and ``zonemta queue repair`` on real damage."""

import asyncio
import json
import os
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.kit.deadlines import until
from tests.kit.queue import problems
from tests.kit.relay import Stage, empty, relaying, send, staged
from zonemta_py.cli.main import main
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.sink.script import Rule, Step
from zonemta_py.storage.leveldb_store import LevelDBStore

BODY = b"Subject: s\r\n\r\n" + b"a line of text\r\n" * 20_000


async def go(directory: Path, *arguments: str) -> Result:
    arguments = (*arguments, "-c", str(directory / "zonemta.yaml"))
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


def rows(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


async def fill(stage: Stage, count: int = 6) -> None:
    """``count`` messages to two recipients each: one is delivered, one deferred for an hour."""
    later = Rule(Step.RCPT, recipient="later*", reply="451 4.7.1 later")
    await stage.receiver("a.example", later)
    config = stage.config(zones={"default": {"retry": {"delays": ["1h"]}}})
    async with relaying(config) as relay:
        for n in range(count):
            await send(relay, [f"ok{n}@a.example", f"later{n}@a.example"], BODY)
        await until(
            lambda: len(list(relay.queue.store.keys(keys.DEFERRED, keys.end_of(keys.DEFERRED)))) == count
        )


def ids(directory: Path) -> list[str]:
    store = LevelDBStore(directory / "queue" / "db")
    found = [
        keys.owner_of(k) for k in store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE)) if k.endswith(b"#")
    ]
    store.close()
    return found


def change(directory: Path, *ops: tuple[bytes, bytes | None]) -> None:
    store = LevelDBStore(directory / "queue" / "db")
    store.write(store.batch(ops, sync=True))
    store.write(store.batch((), sync=True))  # with the references of chunks
    store.close()


async def test_audit_of_a_sound_relay(directory: Path) -> None:
    async with staged(directory) as stage:
        await fill(stage)
    result = await go(directory, "audit", "--json")
    assert result.exit_code == 0, result.output
    total, *_ = rows(result)
    assert {k: total[k] for k in ("zone", "accepted", "queued", "delivered", "lost", "uncertain")} == {
        "zone": "default", "accepted": 12, "queued": 6, "delivered": 6, "lost": 0, "uncertain": 0,
    }  # fmt: skip
    assert "every recipient is accounted for" in (await go(directory, "audit")).stdout


async def test_audit_while_mail_flows(directory: Path) -> None:
    """A snapshot of the queue agrees with the log up to its moment, while mail is accepted and delivered."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        async with relaying(stage.config()) as relay:

            async def load() -> None:
                for n in range(150):
                    await send(relay, [f"{n}@a.example"])

            loading = asyncio.ensure_future(load())
            for _ in range(5):
                result = await go(directory, "audit", "--json")
                assert result.exit_code == 0, result.output
            await loading
            await empty(relay)
    assert rows(await go(directory, "audit", "--json"))[0]["delivered"] == 150


async def test_audit_names_what_is_missing_and_what_is_double(directory: Path) -> None:
    async with staged(directory) as stage:
        await fill(stage)
    first, second, *_ = ids(directory)
    store = LevelDBStore(directory / "queue" / "db")
    value = store.get(keys.deferred_key("default", second, "later1@a.example"))
    store.close()
    change(
        directory,
        (keys.deferred_key("default", first, "later0@a.example"), None),
        (keys.waiting_key("default", second, "later1@a.example"), value),
    )
    result = await go(directory, "audit")
    assert result.exit_code == 1
    assert f"{first} recipient 1 in default: no outcome, and not in the queue" in result.stdout
    assert f"{second} recipient 1: two places in the queue" in result.stdout


async def test_repair_brings_back_what_the_event_log_knows(directory: Path) -> None:
    """A recipient lost, one in two places, one risen from the dead, a marker too many, a wake-up gone."""
    async with staged(directory) as stage:
        await fill(stage)
    one, two, three, four, *_ = ids(directory)
    store = LevelDBStore(directory / "queue" / "db")
    value = store.get(keys.deferred_key("default", two, "later1@a.example"))
    due = next(k for k in store.keys(keys.DUE, keys.end_of(keys.DUE)) if four.encode() in k)
    assert value
    store.close()
    change(
        directory,
        (keys.deferred_key("default", one, "later0@a.example"), None),
        (keys.waiting_key("default", two, "later1@a.example"), value),
        (keys.waiting_key("default", three, "ok2@a.example"), value.replace(b"\x01", b"\x00", 0)),
        (keys.open_key(four), b""),
        (due, None),
    )
    result = await go(directory, "queue", "repair", "--json")
    assert result.exit_code == 0, result.output
    *reported, total = rows(result)
    assert {(r["what"], r["message"]) for r in reported} == {
        ("restored", one), ("removed", two), ("removed", three), ("removed", four),
    }  # fmt: skip
    assert total["lost"] == 0
    assert Path(str(total["copy"])).is_dir()
    store = LevelDBStore(directory / "queue" / "db")
    assert problems(store) == []
    store.close()
    assert (await go(directory, "audit")).exit_code == 0
    again = rows(await go(directory, "queue", "repair", "--json"))
    assert again[:-1] == []


async def test_a_damaged_body_is_reported_as_lost(directory: Path) -> None:
    """Never delivered in part; the event and the report name its recipients; other mail is delivered."""
    async with staged(directory) as stage:
        await fill(stage)
        hit, *others = ids(directory)
        change(directory, (keys.chunk_key(hit, 2), b"x" * 65_536))
        result = await go(directory, "queue", "repair")
        assert result.exit_code == 1
        assert f"lost: {hit} to later0@a.example" in result.stdout
        audit = await go(directory, "audit", "--json")
        assert audit.exit_code == 0, audit.output
        assert rows(audit)[0]["lost"] == 1
        stage.sinks["a.example"].script = type(stage.sinks["a.example"].script)(())
        async with relaying(stage.config()) as relay:
            await relay.flush()
            await empty(relay)
        assert len(stage.sinks["a.example"].messages) == 6 + len(others)
        assert all(m.data.endswith(BODY[-1000:]) for m in stage.sinks["a.example"].messages)


@pytest.mark.parametrize("damage", ["missing", "flipped", "truncated"])
async def test_a_damaged_database_file(directory: Path, damage: str) -> None:
    """A table is gone, or a bit of it, or its end: what is left is sound, what is not is named."""
    async with staged(directory) as stage:
        await fill(stage, 12)
    database = directory / "queue" / "db"
    store = LevelDBStore(database)
    store.compact()
    store.close()
    table = max(database.glob("*.ldb"), key=lambda path: path.stat().st_size)
    if damage == "missing":
        table.unlink()
    elif damage == "truncated":
        os.truncate(table, table.stat().st_size * 2 // 3)
    else:
        data = bytearray(table.read_bytes())
        for at in random.Random(7).sample(range(len(data)), 3):
            data[at] ^= 0x10
        table.write_bytes(data)
    result = await go(directory, "queue", "repair", "--json")
    *reported, total = rows(result)
    assert result.exit_code == (1 if total["lost"] else 0), result.output
    store = LevelDBStore(database)
    assert problems(store) == []
    store.close()
    audit = await go(directory, "audit", "--json")
    assert audit.exit_code == 0, audit.output
    summary = rows(audit)[0]
    assert summary["queued"] == 12 - int(str(summary["lost"]))
    assert summary["lost"] == total["lost"] == sum(r["what"] == "lost" for r in reported)


async def test_repair_keeps_holds_and_the_reports_that_are_owed(directory: Path) -> None:
    """A held recipient whose key is lost is held again; noted failures are reported when a message ends so."""
    async with staged(directory) as stage:
        no = Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no")
        later = Rule(Step.RCPT, recipient="later*", reply="451 4.7.1 later")
        await stage.receiver("a.example", no, later)
        home = await stage.receiver("sender.example")
        zone = {"retry": {"delays": ["1h"]}, "bounce": {"aggregate": "message"}}
        config = stage.config(zones={"default": zone})
        async with relaying(config) as relay:
            store = relay.queue.store
            await send(relay, ["no1@a.example", "later1@a.example"])
            await send(relay, ["later2@a.example"])
            await until(lambda: len(list(store.keys(keys.DEFERRED, keys.end_of(keys.DEFERRED)))) == 2)
            first, second = sorted(
                keys.parse_recipient(k)[1] for k in store.keys(keys.DEFERRED, keys.end_of(keys.DEFERRED))
            )
            await Operator(relay.queue).hold(second)
        change(
            directory,
            (keys.deferred_key("default", first, "later1@a.example"), b"\xc1\xc1"),
            (keys.deferred_key("default", second, "later2@a.example"), None),
        )
        result = await go(directory, "queue", "repair", "--json")
        reported = {(r.get("what"), r.get("message")) for r in rows(result)}
        assert {("restored", first), ("restored", second)} <= reported, result.output
        listed = rows(await go(directory, "queue", "list", "--json"))
        assert {(r["message"], r["state"]) for r in listed} == {(first, "deferred"), (second, "held")}
        change(directory, (keys.deferred_key("default", first, "later1@a.example"), None))
        events = next((directory / "events").glob("date=*"))
        events.rename(directory / "elsewhere")
        result = await go(directory, "queue", "repair", "--json")
        assert ("removed", first) in {(r.get("what"), r.get("message")) for r in rows(result)}, (
            result.output
        )
        async with relaying(config):
            await until(lambda: home.messages, "the report on no1")
            assert b"no1@a.example" in home.messages[0].data


async def test_the_event_log_of_two_relays(directory: Path) -> None:
    """The audit says how many recipients the other one accepted."""
    async with staged(directory) as stage:
        await fill(stage, 2)
        async with relaying(
            stage.config(queue={"directory": "other", "min_free_disk": "1MiB"})
        ) as relay:
            for n in range(3):
                await send(relay, [f"x{n}@a.example"], BODY)
            await empty(relay)
            other = relay.queue.node
        await asyncio.to_thread(stage.config)
    result = await go(directory, "audit")
    assert f"3 recipients were accepted by node {other}, and this queue is of node" in result.stdout
    assert rows(await go(directory, "audit", "--json"))[-1]["other_nodes"] == {other: 3}
