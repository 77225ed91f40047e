"""Clients: their connections, and their IP addresses."""

import asyncio
import logging
import socket
from functools import lru_cache
from ipaddress import ip_address, ip_network

ACCEPT_RETRY_S = 0.5

log = logging.getLogger(__name__)


async def accept_client(listening: socket.socket, where: str) -> tuple[socket.socket, str]:
    """The next connection, and the IP address of its client, empty for a Unix socket. ``where``: for the log."""
    while True:
        try:
            sock, address = await asyncio.get_running_loop().sock_accept(listening)
        except OSError as exc:  # such as no descriptor left
            log.error("%s: no connection can be accepted: %s", where, exc)
            await asyncio.sleep(ACCEPT_RETRY_S)
        else:
            return sock, address[0].removeprefix("::ffff:") if isinstance(address, tuple) else ""


@lru_cache(maxsize=10_000)
def network_of(address: str) -> str:
    """The network that is likely one client: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
