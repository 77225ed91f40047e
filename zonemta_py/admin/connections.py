"""The connections of the HTTP listener: they are accepted here, so that a new one always gets in.

A connection without a request under way holds its place only while there are others: when all are taken, the newest
client gets the place of the one who has most of such connections. Requests under way have shares of their own
(``shares.py``), which leave places.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from zonemta_py.core.networks import accept_client, network_of

FIRST_REQUEST_S = 30.0  # from the connection to a whole header
HANDSHAKE_S = 10.0  # of TLS

log = logging.getLogger(__name__)


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
        """Whether it has a place."""
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
        """Whether clients can connect."""
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
        """Whether one more connection has a place; the last one that can be spared is closed for it."""
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
