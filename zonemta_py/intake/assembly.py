"""The intake of one process, put together: listeners, the scanner of messages, the free space that is asked before each.

The relay makes one for the listeners in its process, and for mail of programs and by HTTP; each receiver process makes one. A
configuration is read by ``prepare``, which may run in a thread and changes nothing, and used by ``configure``, which never fails:

    intake = AssembledIntake(queue, config, store.space)
    intake.add_listeners(sockets)
    await intake.start(intake.prepare(config, hostname, router))
    intake.configure(new, intake.prepare(new, hostname, router))
    await intake.drain(grace_s)
    await intake.close()

Without listeners ``prepare`` returns nothing, and only the scanner is configured.
"""

import socket
from collections.abc import Callable, Sequence

from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.schema import Config
from zonemta_py.intake.context import SessionSettings
from zonemta_py.intake.listener import Intake
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.scan import MessageScanner, ScanClient
from zonemta_py.routing import Router
from zonemta_py.storage.interface import Space
from zonemta_py.storage.open import DiskSpace


def rspamd_client() -> ScanClient:
    """The connections to an rspamd."""
    # Imported where it is used: loading aiohttp takes a quarter of a second.
    from zonemta_py.intake.rspamd import RspamdClient

    return RspamdClient()


class AssembledIntake:
    """The intake of ``queue`` in this process. ``space``: that of a store with a limit of its own, else None."""

    def __init__(
        self,
        queue: QueueClient,
        config: Config,
        space: Callable[[], Space | None],
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._queue = queue
        self._hooks = hooks
        self.disk_space = DiskSpace(config.queue.directory, config.queue.min_free_disk, space)
        self.scanner = MessageScanner(config, rspamd_client)
        self._listeners: Intake | None = None

    def add_listeners(
        self, sockets: Sequence[Sequence[socket.socket]], process: int = 0, processes: int = 1
    ) -> None:
        """Listen with ``sockets``, those of each listener; this is the ``process``-th of ``processes`` that do."""
        self._listeners = Intake(
            self._queue,
            sockets,
            process,
            processes,
            hooks=self._hooks,
            disk_space=self.disk_space,
            scanner=self.scanner,
        )

    @property
    def has_listeners(self) -> bool:
        """Whether there are any in this process."""
        return self._listeners is not None

    @property
    def sessions(self) -> int:
        """The open sessions of clients."""
        return self._listeners.sessions if self._listeners is not None else 0

    def prepare(self, config: Config, hostname: str, router: Router) -> Sequence[SessionSettings]:
        """The settings of the listeners under ``config``. Raises ConfigError."""
        listeners = self._listeners
        return listeners.prepare(config, hostname, router) if listeners is not None else ()

    async def start(self, prepared: Sequence[SessionSettings]) -> None:
        """Accept connections, under what ``prepare`` returned."""
        if self._listeners is not None:
            await self._listeners.start(prepared)

    def configure(self, config: Config, prepared: Sequence[SessionSettings]) -> None:
        """Use ``config``; ``prepared`` is what ``prepare`` returned for it."""
        self.scanner.configure(config)
        if self._listeners is not None:
            self._listeners.apply(prepared)

    async def drain(self, grace_s: float) -> None:
        """Accept no more connections; open transactions have ``grace_s`` to end."""
        if self._listeners is not None:
            await self._listeners.drain(grace_s)

    async def close(self) -> None:
        """Close idle connections to the scanner."""
        await self.scanner.close()
