"""The connections of the HTTP listener: they are accepted here, so that a new one always gets in.

A connection without a request under way holds its place only while there are others: when all are taken, the newest
client gets the place of the one who has most of such connections. Requests under way have shares of their own
(``Shares``), which leave places.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from zonemta_py.admin.tokens import Role, Token
from zonemta_py.core.networks import accept_client, network_of

log = logging.getLogger(__name__)


FIRST_REQUEST_S = 30.0  # from the connection to a whole header
HANDSHAKE_S = 10.0  # of TLS


class HttpConnection:
    """One client. ``opening``: makes the transport, after a TLS handshake if there is one."""

    def __init__(self, network: str, protocol: asyncio.Protocol) -> None:
        self.network = network
        self.protocol = protocol
        self.opening: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self.timer: asyncio.TimerHandle | None = None  # until its first request
        self.is_busy = False  # a request is under way

    def is_open(self) -> bool:
        """True while it has a place: its transport is open, or being made."""
        if self.transport is not None:
            return not self.transport.is_closing()
        return self.opening is not None and not self.opening.done()

    def end(self) -> None:
        """Close it, whatever its state."""
        if self.timer is not None:
            self.timer.cancel()
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class HttpConnections:
    """At most ``most``, each with a protocol of ``make``, which returns None when there are to be no more."""

    def __init__(self, most: int, make: Callable[[], asyncio.Protocol | None]) -> None:
        self._most = most
        self._make = make
        self._open: dict[asyncio.BaseProtocol, HttpConnection] = {}  # the oldest first; some have ended
        self._sockets: list[socket.socket] = []
        self._acceptors: list[asyncio.Task[None]] = []

    def listen(self, sockets: Sequence[socket.socket], context: ssl.SSLContext | None) -> None:
        """Accept at ``sockets``, which are closed by ``close``; ``context``: for TLS."""
        for sock in sockets:
            sock.setblocking(False)
            self._sockets.append(sock)
            self._acceptors.append(asyncio.create_task(self._accept(sock, context)))

    @property
    def is_listening(self) -> bool:
        """True if clients can connect."""
        return bool(self._sockets)

    def close(self) -> None:
        """Accept no more; connections stay open."""
        for task in self._acceptors:
            task.cancel()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        for connection in self._open.values():
            if connection.transport is None:
                connection.end()

    def began(self, protocol: asyncio.BaseProtocol) -> None:
        """A request is under way."""
        connection = self._open.get(protocol)
        if connection is not None:
            connection.is_busy = True
            if connection.timer is not None:
                connection.timer.cancel()
                connection.timer = None

    def ended(self, protocol: asyncio.BaseProtocol) -> None:
        """It is not any more."""
        connection = self._open.get(protocol)
        if connection is not None:
            connection.is_busy = False

    async def _accept(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            accepted, client_ip = await accept_client(sock, "admin.address")
            protocol = self._make() if self._has_room() else None
            if protocol is None:
                accepted.close()
                continue
            connection = self._open[protocol] = HttpConnection(network_of(client_ip), protocol)
            connection.timer = loop.call_later(FIRST_REQUEST_S, connection.end)
            connection.opening = loop.create_task(self._begin(connection, accepted, context))
            connection.opening.add_done_callback(partial(self._began, connection, accepted))

    async def _begin(
        self, connection: HttpConnection, accepted: socket.socket, context: ssl.SSLContext | None
    ) -> None:
        timeout_s = HANDSHAKE_S if context is not None else None
        try:
            connection.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection.protocol, accepted, ssl=context, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ssl.SSLError) as exc:
            log.debug("TLS handshake failed: %s", exc)

    def _began(
        self, connection: HttpConnection, accepted: socket.socket, task: asyncio.Task[None]
    ) -> None:
        """There is a transport, or there will be none: the task may have been cancelled before it began."""
        if connection.transport is None:
            accepted.close()
            connection.end()
            self._open.pop(connection.protocol, None)

    def _has_room(self) -> bool:
        """True if one more connection has a place; the last one that can be spared is closed for it."""
        if len(self._open) < self._most:
            return True
        for protocol, connection in list(self._open.items()):
            if not connection.is_open():
                del self._open[protocol]
        if len(self._open) < self._most:
            return True
        counts = Counter(each.network for each in self._open.values())
        spare = [each for each in self._open.values() if not each.is_busy]
        # Of those who have most the oldest: an answered one may linger, a new one has its request under way.
        victim = max(spare, key=lambda each: counts[each.network], default=None)
        if victim is None:
            return False
        del self._open[victim.protocol]
        victim.end()
        return True


# ---- Who may have how many of something at the same time: requests, watchers of events. Pure.

SHARE = 3  # times what is left: one owner alone has three quarters


class Owner(NamedTuple):
    """Who asks: an operator, a token for less, the tenant of a token, or an address without a token."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


OPERATOR, TOKEN, TENANT, ADDRESS = "operator", "token", "tenant", "address"
TOGETHER = (TENANT, ADDRESS)  # all tenants together have half, and so have all without a token


def owner_of(token: Token | None, client_ip: str | None) -> Owner:
    """The owner of what a request asks for."""
    if token is None:
        return Owner(ADDRESS, network_of(client_ip or "local"))
    if token.tenant:
        return Owner(TENANT, token.tenant)
    return Owner(OPERATOR if token.role is Role.ADMIN else TOKEN, token.name)


class Shares:
    """``places``, of which the last ``reserve`` are for operators.

    An owner may have SHARE times what is left, so that there is something left for another one.
    """

    def __init__(self, places: int, reserve: int) -> None:
        self._places = places
        self._reserve = reserve
        self._counts: dict[Owner, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def take(self, owner: Owner) -> bool:
        """Give a place to ``owner``; False if it may have none."""
        places = self._places - (self._reserve if owner.kind != OPERATOR else 0)
        free = places - len(self)
        together = sum(count for each, count in self._counts.items() if each.kind == owner.kind)
        if owner.kind in TOGETHER:
            free = min(free, places // 2 - together)
        count = self._counts.get(owner, 0)
        if free <= 0 or (count and count >= SHARE * free):
            return False
        self._counts[owner] = count + 1
        return True

    def give_back(self, owner: Owner) -> None:
        """A place of ``owner`` is free again."""
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]
