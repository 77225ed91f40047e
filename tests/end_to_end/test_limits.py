"""Limits with receivers in other processes, over a restart and a reload: exact to the message."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kit.relay import Stage, empty, logged_events, relaying, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.config.schema import Config
from zonemta_py.relay.relay import Relay

PROCESSES = pytest.mark.parametrize(
    "processes",
    [{"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}],
    ids=["one process", "several"],
)
BODY = b"From: n@acme.example\r\n\r\nhello\r\n.\r\n"


async def submit(relay: Relay, sessions: int, messages: int) -> Counter[str]:
    """Send messages by several sessions at once; the number of each reply's code."""

    async def session() -> list[str]:
        codes = []
        client = await RawClient.connect(relay.addresses[0].port)
        await client.ehlo()
        async with client:
            for _ in range(messages):
                reply = await client.command("MAIL FROM:<s@acme.example>")
                if reply.startswith("250"):
                    await client.command("RCPT TO:<x@a.example>")
                    await client.command("DATA")
                    await client.send(BODY)
                    reply = await client.reply()
                codes.append(reply[:9])
        return codes

    found = await asyncio.gather(*(session() for _ in range(sessions)))
    return Counter(code for codes in found for code in codes)


def made(stage: Stage, processes: dict[str, int], number: int) -> Config:
    tenant: dict[str, Any] = {
        "networks": ["127.0.0.0/8"], "domains": ["acme.example"],
        "limits": {"messages": ["1000/m", f"{number}/h"]},
    }  # fmt: skip
    return stage.config(tenants={"acme": tenant}, processes=processes)


@PROCESSES
async def test_exact(directory: Path, processes: dict[str, int]) -> None:
    """Fifty of eighty; none after a restart; ten more when the limit grows by ten."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(made(stage, processes, 50)) as relay:
            assert await submit(relay, 16, 5) == {"250 2.0.0": 50, "450 4.7.1": 30}
            await empty(relay)
        async with relaying(made(stage, processes, 50)) as relay:
            assert await submit(relay, 4, 1) == {"450 4.7.1": 4}
            await relay.reload(made(stage, processes, 60))
            accepted = 0
            while accepted < 10:  # a receiver may hear of it a moment later
                accepted += (await submit(relay, 8, 2))["250 2.0.0"]
            assert (await submit(relay, 8, 1)) == {"450 4.7.1": 8}
            assert accepted == 10
            await empty(relay)
        assert len(sink.messages) == 60
    assert len(logged_events(directory, "accepted")) == 60
    rejected = [e for e in logged_events(directory, "rejected") if e["tenant"] == "acme"]
    assert sum(int(e["count"]) for e in rejected) >= 30 + 4 + 6 + 8
