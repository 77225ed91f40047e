"""Listeners: they accept connections, and on shutdown wait for open transactions."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace

from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.schema import Config
from zonemta_py.intake.admission import DiskSpace
from zonemta_py.intake.authentication import PasswordChecks
from zonemta_py.intake.context import ListenerContext, SessionSettings, load_settings
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.session import Session
from zonemta_py.intake.sockets import BACKLOG, bound_address
from zonemta_py.routing import Router

DRAIN_POLL_S = 0.05


class Listener:
    """The sessions of one listening address; ``sockets`` listen already and are closed by ``close``."""

    def __init__(self, context: ListenerContext, sockets: Sequence[socket.socket]) -> None:
        self.context = context
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Accept connections."""
        context = self.context
        for sock in self._sockets:
            self._servers.append(
                await context.loop.create_server(lambda: Session(context), sock=sock, backlog=BACKLOG)
            )

    def close(self) -> None:
        """Accept no more connections, and end the sessions without a transaction."""
        self.context.stopping = True
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        self._end_idle_sessions()

    def _end_idle_sessions(self) -> None:
        for session in list(self.context.sessions):
            session.close_if_idle()

    async def drain(self, grace_s: float) -> None:
        """Wait at most ``grace_s`` for open transactions, then abort the remaining sessions."""
        loop = self.context.loop
        end_s = loop.time() + grace_s
        while self.context.sessions and loop.time() < end_s:
            await asyncio.sleep(DRAIN_POLL_S)
            self._end_idle_sessions()
        for session in list(self.context.sessions):
            session.abort()


class Intake:
    """All listeners of one process.

    ``sockets``: those of each listener, in the order of the configuration. The process is number
    ``index`` (from 0) of ``processes``, among which every ``max_sessions`` is divided.
    """

    def __init__(
        self,
        queue: QueueClient,
        sockets: Sequence[Sequence[socket.socket]],
        index: int = 0,
        processes: int = 1,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._hooks = hooks
        self._queue = queue
        self._sockets = sockets
        self._index = index
        self._processes = processes
        self._passwords = PasswordChecks()
        self.listeners: list[Listener] = []

    def prepare(self, config: Config, hostname: str, router: Router) -> list[SessionSettings]:
        """The listeners' settings under ``config``; changes nothing. Raises ConfigError."""
        prepared = []
        for listener, sockets in zip(config.listeners, self._sockets, strict=True):
            share, remainder = divmod(listener.max_sessions, self._processes)
            settings = replace(
                listener,
                address=bound_address(listener.address, sockets),
                max_sessions=share + (self._index < remainder),
            )
            prepared.append(load_settings(settings, hostname, config, router, self._hooks))
        return prepared

    async def start(self, config: Config, prepared: Sequence[SessionSettings]) -> None:
        """Accept connections."""
        room = DiskSpace(config.queue.directory, config.queue.min_free_disk)
        for settings, sockets in zip(prepared, self._sockets, strict=True):
            context = ListenerContext(settings, self._queue, room, self._passwords)
            self.listeners.append(Listener(context, sockets))
        for listener in self.listeners:
            await listener.start()

    def apply(self, prepared: Sequence[SessionSettings]) -> None:
        """Use the settings that ``prepare`` returned."""
        for listener, settings in zip(self.listeners, prepared, strict=True):
            listener.context.apply(settings)

    async def drain(self, grace_s: float) -> None:
        """Accept no more connections; open transactions have ``grace_s`` to finish."""
        for listener in self.listeners:
            listener.close()
        await asyncio.gather(*(listener.drain(grace_s) for listener in self.listeners))
        self._passwords.close()
