"""kill -9 of a real relay process in the middle of its work, ten times at random moments.

Every message answered 250 arrives. One that arrives twice was in a transaction that an
``inflight/`` key named, or its answer was lost: the ledger says ``uncertain`` for each.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import until
from tests.end_to_end.harness import Stage, staged
from tests.queue.harness import everything, problems
from zonemta_py.admin.control import ask
from zonemta_py.bench.children import Child, free_port
from zonemta_py.bench.script import Rule, Step
from zonemta_py.events.account import account_of
from zonemta_py.events.segments import read_segment, sealed_segments
from zonemta_py.queue.leveldb import LevelStore

KILLS = 10
MESSAGES = 2400
CLIENTS = 12


class Submitter:
    """Clients that submit numbered messages and remember which were answered 250."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.next = 0
        self.acknowledged: set[str] = set()

    async def client(self) -> None:
        while self.next < MESSAGES:
            try:
                await self._session()
            except (ConnectionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.02)  # the relay is being killed; a real client would wait too

    async def _session(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            await reader.readuntil(b"220 ")
            writer.write(b"EHLO c.example\r\n")
            await reader.readuntil(b"250 ENHANCEDSTATUSCODES\r\n")
            while self.next < MESSAGES:
                number, self.next = self.next, self.next + 1
                address = f"{number}@d{number % 3}.example"
                size = 70_000 if number % 20 == 0 else 500
                body = (b"x" * 70 + b"\r\n") * (size // 72)
                writer.write(b"MAIL FROM:<>\r\nRCPT TO:<" + address.encode() + b">\r\nDATA\r\n")
                await reader.readuntil(b"354 End data with <CR><LF>.<CR><LF>\r\n")
                writer.write(b"Subject: x\r\n\r\n" + body + b".\r\n")
                if (await reader.readline()).startswith(b"250 2.0.0"):
                    self.acknowledged.add(address)
        finally:
            writer.close()


async def _run(stage: Stage, folder: Path, rng: random.Random) -> Submitter:
    port = free_port()
    config = folder / "zonemta.yaml"
    stage.config(
        listeners=[{"address": f"127.0.0.1:{port}"}], zones={"default": {"messages_per_connection": 20}}
    )
    arguments = ["serve", "-c", str(config), "--log-level", "warning"]
    submitter = Submitter(port)
    relay = Child(arguments, folder / "relay.log")
    try:
        await asyncio.to_thread(relay.wait_ready)
        clients = [asyncio.ensure_future(submitter.client()) for _ in range(CLIENTS)]
        for kill in range(KILLS):
            wanted = (kill + rng.random()) * MESSAGES / (KILLS + 1)
            await until(lambda wanted=wanted: submitter.next >= wanted, "work to be under way")
            await asyncio.sleep(rng.random() * 0.05)  # the random moment, not a wait for anything
            relay.kill()
            relay = Child(arguments, folder / "relay.log")
            await asyncio.to_thread(relay.wait_ready)
        await asyncio.gather(*clients)
        await until(lambda: not list(ask(folder / "queue", "summary", {})), "an empty queue", 60)
        assert relay.stop() == 0
    finally:
        relay.kill()
    return submitter


@pytest.mark.crash
@pytest.mark.timeout(240)
async def test_every_acknowledged_message_arrives(folder: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    async with staged(folder) as stage:
        rule = Rule(Step.RCPT, recipient="*7@*", reply="451 4.7.1 later", times=1)
        sinks = [await stage.receiver(f"d{n}.example", rule) for n in range(3)]
        for sink in sinks:
            sink.keep = False
        submitter = await _run(stage, folder, random.Random(seed))
    arrived: Counter[str] = Counter()
    for sink in sinks:
        arrived.update(sink.tally.by_recipient)
    lost = submitter.acknowledged - set(arrived)
    assert not lost, f"acknowledged and not delivered: {sorted(lost)[:5]}"
    assert len(submitter.acknowledged) > MESSAGES // 2

    records = [r for path in sealed_segments(folder / "events") for r in read_segment(path)]
    named = {r["recipient"] for r in records if r["event"] == "uncertain" or r.get("uncertain")}
    twice = {address for address, count in arrived.items() if count > 1}
    assert twice <= named, f"delivered twice and not named: {sorted(twice - named)[:5]}"

    identities = [(r["node"], r["seq"], r["position"]) for r in records]
    assert len(identities) == len(set(identities))
    account = account_of(folder / "events")
    assert account.queued("default") == 0
    finals = Counter(
        (r["message"], r["index"]) for r in records if r["event"] in ("delivered", "bounced", "expired")
    )
    assert set(finals.values()) == {1}
    assert sum(arrived.values()) >= account.total("delivered")

    store = LevelStore(folder / "queue" / "db")
    assert problems(store) == []
    assert everything(store) == []
    store.close()
