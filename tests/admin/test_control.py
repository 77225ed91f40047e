"""The control socket of a real queue: its permissions, its answers, and requests that are not valid."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import accept, opened
from zonemta_py.admin.control import REQUEST_MAX_BYTES, ControlServer
from zonemta_py.admin.control_client import SOCKET_NAME, ask
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.requests import DeleteRequest, ListRequest, Request, ShowRequest, SummaryRequest
from zonemta_py.core.errors import LocalError
from zonemta_py.queue.queue import Queue


@pytest.fixture
async def queue(directory: Path) -> AsyncIterator[Queue]:
    async with opened(directory / "stored") as queue:
        yield queue


@pytest.fixture
async def server(directory: Path, queue: Queue) -> AsyncIterator[ControlServer]:
    server = ControlServer(directory, Operations(queue))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def asked(directory: Path, request: Request) -> list[dict[str, Any]]:
    return await asyncio.to_thread(lambda: list(ask(directory, request)))


async def raw(directory: Path, line: bytes) -> list[dict[str, Any]]:
    """Send ``line`` as it is; the lines of the answer."""

    def talk() -> bytes:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(directory / SOCKET_NAME))
            sock.sendall(line)
            sock.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: sock.recv(65_536), b""))

    return [json.loads(text) for text in (await asyncio.to_thread(talk)).splitlines()]


@pytest.mark.usefixtures("server")
async def test_an_answer(directory: Path, queue: Queue) -> None:
    message = await accept(queue, "x@a.example", "y@b.example")
    assert [row["recipient"] for row in await asked(directory, ListRequest())] == [
        "x@a.example",
        "y@b.example",
    ]
    assert await asked(directory, DeleteRequest(message)) == [{"deleted": 2, "in_flight": 0}]
    assert await asked(directory, SummaryRequest()) == []
    with pytest.raises(LocalError, match="no message"):
        await asked(directory, ShowRequest(message))


@pytest.mark.usefixtures("server")
async def test_it_is_for_the_owner_only(directory: Path) -> None:
    assert (directory / SOCKET_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("server")
async def test_arguments_are_optional(directory: Path) -> None:
    assert await raw(directory, b'{"operation":"check"}\n') == [{"problems": 0}, {"end": True}]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{\n", "not a request: Input data was truncated"),
        (b"\xff\n", "not a request: "),
        (b"[]\n", "not a request: Expected `object`, got `array`"),
        (b'{"arguments":{}}\n', "not a request: Object missing required field `operation`"),
        (b'{"operation":"list","x":1}\n', "not a request: Object contains unknown field `x`"),
        (b'{"operation":"places"}\n', "unknown operation 'places'; operations: summary, shape, status,"),
        (b'{"operation":"list","arguments":{"zones":"bulk"}}\n', "list: Object contains unknown field"),
        (b'{"operation":"list","arguments":{"limit":"2"}}\n', "list: Expected `int | null`, got `str`"),
        (b'{"operation":"show"}\n', "show: Object missing required field `message`"),
        (b'{"operation":"' + b"x" * REQUEST_MAX_BYTES + b'"}\n', "longer than 65536 bytes"),
    ],
)
async def test_a_request_that_is_not_valid(directory: Path, line: bytes, text: str) -> None:
    """The answer is an error that says why, and the server answers the next request."""
    (row,) = await raw(directory, line)
    assert text in row["error"]
    assert await asked(directory, SummaryRequest()) == []


@pytest.mark.usefixtures("server")
async def test_a_client_that_sends_nothing(directory: Path) -> None:
    assert await raw(directory, b"") == []


async def test_a_socket_that_a_killed_relay_left(directory: Path, queue: Queue) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / SOCKET_NAME))
    with pytest.raises(ConnectionRefusedError):
        await asked(directory, SummaryRequest())
    server = ControlServer(directory, Operations(queue))
    await server.start()
    assert await asked(directory, SummaryRequest()) == []
    await server.close()
    assert not (directory / SOCKET_NAME).exists()
    with pytest.raises(ConnectionRefusedError):
        await asked(directory, SummaryRequest())


async def test_a_relay_that_stops_during_its_answer(directory: Path, queue: Queue) -> None:
    """The client is not left with half an answer that looks whole."""
    for number in range(4):
        await accept(queue, *(f"{number}-{n}-{'x' * 40}@a.example" for n in range(1000)))
    server = ControlServer(directory, Operations(queue))
    await server.start()
    answer = ask(directory, ListRequest())
    await asyncio.to_thread(next, answer)  # the others do not fit into the buffers of the socket
    await server.close()
    await until(lambda: not server._connections, "the end of the connection")
    with pytest.raises(LocalError, match="stopped before the end of its answer"):
        await asyncio.to_thread(list, answer)


async def test_a_long_path(tmp_path: Path, queue: Queue) -> None:
    """Longer than a Unix socket's path may be."""
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    server = ControlServer(directory, Operations(queue))
    await server.start()
    assert await asked(directory, SummaryRequest()) == []
    await server.close()
