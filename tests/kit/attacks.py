"""A running relay under attack, and checks afterwards that it and other mail are unaffected.

``item(n)`` marks the numbers of the list in docs/reliability.md that a test covers.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import everything, problems
from tests.kit.relay import Stage, relaying, send, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.server import Received, Sink

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def item(*numbers: int) -> pytest.MarkDecorator:
    """The numbers of the list that a test covers."""
    return pytest.mark.hostile(*numbers)


class Victim:
    """A relay, and a well-behaved receiver at ``good.example``."""

    def __init__(self, relay: Relay, stage: Stage, good: Sink) -> None:
        self.relay = relay
        self.stage = stage
        self.good = good
        self.port = relay.addresses[0].port
        self.has_neighbour = True  # the addresses that the configuration of the test allows

    @property
    def sessions(self) -> int:
        return self.relay._intake.sessions

    async def client(self) -> RawClient:
        client = await RawClient.connect(self.port)
        await client.ehlo()
        return client

    async def settled(self) -> None:
        """Wait until the queue is empty."""
        await until(lambda: everything(self.relay.queue.store) == [], "an empty queue")

    def got(self) -> list[Received]:
        return self.good.messages

    async def unharmed(self) -> None:
        """Check that no session is left, that the queue is sound and that other mail is delivered."""
        await until(lambda: self.sessions == 0, "the attacker's sessions to end")
        if self.relay._stopped:  # by the test, which has read its ledger
            return
        if self.has_neighbour:
            before = len(self.good.messages)
            await send(self.relay, ["neighbour@good.example"], b"Subject: n\r\n\r\nneighbour\r\n")
            await until(lambda: len(self.good.messages) > before, "the neighbour's mail")
        windows, zones = self.relay.queue.windows._zones.values(), self.relay._delivery.zones.values()
        await until(
            lambda: any(zone._tasks for zone in zones) or not any(window._leased for window in windows),
            "every lease that no worker holds to be given back",
        )
        assert problems(self.relay.queue.store) == []
        assert not self.relay.queue.submission_keys._under_way


@asynccontextmanager
async def attacked(
    directory: Path, listener: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[Victim]:
    """A relay to attack; after the test it must be unharmed, stop in order and leave no task."""
    async with staged(directory) as stage:
        good = await stage.receiver("good.example")
        config = stage.config(listeners=[{"address": "127.0.0.1:0", **(listener or {})}], **changes)
        before = len(asyncio.all_tasks())
        async with relaying(config) as relay:
            victim = Victim(relay, stage, good)
            yield victim
            await victim.unharmed()
        gc.collect()
        await until(lambda: len(asyncio.all_tasks()) <= before, "every task to end")


@asynccontextmanager
async def receiver(stage: Stage, domain: str, handler: Handler) -> AsyncIterator[list[int]]:
    """A receiving server for ``domain`` whose connections run ``handler``; yields the number of open ones."""
    open_now = [0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now[0] += 1
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            open_now[0] -= 1
            writer.close()

    stage._used += 1
    ip = f"127.0.1.{stage._used}"
    server = await asyncio.start_server(serve, ip, stage.port)
    stage.names.records = {**stage.names.records, domain: {"A": [ip]}}
    try:
        yield open_now
    finally:
        server.close()


def answering(*replies: bytes, greeting: bytes = b"220 mx ESMTP\r\n", then: str = "wait") -> Handler:
    """Greet, answer each line with the next of ``replies``, then wait for the end of the connection or close it."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        for reply in replies:
            if not await reader.readline():
                return
            writer.write(reply)
        await writer.drain()
        if then == "wait":
            while await reader.read(65_536):
                pass

    return handler
