"""All listeners of one process: made from a configuration, changed by another, stopped together."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace

from zonemta_py.config.schema import Config
from zonemta_py.intake.door import Door
from zonemta_py.intake.listener import Listener
from zonemta_py.intake.policies import DiskRoom
from zonemta_py.intake.port import Policy, Port, make_policy
from zonemta_py.intake.sockets import bound_address
from zonemta_py.routing import Router


class Intake:
    """Sessions for ``door``. ``sockets`` are those of every listener, in the configuration's order.

    This process is one of ``processes``, at ``place``, and takes its part of every ``max_sessions``.
    """

    def __init__(
        self, door: Door, sockets: Sequence[Sequence[socket.socket]], place: int = 0, processes: int = 1
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
