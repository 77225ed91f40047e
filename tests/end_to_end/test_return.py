"""``zonemta queue bounce``: a message goes back to its sender, with one report."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kit.deadlines import until
from tests.kit.relay import empty, logged_events, relaying, send, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.cli.main import main
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep import operator
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step

BODY = b"Subject: x\r\n\r\nhello\r\n"
LATER = Rule(Step.RCPT, reply="451 4.7.1 later")


async def deferred(relay: Relay, count: int) -> str:
    """The message that has ``count`` deferred recipients."""

    def found() -> list[bytes]:
        return list(relay.queue.store.keys(keys.DEFERRED, keys.end_of(keys.DEFERRED)))

    await until(lambda: len(found()) == count, "the deferrals")
    return keys.parse_recipient(found()[0])[1]


async def bounce(directory: Path, *arguments: str) -> dict[str, int]:
    command = ["queue", "bounce", "-c", str(directory / "zonemta.yaml"), "--json", *arguments]
    result = await asyncio.to_thread(CliRunner().invoke, main, command)
    row: dict[str, int] = json.loads(result.stdout)
    return row


@pytest.mark.parametrize("aggregate", ["attempt", "message"])
async def test_a_message(directory: Path, aggregate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several steps, and one report on all recipients."""
    monkeypatch.setattr(operator, "STEP", 3)
    async with staged(directory) as stage:
        home = await stage.receiver("a.example")
        await stage.receiver("later.example", LATER)
        zone = {"bounce": {"aggregate": aggregate}, "retry": {"delays": ["1h"]}}
        async with relaying(stage.config(zones={"default": zone})) as relay:
            await send(relay, [f"u{n}@later.example" for n in range(10)], BODY, "s@a.example")
            message = await deferred(relay, 10)
            assert await bounce(directory, message, "--reason", "sent by mistake") == {
                "bounced": 10, "in_flight": 0,
            }  # fmt: skip
            await until(lambda: home.messages, "the report")
            await empty(relay)
    [report] = home.messages
    assert report.sender == ""
    for number in range(10):
        assert b"u%d@later.example" % number in report.data
    assert b"sent by mistake" in report.data
    assert len(logged_events(directory, "bounced")) == 10
    assert {event["phase"] for event in logged_events(directory, "bounced")} == {"operator"}


async def test_a_recipient(directory: Path) -> None:
    """The report on one does not wait for the others, and is not repeated at their end."""
    async with staged(directory) as stage:
        home = await stage.receiver("a.example")
        await stage.receiver("later.example", LATER)
        zone = {"bounce": {"aggregate": "message"}, "retry": {"delays": ["1h"]}}
        async with relaying(stage.config(zones={"default": zone})) as relay:
            await send(relay, [f"u{n}@later.example" for n in range(3)], BODY, "s@a.example")
            message = await deferred(relay, 3)
            assert (await bounce(directory, message, "--recipient", "u1@later.example"))["bounced"] == 1
            await until(lambda: len(home.messages) == 1, "the report")
            assert (await bounce(directory, message))["bounced"] == 2
            await until(lambda: len(home.messages) == 2, "the second report")
            await empty(relay)
    first, second = (message.data for message in home.messages)
    assert b"u1@later.example" in first
    assert b"u0@later.example" not in first
    assert b"u1@later.example" not in second.partition(b"message/rfc822")[0]
    assert b"u0@later.example" in second


async def test_a_sender_that_wants_no_report(directory: Path) -> None:
    async with staged(directory) as stage:
        home = await stage.receiver("a.example")
        await stage.receiver("later.example", LATER)
        zone = {"retry": {"delays": ["1h"]}}
        async with relaying(stage.config(zones={"default": zone})) as relay:
            async with await RawClient.connect(relay.addresses[0].port) as client:
                await client.ehlo()
                await client.command("MAIL FROM:<s@a.example>")
                await client.command("RCPT TO:<u@later.example> NOTIFY=NEVER")
                assert (await client.command("DATA")).startswith("354")
                await client.send(BODY + b".\r\n")
                assert (await client.reply()).startswith("250")
            message = await deferred(relay, 1)
            assert (await bounce(directory, message))["bounced"] == 1
            await empty(relay)
    assert home.messages == []
    assert len(logged_events(directory, "bounced")) == 1
