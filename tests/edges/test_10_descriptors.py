"""10. Strangers' connections never take the descriptors of the store; a configuration that could is refused."""

import asyncio
import resource
import socket
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import aiohttp
import pytest

from tests.kit.deadlines import until
from tests.kit.listener import certificate
from tests.kit.relay import ONE_PROCESS, http_port, relaying, staged
from zonemta_py.admin import connections, http_server
from zonemta_py.config.schema import Admin, Config, Processes
from zonemta_py.config.values import ProcessCount
from zonemta_py.core.errors import ConfigError
from zonemta_py.relay.preflight import check_descriptors, descriptors_needed


def connect(port: int, count: int) -> list[socket.socket]:
    """Connections that say nothing."""
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


def closed(sock: socket.socket) -> bool:
    """Whether the relay has ended the connection, with a last word or without."""
    sock.setblocking(False)
    try:
        while data := sock.recv(1000):
            assert data.startswith(b"421 ")
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


async def test_half_open_connections_of_implicit_tls(directory: Path) -> None:
    """They count before their handshake, and those beyond the limit are closed."""
    cert, key, _ = certificate(directory)
    async with staged(directory) as stage:
        listener = {
            "address": "127.0.0.1:0",
            "max_sessions": 8,
            "tls": {"mode": "implicit", "certificate_file": str(cert), "key_file": str(key)},
        }
        async with relaying(stage.config(listeners=[listener])) as relay:
            sockets = connect(relay.addresses[0].port, 40)
            await until(lambda: sum(map(closed, sockets)) == 33, "the others to be closed")
            assert not all(map(closed, sockets)), "one address has all places but one"
            for sock in sockets:
                sock.close()


async def test_http_connections(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded in number; one without a request is ended, and mail goes on."""
    monkeypatch.setattr(http_server, "HTTP_CONNECTIONS_MAX", 5)
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", 0.3)
    async with staged(directory) as stage:
        config = stage.config(
            admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True},
            processes=ONE_PROCESS,
        )
        async with relaying(config) as relay:
            port = http_port(relay)
            sockets = await asyncio.to_thread(connect, port, 20)
            for sock in sockets[:5]:
                sock.send(b"POST /mail HTTP/1.1\r\nHost: x\r\n")  # and no more
            await until(lambda: all(map(closed, sockets)), "every silent connection to end")
            for sock in sockets:
                sock.close()
            url = f"http://127.0.0.1:{port}/nowhere"
            async with aiohttp.ClientSession() as client, client.get(url) as answer:
                assert answer.status == 404


def test_what_a_configuration_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults fit into 1,024; more than the system allows is an error that says what to do."""
    config = Config(processes=Processes(ProcessCount(0), ProcessCount(0)))
    needed = descriptors_needed(config)
    assert needed <= 1024
    less = replace(config, admin=Admin(address=()))
    assert descriptors_needed(less) == needed - 100
    behind = replace(config.listeners[0], proxies=(ip_network("192.0.2.0/24"),))
    more = config.listeners[0].max_sessions
    assert descriptors_needed(replace(config, listeners=(behind,))) == needed + more
    listeners = (replace(config.listeners[0], max_sessions=1000),)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 1024))
    check_descriptors(config)
    with pytest.raises(ConfigError, match=r"may need \d+ file descriptors.*LimitNOFILE"):
        check_descriptors(replace(config, listeners=listeners))
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, resource.RLIM_INFINITY))
    check_descriptors(replace(config, listeners=listeners))
