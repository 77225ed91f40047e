"""The receivers' processes as the queue's process sees them: their sockets, their start, their end.

The listening sockets stay open here, one for each place, so that a client which connects while a
receiver starts again waits in the socket's queue and is not refused.
"""

import asyncio
import socket
from collections.abc import Sequence

from zonemta_py.config.schema import Config
from zonemta_py.processes import receiver_frames as frames
from zonemta_py.processes.receiver_child import ReceiverChild
from zonemta_py.processes.staff import Staff
from zonemta_py.queue.queue import Queue

START_S = 30.0  # for a process to say that it accepts connections
LAST_WORDS_S = 1.0  # for its own end, after the grace that it gives its sessions


class Receivers:
    """Receivers for ``queue``, each with its own sockets: ``sockets[place][listener]``."""

    def __init__(
        self,
        config: Config,
        hostname: str,
        queue: Queue,
        sockets: Sequence[Sequence[Sequence[socket.socket]]],
        log_level: str,
    ) -> None:
        self._config = config
        self._hostname = hostname
        self._queue = queue
        self._sockets = sockets
        self._log_level = log_level
        self.staff = Staff("receiver", len(sockets), self._launch)

    async def start(self) -> None:
        """Start them all; they accept connections then. Raises LocalError."""
        await self.staff.start()

    async def _launch(self, place: int) -> ReceiverChild:
        child = ReceiverChild(place, self._queue, self.staff.lost)
        descriptors = [sock.fileno() for group in self._sockets[place] for sock in group]
        await child.start(self._log_level, descriptors)
        child.welcome()
        config = self._config
        child.send(self._configuration(place))
        try:
            await asyncio.wait([child.ready], timeout=START_S)
        except BaseException:
            child.abandon()
            raise
        if not child.ready.done() or not child.ready.result():
            await child.close()
            raise OSError(f"process {child.pid} did not get ready")
        if self._config is not config:  # reloaded meanwhile, when it was not among the children yet
            child.send(self._configuration(place))
        return child

    def _configuration(self, place: int) -> frames.Configure:
        config, sockets = self._config, self._sockets
        sizes = [len(group) for group in sockets[place]]
        return frames.Configure(config.text, config.path, self._hostname, place, len(sockets), sizes)

    def configure(self, config: Config, hostname: str) -> None:
        """Take over a new configuration."""
        self._config, self._hostname = config, hostname
        for child in self.staff.children:
            child.send_now(self._configuration(child.place))

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        return [child.pid for child in self.staff.children]

    async def drain(self, grace_s: float) -> None:
        """Take no more connections; transactions under way have ``grace_s``."""
        self.staff.stop()
        for child in self.staff.children:
            child.send(frames.Stop(grace_s))
        for sock in (sock for place in self._sockets for group in place for sock in group):
            sock.close()
        waits = [asyncio.ensure_future(child.drained.wait()) for child in self.staff.children]
        if waits:
            await asyncio.wait(waits, timeout=grace_s + LAST_WORDS_S)
            for wait in waits:
                wait.cancel()

    async def close(self) -> None:
        """End them."""
        await self.staff.close()
