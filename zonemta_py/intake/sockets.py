"""Listening sockets, for one process or for several that share an address.

Processes share an address by SO_REUSEPORT: the kernel distributes connections over sockets, each with
its own backlog. With one socket in several processes, most connections go to the process that wakes up
first.
"""

import asyncio
import errno
import socket
from collections.abc import Sequence

from zonemta_py.config.endpoints import HostPort
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError

BACKLOG = 1024
BUSY_S = 10.0  # the processes of a killed relay end a moment after it, on a busy machine after seconds
RETRY_EVERY_S = 0.05


async def listening_sockets(address: HostPort, copies: int) -> list[list[socket.socket]]:
    """``copies`` sets of sockets for ``address``, each with one for every IP address that it has.

    Raises ConfigError.
    """
    made: list[list[socket.socket]] = [[] for _ in range(copies)]
    port, shared = address.port, copies > 1
    try:
        found = socket.getaddrinfo(address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, host in dict.fromkeys((family, info[0]) for family, _, _, _, info in found):
            if shared:
                port = await _free_port(family, host, port)
            for sockets in made:
                sock = _bound(family, host, port, shared=shared)
                sockets.append(sock)
                sock.listen(BACKLOG)
                port = sock.getsockname()[1]
    except OSError as exc:
        for sock in (sock for sockets in made for sock in sockets):
            sock.close()
        raise ConfigError(f"cannot listen on {address}: {exc}") from exc
    return made


def bound_address(address: HostPort, sockets: Sequence[socket.socket]) -> HostPort:
    """``address`` with the port that its sockets have."""
    return HostPort(address.host, sockets[0].getsockname()[1])


async def _free_port(family: int, host: str | int, port: int) -> int:
    """A port without a socket: with SO_REUSEPORT alone, another relay could have it, too."""
    end_s = clock.monotonic_s() + BUSY_S
    while True:
        try:
            with _bound(family, host, port, shared=False) as sock:
                return int(sock.getsockname()[1])
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or clock.monotonic_s() > end_s:
                raise
        await asyncio.sleep(RETRY_EVERY_S)


def _bound(family: int, host: str | int, port: int, *, shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
