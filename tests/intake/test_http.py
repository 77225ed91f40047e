"""The HTTP listener: what it asks of a request, and the reply of SMTP in its response."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.kit.deadlines import until
from tests.kit.http import mail_server
from tests.kit.listener import make_config
from tests.kit.queue import everything, opened
from zonemta_py.admin.http_server import HttpServer
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.intake.http import PATH
from zonemta_py.intake.inject import Injector
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import make_router
from zonemta_py.smtp.reply import encode_address

FIELDS = {
    "Content-Type": "message/rfc822",
    "Authorization": "Bearer secret",
    "X-Envelope-Sender": encode_address("s@s.example"),
    "X-Envelope-Recipient": encode_address("a@x.example"),
}


def make_listener(queue: Queue, directory: Path, port: int = 0) -> HttpServer:
    config = make_config(directory, "    max_message_size: 1KiB")

    def new_injector() -> Injector:
        return Injector(queue, make_router(config), config, "relay.example")

    return mail_server(new_injector, port=port)


@asynccontextmanager
async def posting(directory: Path) -> AsyncIterator[tuple[aiohttp.ClientSession, HttpServer, Queue]]:
    async with opened(directory / "queue", clock.now_ms, store="memory") as queue:
        listener = make_listener(queue, directory)
        await listener.start()
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.ports[0]}") as client:
                yield client, listener, queue
        finally:
            await listener.close()


async def test_a_message(tmp_path: Path) -> None:
    async with posting(tmp_path) as (client, _, queue):
        async with client.post(PATH, headers=FIELDS, data=b"Subject: x\r\n\r\nhi\r\n") as response:
            reply = response.headers["X-Smtp-Reply"]
            assert response.status == 204
        lease = queue.lease("default", "x.example", 1)
        assert lease is not None
        assert reply == f'250; message="2.0.0 Ok: queued as {lease.active.id}"'
        assert lease.active.meta.origin.protocol == "HTTP"


@pytest.mark.parametrize(
    ("changed", "status", "reply"),
    [
        ({"Authorization": "Bearer wrong"}, 401, "535;"),
        ({"Content-Type": "text/plain"}, 415, ""),
        ({"X-Envelope-Sender": None}, 500, "501;"),
        ({"X-Envelope-Recipient": None}, 500, "503;"),
        ({"X-Envelope-Recipient": "!"}, 500, "501;"),
    ],
    ids=["token", "media type", "no sender", "no recipient", "not base64"],
)
async def test_a_request_that_is_refused(
    tmp_path: Path, changed: dict[str, str | None], status: int, reply: str
) -> None:
    fields = {name: value for name, value in {**FIELDS, **changed}.items() if value is not None}
    async with posting(tmp_path) as (client, _, queue):
        async with client.post(PATH, headers=fields, data=b"\r\nhi\r\n") as response:
            assert response.status == status
            assert response.headers.get("X-Smtp-Reply", "").startswith(reply)
        assert everything(queue.store) == []


async def test_a_message_that_is_too_large(tmp_path: Path) -> None:
    """The refusal is SMTP's, whether all of the message came or not."""
    async with posting(tmp_path) as (client, _, queue):
        async with client.post(PATH, headers=FIELDS, data=b"\r\n" + b"x\r\n" * 500) as response:
            assert response.headers["X-Smtp-Reply"].startswith('552; message="5.3.4')
        assert everything(queue.store) == []


async def test_a_busy_address(tmp_path: Path) -> None:
    async with posting(tmp_path) as (_, listener, queue):
        other = make_listener(queue, tmp_path, listener.ports[0])
        with pytest.raises(LocalError, match=r"admin\.address: 127\.0\.0\.1"):
            await other.start()


async def test_a_client_that_goes_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a body: nothing is stored, and the log has no traceback."""
    tried: list[str] = []
    begin, abort = Injector.begin, Injector.abort
    monkeypatch.setattr(Injector, "begin", lambda *a, **k: (tried.append("begin"), begin(*a, **k))[1])
    monkeypatch.setattr(Injector, "abort", lambda each: (tried.append("abort"), abort(each))[1])
    async with posting(tmp_path) as (_, listener, queue):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.ports[0])
        fields = "".join(f"{name}: {value}\r\n" for name, value in FIELDS.items())
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n{fields}\r\n"
        writer.write(head.encode() + b"Subject: x\r\n\r\nbegun")
        await writer.drain()
        await until(lambda: len(tried) == 1, "the message to begin")
        writer.transport.abort()
        await until(lambda: len(tried) == 2, "its end")
        assert reader.at_eof() or reader.exception() is not None
        assert not [key for key in everything(queue.store) if key.startswith(b"message/")]
    assert not [each for each in caplog.records if each.exc_info]
