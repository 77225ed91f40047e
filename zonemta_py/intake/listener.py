"""One listening address: its sessions, and the wait for the transactions under way at its end."""

import asyncio
import socket
from collections.abc import Sequence

from zonemta_py.intake.port import Port
from zonemta_py.intake.session import Session

CHECK_EVERY_S = 0.05


class Listener:
    """The sessions of ``port`` on ``sockets``, which listen already and become this object's own."""

    def __init__(self, port: Port, sockets: Sequence[socket.socket]) -> None:
        self.port = port
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Accept connections."""
        implicit = self.port.tls_context if self.port.settings.tls.mode == "implicit" else None
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            self._servers.append(
                await loop.create_server(lambda: Session(self.port), sock=sock, ssl=implicit)
            )

    def close(self) -> None:
        """Take no more connections, and end the sessions that are idle."""
        self.port.stopping = True
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        for session in list(self.port.sessions):
            session.goodbye()

    async def drain(self, grace_s: float) -> None:
        """Wait for transactions under way, at most ``grace_s``, then cut off what is left."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + grace_s
        while self.port.sessions and loop.time() < end_s:
            await asyncio.sleep(CHECK_EVERY_S)
            for session in list(self.port.sessions):
                session.goodbye()
        for session in list(self.port.sessions):
            if session.transport is not None:
                session.transport.abort()
