"""Listening sockets: open them, stop them, wait for the transactions under way."""

import asyncio
from dataclasses import replace

from zonemta_py.config.units import HostPort
from zonemta_py.errors import ConfigError
from zonemta_py.intake.port import Port
from zonemta_py.intake.session import Session

BACKLOG = 1024
CHECK_EVERY_S = 0.05


class Listener:
    """One listening address and its sessions."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self._server: asyncio.Server | None = None

    async def start(self) -> HostPort:
        """Listen; returns the address, with the real port where 0 was asked for. Raises ConfigError."""
        settings = self.port.settings
        implicit = self.port.tls_context if settings.tls.mode == "implicit" else None
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Session(self.port),
                settings.address.host,
                settings.address.port,
                ssl=implicit,
                backlog=BACKLOG,
            )
        except OSError as exc:
            raise ConfigError(f"cannot listen on {settings.address}: {exc}") from exc
        bound = HostPort(settings.address.host, self._server.sockets[0].getsockname()[1])
        self.port.settings = replace(settings, address=bound)
        self.port.name = str(bound)
        return bound

    def close(self) -> None:
        """Take no more connections, and end the sessions that are idle."""
        self.port.stopping = True
        if self._server is not None:
            self._server.close()
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
