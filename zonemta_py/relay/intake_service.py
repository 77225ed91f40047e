"""The receiving side of a relay: SMTP listeners, in this process or in receiver processes, and HTTP."""

import logging
from typing import TYPE_CHECKING

from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.hooks import Hooks
from zonemta_py.config.schema import Config, ListenerSettings
from zonemta_py.intake.inject import Injector
from zonemta_py.intake.listener import AssembledIntake, bound_address, listening_sockets
from zonemta_py.processes.receivers import ReceiverPool
from zonemta_py.queue.queue import Queue
from zonemta_py.relay.parts import NewConfig, Part, Prepared
from zonemta_py.routing import Router
from zonemta_py.storage.open import DiskSpace

if TYPE_CHECKING:
    from zonemta_py.intake.http import MailEndpoint

log = logging.getLogger(__name__)


class IntakeService:
    """Accepts mail into ``queue``, by ``receivers`` processes, or in this one if that is 0.

    ``addresses``: those of the SMTP listeners, once started.
    """

    def __init__(
        self,
        queue: Queue,
        config: Config,
        hostname: str,
        router: Router,
        hooks: Hooks,
        *,
        receivers: int,
        log_target: str,
    ) -> None:
        self._queue = queue
        self._config = config
        self._hostname = hostname
        self._router = router
        self._hooks = hooks
        self._processes = receivers
        self._assembled = AssembledIntake(queue, config, queue.store.space, hooks)
        self._log_target = log_target
        self.addresses: list[HostPort] = []
        self.receivers: ReceiverPool | None = None

    def part(self) -> Part:
        """Part of the relay: start, reload and stop."""
        return Part("the listeners", self._listen, self._drain, self._close, self._prepare)

    @property
    def sessions(self) -> int:
        """The open sessions of clients."""
        if self.receivers is not None:
            return self.receivers.sessions
        return self._assembled.sessions

    @property
    def disk_space(self) -> DiskSpace:
        """The free space of the queue."""
        return self._assembled.disk_space

    def mail_endpoint(self) -> "MailEndpoint":
        """The endpoint that accepts mail by HTTP."""
        # Imported where it is used: loading aiohttp takes a quarter of a second.
        from zonemta_py.intake.http import MailEndpoint

        config = self._config
        timeout_s = (*config.listeners, ListenerSettings())[0].message_timeout
        where = ",".join(map(str, config.admin.address))
        return MailEndpoint(self.injector, where=where, message_timeout_s=timeout_s)

    def injector(self, router: Router | None = None) -> Injector:
        """For one message of this program, or of an HTTP client; ``router`` instead of the configured one."""
        policies = self._hooks.envelope_policies(self._config)
        return Injector(
            self._queue, router or self._router, self._config, self._hostname, policies, self.disk_space,
            scanner=self._assembled.scanner,
        )  # fmt: skip

    async def _listen(self) -> None:
        config = self._config
        if not config.listeners:
            return  # all mail comes from this program or by HTTP
        listeners = [
            await listening_sockets(settings.address, self._processes or 1)
            for settings in config.listeners
        ]
        for settings, copies in zip(config.listeners, listeners, strict=True):
            self.addresses.append(bound_address(settings.address, copies[0]))
        by_process = list(zip(*listeners, strict=True))
        if self._processes:
            self.receivers = ReceiverPool(
                config, self._hostname, self._queue, by_process, self._log_target
            )
            await self.receivers.start()
        else:
            self._assembled.add_listeners(by_process[0])
            await self._assembled.start(self._assembled.prepare(config, self._hostname, self._router))

    def _prepare(self, new: NewConfig) -> Prepared:
        sessions = self._assembled.prepare(new.config, new.hostname, new.router)

        def apply() -> None:
            self._config, self._hostname, self._router = new.config, new.hostname, new.router
            self._assembled.configure(new.config, sessions)
            if self.receivers is not None:
                self.receivers.configure(new.config, new.hostname)

        return Prepared(apply)

    async def _drain(self, grace_s: float) -> None:
        if self.receivers is not None:
            await self.receivers.drain(grace_s)
        await self._assembled.drain(grace_s)

    async def _close(self) -> None:
        if self.receivers is not None:
            await self.receivers.close()
        await self._assembled.close()
