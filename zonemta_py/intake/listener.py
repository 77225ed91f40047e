"""One listening address: its sessions, and the wait for the transactions under way at its end.

All listeners of one process: made from a configuration, changed by another, stopped together.
"""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace

from zonemta_py.config.schema import Config
from zonemta_py.intake.admission import DiskRoom
from zonemta_py.intake.context import Policy, Port, make_policy
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.session import Session
from zonemta_py.intake.sockets import bound_address
from zonemta_py.routing import Router

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


class Intake:
    """Sessions for ``door``. ``sockets`` are those of every listener, in the configuration's order.

    This process is one of ``processes``, at ``place``, and takes its part of every ``max_sessions``.
    """

    def __init__(
        self,
        door: QueueClient,
        sockets: Sequence[Sequence[socket.socket]],
        place: int = 0,
        processes: int = 1,
    ) -> None:
        self._door = door
        self._sockets = sockets
        self._place = place
        self._processes = processes
        self.listeners: list[Listener] = []

    def prepare(self, config: Config, hostname: str, router: Router) -> list[Policy]:
        """What the listeners will do under ``config``. Raises ConfigError, and nothing has changed."""
        policies = []
        for settings, sockets in zip(config.listeners, self._sockets, strict=True):
            part, rest = divmod(settings.max_sessions, self._processes)
            here = replace(
                settings,
                address=bound_address(settings.address, sockets),
                max_sessions=part + (self._place < rest),
            )
            policies.append(make_policy(here, hostname, config, router))
        return policies

    async def start(self, config: Config, policies: Sequence[Policy]) -> None:
        """Accept connections."""
        room = DiskRoom(config.queue.directory, config.queue.min_free_disk)
        for policy, sockets in zip(policies, self._sockets, strict=True):
            self.listeners.append(Listener(Port(policy, self._door, room), sockets))
        for listener in self.listeners:
            await listener.start()

    def apply(self, policies: Sequence[Policy]) -> None:
        """Change what the listeners do."""
        for listener, policy in zip(self.listeners, policies, strict=True):
            listener.port.apply(policy)

    async def drain(self, grace_s: float) -> None:
        """Take no more connections; transactions under way have ``grace_s``."""
        for listener in self.listeners:
            listener.close()
        await asyncio.gather(*(listener.drain(grace_s) for listener in self.listeners))
