"""The connection of a session: replies in order, limits, flow control, over a socket pair."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.kit.deadlines import until
from zonemta_py.config.values import Seconds
from zonemta_py.config.zones import Timeouts
from zonemta_py.core.errors import SessionLost
from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.session import Dialogue


@asynccontextmanager
async def connected(
    owed: int = 9, data_s: float = 30.0
) -> AsyncIterator[tuple[Dialogue, socket.socket]]:
    """A dialogue and the socket of its peer. ``owed``: replies that may arrive before they are awaited."""
    ours, peer = socket.socketpair()
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    dialogue = Dialogue(
        loop, transport, {"size": "1000", "pipelining": ""}, Timeouts(data=Seconds(data_s))
    )
    dialogue._replies_owed = owed
    transport.set_protocol(dialogue)
    try:
        yield dialogue, peer
    finally:
        dialogue.abort()
        peer.close()


async def test_extensions() -> None:
    async with connected() as (dialogue, _):
        assert dialogue.offers("pipelining")
        assert not dialogue.offers("starttls")
        assert dialogue.size_max == 1000
        assert not dialogue.secure


async def test_replies_in_order() -> None:
    """Those that have arrived, and one that is awaited and arrives in pieces."""
    async with connected() as (dialogue, peer):
        peer.send(b"250 2.1.0 one\r\n250-2.1.5 two\r\n250 2.1.5 three\r\n35")
        assert await dialogue._reply(10) == Reply(250, "2.1.0", "one")
        assert await dialogue._reply(10) == Reply(250, "2.1.5", "two three")
        awaited = asyncio.ensure_future(dialogue._reply(10))
        await asyncio.sleep(0)
        peer.send(b"4 go\r\n")
        assert await awaited == Reply(354, "", "go")
        assert dialogue.usable


async def test_421_ends_the_use() -> None:
    async with connected() as (dialogue, peer):
        peer.send(b"421 4.3.2 closing\r\n")
        assert (await dialogue._reply(10)).code == 421
        assert not dialogue.usable


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"250 one\r\n250 two\r\n", "replies without commands"),
        (b"HTTP/1.1 200\r\n", "not an SMTP reply"),
    ],
)
async def test_a_peer_that_breaks_the_protocol(data: bytes, text: str) -> None:
    async with connected(owed=1) as (dialogue, peer):
        peer.send(data)
        await until(lambda: not dialogue.usable, "the end of the session")
        dialogue._replies.clear()
        with pytest.raises(SessionLost, match=text):
            await dialogue._reply(10)
        with pytest.raises(SessionLost, match=text):
            dialogue._write(b"NOOP\r\n")


async def test_a_wait_ends_with_the_connection() -> None:
    async with connected() as (dialogue, peer):
        awaited = asyncio.ensure_future(dialogue._reply(10))
        await asyncio.sleep(0)
        peer.close()
        with pytest.raises(SessionLost, match="closed the connection"):
            await awaited


async def test_a_reply_that_is_late() -> None:
    async with connected() as (dialogue, _):
        with pytest.raises(SessionLost, match="timed out"):
            await dialogue._reply(0.05)
        assert not dialogue.usable


async def test_a_peer_that_does_not_read() -> None:
    """Writing pauses, ends at the limit of time, and goes on when the peer reads."""
    block = b"x" * 4_000_000
    async with connected(data_s=0.05) as (dialogue, _):
        dialogue._write(block)
        with pytest.raises(SessionLost, match="timed out"):
            await dialogue._drained()
    async with connected() as (dialogue, peer):
        dialogue._write(block)
        drained = asyncio.ensure_future(dialogue._drained())
        loop = asyncio.get_running_loop()
        received = 0
        while received < len(block):
            received += len(await loop.sock_recv(peer, 1 << 20))
        await drained
        assert dialogue.usable


async def test_a_reply_ends_the_pause() -> None:
    """A peer that refuses a body in the middle does not read the remainder: the writer must see the reply."""
    async with connected() as (dialogue, peer):
        dialogue._write(b"x" * 4_000_000)
        drained = asyncio.ensure_future(dialogue._drained())
        await asyncio.sleep(0)
        peer.send(b"552 5.3.4 too large\r\n")
        await drained
        assert dialogue._next() == Reply(552, "5.3.4", "too large")


async def test_close_says_quit() -> None:
    """To a peer in order; a session that is not usable is cut without a word."""
    async with connected() as (dialogue, peer):
        dialogue.close()
        assert not dialogue.usable
        assert await asyncio.get_running_loop().sock_recv(peer, 100) == b"QUIT\r\n"
    async with connected() as (dialogue, peer):
        dialogue.usable = False
        dialogue.close()
        assert await asyncio.get_running_loop().sock_recv(peer, 100) == b""
