"""Relays that share a Redis or a bucket: what one leaves, another delivers."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.deadlines import until
from tests.kit.load import DOMAINS, Load, recipients_of
from tests.kit.relay import empty, ledger, relaying, staged
from tests.kit.servers import SHARED
from tests.kit.shared_relays import shared_settings
from tests.kit.smtp_client import RawClient
from zonemta_py import Queue
from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import AuditRequest, ListRequest
from zonemta_py.bench.process import CommandProcess, free_port
from zonemta_py.events.accounting import read_history
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import Sink
from zonemta_py.storage.open import open_shared_storage

TEXT = b"Subject: hi\r\n\r\nbody\r\n.\r\n"


@pytest.mark.crash
@pytest.mark.parametrize("kind", SHARED)
async def test_another_relay_takes_over_after_a_kill_14(directory: Path, kind: str) -> None:
    """Under load, with recipients deferred and in transactions: the other relay completes every outcome."""
    async with staged(directory) as stage:
        rules = [
            Rule(Step.RCPT, recipient="*.later@*", reply="451 4.7.1 later", times=1),
            Rule(Step.RCPT, recipient="*.no@*", reply="550 5.1.1 no"),
        ]
        names = [*(f"d{n}.example" for n in range(DOMAINS)), "senders.example"]
        sinks: list[Sink] = [await stage.receiver(name, *rules) for name in names]
        relays, ports = [], []
        for name in ("one", "two"):
            ports.append(free_port())
            config = shared_settings(
                stage, kind, name, listeners=[{"address": f"127.0.0.1:{ports[-1]}"}]
            )
            path = directory / f"{name}.yaml"
            path.write_text(config.text)
            relays.append(
                CommandProcess(
                    ["serve", "-c", str(path), "--log-level", "warning"], directory / f"{name}.log"
                )
            )
        one, two = relays
        try:
            await asyncio.to_thread(one.wait_ready)
            await asyncio.to_thread(two.wait_ready)
            load = Load(ports[0], clients=4)
            load.start()
            await until(lambda: len(load.acknowledged) > 60, "mail in the first")
            one.kill()
            load.port = ports[1]
            before = len(load.acknowledged)
            await until(lambda: len(load.acknowledged) > before + 60, "mail in the second")
            await load.stop()
            expected = {a for number in load.acknowledged for a in recipients_of(number)}
            refused = {address for address in expected if ".no@" in address}
            wanted = (expected - refused) | {f"{a.partition('.')[0]}@senders.example" for a in refused}
            await until(lambda: wanted <= set(arrived(sinks)), "everything to arrive", 60)
            shared = open_shared_storage(shared_settings(stage, kind, "three").queue)
            assert shared is not None
            await until(
                lambda: "given back" in (directory / "two.log").read_text(), "the end of the takeover"
            )
            await until(
                lambda: not any("recipients" in row for row in ask(directory / "two", AuditRequest()))
            )
            assert two.stop() == 0
            assert shared.orphans() == []
            shared.close()
        finally:
            for relay in relays:
                relay.kill()
        text = (directory / "two.log").read_text()
        assert "the queue of one is taken over" in text
        assert "Traceback" not in text
    records = [r for path in sealed_segments(directory / "events") for r in read_segment(path)]
    named = {r["recipient"] for r in records if r["event"] == "uncertain" or r.get("uncertain")}
    twice = {address for address, count in arrived(sinks).items() if count > 1}
    assert twice <= named
    assert read_history(directory / "events").queued("default") == 0
    finals = Counter(
        (r["message"], r["index"]) for r in records if r["event"] in ("delivered", "bounced")
    )
    assert set(finals.values()) == {1}


@pytest.mark.crash
@pytest.mark.parametrize("kind", SHARED)
async def test_what_was_used_of_a_limit_is_taken_over(directory: Path, kind: str) -> None:
    """Of the hour's ten messages the killed relay had sent all: what it leaves waits, and other mail of its leaves."""
    rate: dict[str, Any] = {"rate": ["10/h"]}
    providers = {"providers": {"big": {"mx": ["*.big.example"], "limits": rate}}}
    (directory / "providers.yaml").write_text(yaml.safe_dump(providers))
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], **rate)
        free = await stage.receiver("free.example", Rule(Step.RCPT, reply="451 4.7.1 later", times=1))

        def started(name: str) -> tuple[CommandProcess, int]:
            port = free_port()
            config = shared_settings(
                stage, kind, name, listeners=[{"address": f"127.0.0.1:{port}"}],
                providers={"file": "providers.yaml", "shipped": False},
                pools={"default": [{"address": "127.0.0.31"}]},
                zones={"default": {"retry": {"delays": ["3s"]}}},
            )  # fmt: skip
            path = directory / f"{name}.yaml"
            path.write_text(config.text)
            return CommandProcess(["serve", "-c", str(path)], directory / f"{name}.log"), port

        one, port = started("one")
        relays = [one]
        try:
            await asyncio.to_thread(one.wait_ready)
            async with await RawClient.connect(port) as client:
                await client.ehlo()
                for name in [*(f"u{n}@d.example" for n in range(14)), "x@free.example"]:
                    assert (await client.message(TEXT, name)).startswith("250")

            def states() -> Counter[object]:
                return Counter(row["state"] for row in ask(directory / "one", ListRequest()))

            await until(lambda: len(big.accepted) == 10, "what the hour allows")
            await until(lambda: states()["deferred"] == 1, "the deferral of the other mail")
            await until(lambda: states().total() == 5, "the settles of what was sent")
            one.kill()
            two, _ = started("two")
            relays.append(two)
            await asyncio.to_thread(two.wait_ready)
            await until(lambda: free.messages, "the other mail, from the other relay", 60)
            assert len(big.accepted) == 10
            assert two.stop() == 0
        finally:
            for relay in relays:
                relay.kill()
        assert big.violations == []


def arrived(sinks: list[Sink]) -> Counter[str]:
    """How often each recipient got its mail."""
    found: Counter[str] = Counter()
    for sink in sinks:
        found.update(sink.tally.by_recipient)
    return found


@pytest.mark.parametrize("kind", SHARED)
async def test_mail_left_by_a_program_is_taken_over_14(directory: Path, kind: str) -> None:
    """A program submits mail and ends; a relay with the same shared storage delivers it."""
    async with staged(directory) as stage:
        sink = await stage.receiver("d.example")
        async with relaying(shared_settings(stage, kind, "one")) as relay:
            async with Queue(shared_settings(stage, kind, "program", listeners=[])) as queue:
                for number in range(3):
                    text = b"Subject: x\n\n%d\n" % number
                    await queue.enqueue("s@a.example", [f"u{number}@d.example"], text + b"y\n" * 50_000)
            await until(lambda: len(sink.messages) == 3, "the program's mail")
            assert relay._orphans is not None
            recovery = relay._orphans
            await until(lambda: not recovery.names, "the partition to be released")
            await empty(relay)
    assert ledger(directory).total("delivered") == 3
