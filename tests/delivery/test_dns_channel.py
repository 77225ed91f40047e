"""Questions over c-ares: one socket, answers in the loop's thread, and an end in every state."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled, until
from zonemta_py.config.endpoints import HostPort
from zonemta_py.delivery.dns import DnsChannel, NameNotFound, QueryFailed
from zonemta_py.sink.nameserver import NameServer

RECORDS: Mapping[str, Mapping[str, list[str]]] = {
    "a.example": {"MX": ["10 mx.a.example.", "20 mx2.a.example."]},
    "mx.a.example": {"A": ["127.0.1.1"], "AAAA": ["::1"]},
}


@asynccontextmanager
async def asking(
    port: int | None = None, timeout_s: float = 5.0
) -> AsyncIterator[tuple[DnsChannel, NameServer]]:
    """A channel to the server at ``port``, or to one that answers."""
    server = NameServer({name: dict(found) for name, found in RECORDS.items()})
    answering = await server.start()
    channel = DnsChannel([HostPort("127.0.0.1", port or answering)], timeout_s)
    try:
        yield channel, server
    finally:
        channel.close()
        server.close()


def open_sockets() -> int:
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += str(fd.readlink()).startswith("socket:")
    return found


async def test_one_socket_for_many_questions() -> None:
    async with asking() as (channel, _):
        [one, two] = sorted(await channel.query("a.example", "MX"), key=lambda r: int(r.data.priority))
        assert (one.data.exchange, two.data.priority) == ("mx.a.example", 20)
        before = open_sockets()
        answers = await asyncio.gather(
            *(channel.query("mx.a.example", kind) for kind in ("A", "AAAA") for _ in range(50))
        )
        assert open_sockets() == before
        assert {record.data.addr for answer in answers for record in answer} == {"127.0.1.1", "::1"}


async def test_what_is_not_there() -> None:
    async with asking() as (channel, _):
        assert list(await channel.query("a.example", "A")) == []
        with pytest.raises(NameNotFound):
            await channel.query("none.example", "MX")
        for name in ("x" * 64 + ".example", "a..example", "a." * 200):
            with pytest.raises(QueryFailed):
                await channel.query(name, "A")


async def test_an_answer_too_large_for_a_datagram() -> None:
    """It is asked for again over TCP."""
    async with asking() as (channel, server):
        many = [f"10.{n // 250}.{n % 250}.1" for n in range(1500)]
        server.records = {**server.records, "many.example": {"A": many}}
        assert len(await channel.query("many.example", "A")) == 1500
        assert server.queries["many.example", "A"] == 2


async def silent() -> tuple[asyncio.DatagramTransport, int]:
    """A name server that does not answer."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
    )
    return transport, int(transport.get_extra_info("sockname")[1])


async def test_a_server_that_does_not_answer() -> None:
    transport, port = await silent()
    async with asking(port, 0.3) as (channel, _):
        with pytest.raises(QueryFailed):
            await asyncio.wait_for(channel.query("a.example", "MX"), scaled(20))
    transport.close()


class LosingServer(NameServer):
    """Loses the next ``losses`` queries."""

    losses = 0

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self.losses:
            self.losses -= 1
        else:
            super().datagram_received(data, addr)


@pytest.mark.parametrize("answered_before", [0, 50])
async def test_datagrams_that_are_lost(answered_before: int) -> None:
    """They are sent again within the time limit, also when the first answers were fast."""
    names = [f"n{number}.example" for number in range(answered_before + 1)]
    server = LosingServer({name: {"A": ["127.0.1.1"]} for name in names})
    channel = DnsChannel([HostPort("127.0.0.1", await server.start())], scaled(5.0))
    for name in names[:-1]:
        await channel.query(name, "A")
    server.losses = 2
    [record] = await channel.query(names[-1], "A")
    assert (record.data.addr, server.losses) == ("127.0.1.1", 0)
    channel.close()
    server.close()


async def test_closed_while_questions_are_open() -> None:
    """They fail at once, and nothing of the channel is called later."""
    transport, port = await silent()
    async with asking(port) as (channel, _):
        questions = [asyncio.create_task(channel.query(f"{n}.example", "A")) for n in range(20)]
        await asyncio.sleep(0)
        channel.close()
        results = await asyncio.gather(*questions, return_exceptions=True)
        assert all(isinstance(result, QueryFailed) for result in results)
    transport.close()


@pytest.mark.parametrize("gives_up", [False, True])
async def test_retired_while_questions_are_open(gives_up: bool) -> None:
    """It closes with the last answer, also when its asker has gone."""
    transport, port = await silent()
    async with asking(port, 0.3) as (channel, _):
        question = asyncio.create_task(channel.query("a.example", "A"))
        await asyncio.sleep(0)
        channel.retire()
        assert not channel._is_closed
        if gives_up:
            question.cancel()
        with suppress(QueryFailed, asyncio.CancelledError):
            await question
        await until(lambda: channel._is_closed, "the end")
    transport.close()


def test_loops_that_end(capfd: pytest.CaptureFixture[str]) -> None:
    """A loop that ends with questions open leaves no exception in a thread of c-ares."""

    async def ask() -> None:
        transport, port = await silent()
        channel = DnsChannel([HostPort("127.0.0.1", port)], 5.0)
        questions = [asyncio.create_task(channel.query(f"{n}.example", "A")) for n in range(5)]
        await asyncio.sleep(0)
        for question in questions:
            question.cancel()
        if port % 2:
            channel.close()
        transport.close()
        await asyncio.sleep(0)

    for _ in range(50):
        asyncio.run(ask())
    assert threading.active_count() < 10
    assert capfd.readouterr().err == ""


async def test_the_time_limit_is_that_of_a_look_up() -> None:
    """Not of each server: the third is not waited for as well."""
    servers = [await silent() for _ in range(3)]
    channel = DnsChannel([HostPort("127.0.0.1", port) for _, port in servers], 0.5)
    began_s = time.monotonic()
    with pytest.raises(QueryFailed):
        await channel.query("a.example", "MX")
    assert time.monotonic() - began_s < scaled(1.2)
    channel.close()
    for transport, _ in servers:
        transport.close()
