"""The agent of zones without sessions: recipient by recipient, through real transports."""

import asyncio
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web

from tests.delivery.agents import HEADER, Context, request
from tests.kit.deadlines import until
from zonemta_py.config.load import parse_config
from zonemta_py.config.zones import Zone
from zonemta_py.core.errors import ConfigError, QueueCorrupt, QueueUnavailable
from zonemta_py.delivery.local_agent import LocalAgent, is_local, make_transport
from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.local import LocalMessage, Unanswered

seen: list[LocalMessage] = []


async def by_recipient(message: LocalMessage) -> Reply:
    """Refuses ``no@``; reads the body of the others."""
    seen.append(message)
    if message.recipient.startswith("no@"):
        return Reply(550, "5.1.1", "no such\r\nuser")
    await message.begin()
    assert b"".join([chunk async for chunk in message.body()]) == b"body\r\n"
    return Reply(250, "2.0.0", "stored")


def zone_of(directory: Path, settings: str) -> Zone:
    config = parse_config(f"zones: {{default: {{{settings}}}}}\n", directory / "z.yaml")
    return config.zones["default"]


@pytest.mark.parametrize(
    ("transport", "local"),
    [("smtp", False), ("lmtp", False), ("dequeue", False), ("blackhole", True), ("maildir", True)],
)
def test_which_zones_are_local(transport: str, local: bool) -> None:
    assert is_local(Zone(transport=transport)) is local


@pytest.mark.parametrize("chunk_bytes", [0, 2])
async def test_each_recipient_has_its_attempt(directory: Path, chunk_bytes: int) -> None:
    seen.clear()
    zone = zone_of(
        directory,
        "transport: python, python: {function: 'tests.delivery.test_local_agent.by_recipient'}",
    )
    agent = LocalAgent(zone, "relay.example")
    context = Context(chunk_bytes=chunk_bytes)
    result = await agent.deliver(request("x@a.example", "no@a.example", "y@b.example"), context)
    agent.close()
    assert context.opened == 1
    assert [attempt.code for attempt in result.attempts if attempt] == [250, 550, 250]
    stored, refused, _ = result.attempts
    assert stored is not None
    assert refused is not None
    assert (stored.phase, stored.status, stored.text, stored.final) == ("dot", "2.0.0", "stored", True)
    assert "\r" not in refused.text
    assert result.failure is None
    assert [(m.message, m.sender, m.recipient, m.header) for m in seen] == [
        ("message", "s@sender.example", address, HEADER)
        for address in ("x@a.example", "no@a.example", "y@b.example")
    ]


async def test_maildir(directory: Path) -> None:
    """The message is on disk, with the fields of final delivery."""
    path = directory / "mail"
    zone = zone_of(directory, f"transport: maildir, maildir: {{path: '{path}/{{user}}', create: true}}")
    agent = LocalAgent(zone, "relay.example")
    result = await agent.deliver(request("x@a.example"), Context())
    agent.close()
    assert [attempt.code for attempt in result.attempts if attempt] == [250]
    [file] = (path / "x" / "new").iterdir()
    assert file.read_bytes().startswith(b"Return-Path: <s@sender.example>\nDelivered-To: x@a.example\n")


async def test_a_damaged_body_defers(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = LocalAgent(zone_of(directory, "transport: blackhole"), "relay.example")
    result = await agent.deliver(request("x@a.example"), Context(QueueCorrupt("chunk 1 is missing")))
    agent.close()
    [attempt] = result.attempts
    assert attempt is not None
    assert (attempt.code, attempt.status) == (0, "4.3.0")
    assert "message is not delivered: chunk 1 is missing" in caplog.text


class Silent:
    """A transport that gets no answer."""

    async def deliver(self, message: LocalMessage) -> Reply:
        await message.begin()
        return Unanswered(451, "4.4.7", "no answer")

    def close(self) -> None:
        pass


async def test_without_an_answer_an_attempt_is_uncertain(directory: Path) -> None:
    agent = LocalAgent(zone_of(directory, "transport: blackhole"), "relay.example")
    agent._transport = Silent()
    [attempt] = (await agent.deliver(request("x@a.example"), Context())).attempts
    assert attempt is not None
    assert attempt.uncertain


class Defective:
    """A transport with a defect: it fails on ``no@``, and has no text for ``odd@``."""

    async def deliver(self, message: LocalMessage) -> Reply:
        await message.begin()
        if message.recipient.startswith("no@"):
            raise LookupError("a defect")
        odd = message.recipient.startswith("odd@")
        return Reply(451, cast(str, None), "x") if odd else Reply(250, "2.0.0", "stored")

    def close(self) -> None:
        pass


async def test_an_exception_concerns_one_recipient(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those delivered before it stay delivered, and those behind it are tried."""
    agent = LocalAgent(zone_of(directory, "transport: blackhole"), "relay.example")
    agent._transport = Defective()
    addresses = ("x@a.example", "no@a.example", "odd@a.example", "y@a.example")
    result = await agent.deliver(request(*addresses), Context())
    assert [(a.code, a.status) for a in result.attempts if a] == [
        (250, "2.0.0"), (451, "4.3.0"), (451, "4.3.0"), (250, "2.0.0"),
    ]  # fmt: skip
    assert "LookupError: a defect" in caplog.text


async def test_a_queue_that_cannot_start_ends_the_request(directory: Path) -> None:
    agent = LocalAgent(zone_of(directory, "transport: blackhole"), "relay.example")
    with pytest.raises(QueueUnavailable):
        await agent.deliver(request("x@a.example"), Context(QueueUnavailable("no disk")))


async def test_a_reload_does_not_abort_requests(directory: Path) -> None:
    """The old agent is closed in the middle of a lease: every recipient is posted once, over the same session."""
    posts = 0
    go_on = asyncio.Event()

    async def post(received: web.Request) -> web.Response:
        nonlocal posts
        await received.read()
        posts += 1
        await go_on.wait()
        return web.Response(status=204)

    application = web.Application()
    application.router.add_post("/in", post)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/in"
    agent = LocalAgent(zone_of(directory, f"transport: http, http: {{url: '{url}'}}"), "relay.example")
    delivery = asyncio.create_task(agent.deliver(request("x@a.example", "y@a.example"), Context()))
    await until(lambda: posts == 1, "the first request")
    agent.close()
    go_on.set()
    result = await delivery
    assert [attempt.code for attempt in result.attempts if attempt] == [250, 250]
    assert posts == 2
    assert runner.server is not None
    await until(lambda: not runner.server.connections, "the end of the connection")  # type: ignore[union-attr]  # it is started
    await runner.cleanup()


def test_a_function_that_cannot_be_loaded() -> None:
    zone = Zone(transport="python")
    with pytest.raises(ConfigError):
        make_transport(zone, "relay.example")
