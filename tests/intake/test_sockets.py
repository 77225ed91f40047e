"""Listening sockets: alone, shared, and busy addresses."""

import socket
from contextlib import closing

import pytest

from zonemta_py.config.endpoints import HostPort
from zonemta_py.core.errors import ConfigError
from zonemta_py.intake import listener
from zonemta_py.intake.listener import bound_address, listening_sockets

ANY_PORT = HostPort("127.0.0.1", 0)


def close_all(copies: list[list[socket.socket]]) -> None:
    for sock in (sock for group in copies for sock in group):
        sock.close()


async def test_one_set() -> None:
    copies = await listening_sockets(ANY_PORT, 1)
    try:
        [[sock]] = copies
        address = bound_address(ANY_PORT, [sock])
        assert address.host == "127.0.0.1"
        assert address.port > 0
        assert not sock.getblocking()
        with closing(socket.create_connection(address)) as client:
            accepted, _ = sock.accept()
            with closing(accepted):
                assert accepted.getpeername() == client.getsockname()
    finally:
        close_all(copies)


async def test_sets_share_a_port() -> None:
    copies = await listening_sockets(ANY_PORT, 3)
    try:
        ports = {sock.getsockname()[1] for group in copies for sock in group}
        assert len(ports) == 1
        assert [len(group) for group in copies] == [1, 1, 1]
    finally:
        close_all(copies)


async def test_both_families_have_the_same_port() -> None:
    copies = await listening_sockets(HostPort("localhost", 0), 1)
    try:
        assert len({sock.getsockname()[1] for sock in copies[0]}) == 1
    finally:
        close_all(copies)


@pytest.mark.parametrize("copies", [1, 2])
async def test_a_busy_address(copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the other relay shares its port: SO_REUSEPORT alone would join it."""
    monkeypatch.setattr(listener, "BUSY_S", 0.1)
    taken = await listening_sockets(ANY_PORT, copies)
    try:
        address = bound_address(ANY_PORT, taken[0])
        with pytest.raises(ConfigError, match=f"cannot listen on {address}"):
            await listening_sockets(address, copies)
    finally:
        close_all(taken)


async def test_an_unknown_host() -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        await listening_sockets(HostPort("host.invalid", 0), 1)
