"""12. A flipped bit in a table: one command, and all recipients are delivered but those that it names as lost."""

import asyncio
import json
import shutil
from pathlib import Path

from click.testing import CliRunner

from tests.kit.deadlines import until
from tests.kit.relay import empty, relaying, send, staged
from zonemta_py.cli.main import main
from zonemta_py.queue.format import keys
from zonemta_py.sink.script import Rule, Script, Step
from zonemta_py.storage.interface import Access
from zonemta_py.storage.leveldb_store import LevelDBStore

BODY = b"Subject: s\r\n\r\n" + b"a line of text\r\n" * 100
MESSAGES, RECIPIENTS = 10, 5
FLIPS = 12  # at places that are spread over the table


async def test_repair_and_deliver(directory: Path) -> None:
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", Rule(Step.RCPT, reply="451 4.7.1 later"))
        config = stage.config(zones={"default": {"retry": {"delays": ["1h"]}}})
        async with relaying(config) as relay:
            for n in range(MESSAGES):
                await send(relay, [f"u{n}-{k}@a.example" for k in range(RECIPIENTS)], BODY)
            deferred = keys.DEFERRED, keys.end_of(keys.DEFERRED)
            await until(
                lambda: len(list(relay.queue.store.keys(*deferred))) == MESSAGES * RECIPIENTS,
                "deferrals",
            )
        sink.script = Script(())
        queue, sound = config.queue.directory, directory / "sound"
        store = LevelDBStore(queue / "db", Access.EXISTING)
        store.compact()
        store.close()
        shutil.copytree(queue, sound)
        shutil.copytree(config.events.directory, directory / "sound-events")
        for flip in range(FLIPS):
            for copy, original in (
                (queue, sound),
                (config.events.directory, directory / "sound-events"),
            ):
                shutil.rmtree(copy)
                shutil.copytree(original, copy)
            table = max((queue / "db").glob("*.ldb"), key=lambda path: path.stat().st_size)
            data = bytearray(table.read_bytes())
            data[len(data) * flip // FLIPS] ^= 1
            table.write_bytes(data)
            sink.tally.by_recipient.clear()
            lost = await repaired(directory)
            async with relaying(config) as relay:
                await relay.flush()
                await empty(relay)
            delivered = set(sink.tally.by_recipient)
            assert len(delivered) + lost == MESSAGES * RECIPIENTS, f"flip {flip}"
            assert max(sink.tally.by_recipient.values()) == 1


async def repaired(directory: Path) -> int:
    """Repair the queue; returns how many recipients are lost, each of which is named."""
    command = ["queue", "repair", "--json", "-c", str(directory / "zonemta.yaml")]
    result = await asyncio.to_thread(CliRunner().invoke, main, command)
    *rows, total = [json.loads(line) for line in result.stdout.splitlines()]
    lost: int = total["lost"]
    assert len([row for row in rows if row["what"] == "lost"]) == lost
    assert lost < MESSAGES * RECIPIENTS // 2
    return lost
