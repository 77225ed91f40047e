"""Connections in memory behave as those of a kernel: order, ends, resets, and peers that do not read or do not answer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.network import HIGH_BYTES, USUAL, WRITE_TIMEOUT_S, Conditions, Network
from tests.simulation.virtual import VirtualLoop

AT = ("127.0.1.1", 25)


class Side(asyncio.Protocol):
    """Notes what happens. ``stays``: it does not close when the other side has ended."""

    stays = False

    def __init__(self) -> None:
        self.data = bytearray()
        self.events: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.stays

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


def run(
    work: Callable[[VirtualLoop, Side, Side], Coroutine[Any, Any, None]], conditions: Conditions = USUAL
) -> float:
    """Call ``work`` with a client and a server; returns the virtual time that it took."""
    loop = VirtualLoop()
    loop.network = Network(loop)
    loop.network.conditions = lambda to: conditions

    async def begin() -> None:
        servers: list[Side] = []

        def accepted() -> Side:
            servers.append(Side())
            return servers[-1]

        await loop.create_server(accepted, *AT)
        _, client = await loop.create_connection(Side, *AT)
        assert isinstance(client, Side)
        await work(loop, client, servers[0])

    try:
        loop.run_until_complete(begin())
        return loop.now_s
    finally:
        loop.close()


def test_bytes_arrive_in_order_and_then_the_end() -> None:
    async def work(loop: VirtualLoop, client: Side, server: Side) -> None:
        sent = bytes(range(256)) * 20
        client.transport.write(sent)
        client.transport.close()
        assert await server.lost is None
        assert bytes(server.data) == sent
        assert server.events == ["eof"]

    took_s = run(work, Conditions(delay_s=1.0, piece_bytes=512, pause_s=0.5))
    assert 2.0 + 9 * 0.5 <= took_s < 8.0


@pytest.mark.parametrize("to_client", [False, True])
def test_a_reset_in_the_middle(*, to_client: bool) -> None:
    async def work(loop: VirtualLoop, client: Side, server: Side) -> None:
        writer, reader = (server, client) if to_client else (client, server)
        writer.transport.write(b"x" * 100)
        for side in (client, server):
            assert isinstance(await side.lost, ConnectionResetError)
        assert len(reader.data) == 7

    run(work, Conditions(fault="reset", bytes=7, to_client=to_client))


def test_a_peer_that_is_cut_off() -> None:
    """No byte arrives, on neither side, and no end: a side that has written hears of it after a long time."""

    async def work(loop: VirtualLoop, client: Side, server: Side) -> None:
        client.transport.write(b"x" * 100)
        assert isinstance(await client.lost, TimeoutError)
        assert len(server.data) == 7
        assert not server.lost.done()

    assert run(work, Conditions(fault="cut off", bytes=7)) >= WRITE_TIMEOUT_S


def test_a_stall_ends() -> None:
    async def work(loop: VirtualLoop, client: Side, server: Side) -> None:
        client.transport.write(b"x" * 100)
        client.transport.close()
        await server.lost
        assert len(server.data) == 100

    assert 300 <= run(work, Conditions(fault="stall", bytes=7, stall_s=300.0)) < 310


def test_a_peer_that_does_not_read() -> None:
    """The transport pauses its protocol, and resumes it when the peer reads."""

    async def work(loop: VirtualLoop, client: Side, server: Side) -> None:
        server.transport.pause_reading()
        client.transport.write(b"x" * (3 * HIGH_BYTES))
        await asyncio.sleep(60)  # in virtual time
        assert client.events == ["pause"] and not server.data
        server.transport.resume_reading()
        await asyncio.sleep(1)  # in virtual time
        assert client.events == ["pause", "resume"]
        assert len(server.data) == 3 * HIGH_BYTES

    run(work)


def test_bytes_for_a_closed_side() -> None:
    """They are answered with a reset."""

    async def work(loop: VirtualLoop, client: Side, server: Side) -> None:
        client.stays = True
        server.transport.close()
        await asyncio.sleep(10)  # in virtual time
        assert client.events == ["eof"] and not client.lost.done()
        client.transport.write(b"x")
        assert isinstance(await client.lost, ConnectionResetError)
        assert not client.data

    run(work, Conditions(delay_s=1.0))


def test_nobody_listens() -> None:
    async def work(loop: VirtualLoop, client: Side, server: Side) -> None:
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Side, "127.0.1.2", 25)

    run(work)


def test_a_process_that_is_killed() -> None:
    """Its peers get what it has written, and the end; it gets nothing."""

    async def work(loop: VirtualLoop, client: Side, server: Side) -> None:
        server.transport.write(b"250 ok")
        client.transport.write(b"QUIT")
        loop.network.cut_off([AT])
        assert await client.lost is None
        assert bytes(client.data) == b"250 ok"
        await asyncio.sleep(60)  # in virtual time
        assert not server.data
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Side, *AT)

    run(work, Conditions(delay_s=0.1))
