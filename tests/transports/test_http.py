"""HTTP POST against a scripted server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.kit.deadlines import scaled
from tests.kit.local_transport import HEADER, delivered, local_message
from zonemta_py.smtp.reply import Reply, decode_address
from zonemta_py.transports.http import HttpTransport
from zonemta_py.transports.local import Unanswered

Answer = Callable[[web.Request, bytes], web.Response]


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[str]:
    """The URL of a server that reads a message and answers so."""

    async def handle(request: web.Request) -> web.Response:
        return answer(request, await request.read())

    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/in", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/in"
    await runner.cleanup()


async def test_what_is_posted() -> None:
    """The bytes unchanged, the envelope in fields, and the bearer token."""
    seen: list[tuple[web.Request, bytes]] = []

    def answer(request: web.Request, body: bytes) -> web.Response:
        seen.append((request, body))
        return web.Response(status=204, headers={"X-Smtp-Reply": '250; message="2.1.5 kept as 7"'})

    async with server(answer) as url:
        transport = HttpTransport(url, 5, "relay.example", "secret")
        chunks = [b"a" * 70_000, b"\r\n", b"b" * 70_000]
        reply = await delivered(transport, *chunks)
        transport.close()
        assert transport._closing is not None
        await transport._closing
    assert (reply.code, reply.status, reply.text) == (250, "2.1.5", "kept as 7")
    request, body = seen[0]
    assert body == b"Subject: x\r\n\r\n" + b"".join(chunks)
    assert decode_address(request.headers["X-Envelope-Sender"]) == "s@a.example"
    assert decode_address(request.headers["X-Envelope-Recipient"]) == "joe@b.example"
    assert (request.content_type, request.headers["Authorization"]) == (
        "message/rfc822",
        "Bearer secret",
    )
    assert request.headers["X-Ehlo"] == "relay.example"


@pytest.mark.parametrize(
    ("status", "field", "code"),
    [
        (200, "", 250),
        (500, '250; message="2.0.0 fine"', 250),
        (200, '450; message="4.2.1 later"', 450),
        (200, "nonsense", 250),
        (400, "", 550),
        (404, "", 451),
        (401, '535; message="5.7.8 wrong"', 451),
        (429, "", 451),
        (503, "", 451),
        (301, "", 451),
    ],
)
async def test_answers(status: int, field: str, code: int) -> None:
    """The field takes precedence over the status; redirections are not followed: they would lose the message."""
    headers = {"X-Smtp-Reply": field} if field else {}
    async with server(lambda request, body: web.Response(status=status, headers=headers)) as url:
        transport = HttpTransport(url, 5, "relay.example")
        assert (await delivered(transport, b"x")).code == code
        transport.close()
        assert transport._closing is not None
        await transport._closing


async def test_no_response() -> None:
    """A closed port, and a server that reads and does not respond: temporary failures without a reply."""
    closed = HttpTransport("http://127.0.0.1:9/in", 5, "relay.example")
    assert (await delivered_or_not(closed)).startswith("4.4.1")
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    slow = HttpTransport(
        f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/in", 0.2, "relay.example"
    )
    assert (await delivered_or_not(slow)).startswith("4.4.2")
    for transport in (closed, slow):
        transport.close()
        assert transport._closing is not None
        await transport._closing
    for writer in writers:
        writer.close()
        await writer.wait_closed()
    silent.close()


@pytest.mark.parametrize("end", ["silent", "closed"])
async def test_a_message_without_a_response_may_have_been_taken(end: str) -> None:
    """The whole message was read. A server that reads no more than its beginning has not taken it."""
    wanted = b"whole"
    ends = asyncio.Event()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(wanted)
        if end == "silent":
            await ends.wait()
        writer.close()

    silent = await asyncio.start_server(read, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/in"
    transport = HttpTransport(url, scaled(0.5), "relay.example")
    reply = await transport.deliver(local_message(b"whole"))
    assert (reply.code, type(reply)) == (0, Unanswered)
    wanted = b"\r\n\r\n"
    reply = await transport.deliver(local_message(*[b"x" * 1_000_000] * 32))
    assert (reply.code, type(reply)) == (0, Reply)
    ends.set()
    transport.close()
    assert transport._closing is not None
    await transport._closing
    silent.close()
    await silent.wait_closed()


async def delivered_or_not(transport: HttpTransport) -> str:
    reply = await transport.deliver(local_message(b"x"))
    assert reply.code == 0
    return f"{reply.status} {reply.text}"


async def test_a_reason_that_is_not_text() -> None:
    """It is cleaned: the queue could not store it, and the message would be sent again and again."""

    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEADER + b"\r\nx")
        writer.write(b"HTTP/1.1 200 \xff\xfe\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server_of_odd = await asyncio.start_server(odd, "127.0.0.1", 0)
    port = server_of_odd.sockets[0].getsockname()[1]
    transport = HttpTransport(f"http://127.0.0.1:{port}/in", 5, "relay.example")
    reply = await delivered(transport, b"x")
    reply.text.encode()
    assert reply.code == 250
    transport.close()
    assert transport._closing is not None
    await transport._closing
    server_of_odd.close()
