"""Listeners behind a load balancer: the PROXY header names the client."""

import asyncio
import base64
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled
from tests.kit.listener import ListenerUnderTest, listening, users_file
from tests.kit.proxy import binary_header, proxy_header

pytestmark = pytest.mark.usefixtures("queue_client")

BEHIND = "    proxies: [127.0.0.0/8]\n    trusted_networks: [192.0.2.0/24, 127.0.0.0/8]"
MAIL = b"EHLO c.example\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nDATA\r\n"


async def dialogue(relay: ListenerUnderTest, *pieces: bytes) -> bytes:
    """The replies to ``pieces``, each sent in its own segment, until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.address.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    writer.write_eof()
    said = await asyncio.wait_for(reader.read(), scaled(20))
    writer.close()
    return said


@pytest.mark.parametrize("version", [1, 2])
async def test_the_client_is_who_the_proxy_names(tmp_path: Path, version: int) -> None:
    """No greeting before the header is complete; trust and Received are about the client."""
    async with listening(tmp_path, BEHIND) as relay:
        header = proxy_header("192.0.2.7", version)
        said = await dialogue(relay, header[:9], header[9:20], header[20:] + MAIL, b"Subject: x\r\n\r\nhi\r\n.\r\nQUIT\r\n")  # fmt: skip
        assert said.startswith(b"220 ")
        assert b"250 2.0.0 Ok: queued" in said
        assert b"192.0.2.7" in b"".join(v for _, v in relay.queue.store.scan(b"", b"\xff"))
        said = await dialogue(relay, proxy_header("198.51.100.1", version) + MAIL)
        assert b"\r\n530 " in said, "the proxy is trusted, its client is not"


async def test_a_proxy_without_a_client(tmp_path: Path) -> None:
    """A health check: the proxy's own address counts."""
    async with listening(tmp_path, BEHIND) as relay:
        said = await dialogue(relay, binary_header(0x20, 0, b"") + MAIL + b".\r\n")
        assert b"354 " in said


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", binary_header(0x21, 0x31, bytes(216))])
async def test_a_client_without_an_address(tmp_path: Path, header: bytes) -> None:
    """One of a proxy that knows no address of it has none of the proxy's rights; a login has those of a user."""
    users_file(tmp_path)
    extra = BEHIND + "\n    auth: {users_file: users, require_tls: false}"
    async with listening(tmp_path, extra) as relay:
        assert b"\r\n530 " in await dialogue(relay, header + MAIL)
        login = b"EHLO c\r\nAUTH PLAIN " + base64.b64encode(b"\0news\0secret") + b"\r\n"
        said = await dialogue(relay, header + login + MAIL, b"Subject: x\r\n\r\nhi\r\n.\r\nQUIT\r\n")
        assert b"250 2.0.0 Ok: queued" in said


@pytest.mark.parametrize("data", [MAIL, b"PROXY TCP4 x y 1 2\r\n", b"\r\n\r\n\0\r\nQUIT\nxxxx"])
async def test_no_header(tmp_path: Path, data: bytes) -> None:
    async with listening(tmp_path, BEHIND) as relay:
        assert await dialogue(relay, data) == b"421 4.7.0 This is not the PROXY protocol\r\n"


async def test_a_header_from_a_client(tmp_path: Path) -> None:
    """A client that is not a proxy cannot take another address."""
    async with listening(tmp_path) as relay:
        said = await dialogue(relay, proxy_header("192.0.2.7", 1) + MAIL)
        assert said.endswith(b"421 4.7.0 This is not SMTP\r\n")


async def test_strangers_behind_a_proxy_are_limited_as_others(tmp_path: Path) -> None:
    """The proxy is trusted, not its clients: one of them gets a quarter of the sessions."""
    extra = "    proxies: [127.0.0.0/8]\n    trusted_networks: []\n    max_sessions: 8"
    async with listening(tmp_path, extra) as relay:
        clients, replies = [], []
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.address.port)
            writer.write(proxy_header("203.0.113.9", 1))
            replies.append(await asyncio.wait_for(reader.readline(), scaled(20)))
            clients.append(writer)
        assert [reply[:3] for reply in replies] == [b"220", b"220", b"421", b"421"]
        other = await dialogue(relay, proxy_header("198.51.100.1", 1) + b"QUIT\r\n")
        assert other.startswith(b"220")
        for writer in clients:
            writer.close()
