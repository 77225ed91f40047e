"""Listeners: they accept connections, and on shutdown wait for open transactions."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.schema import Config
from zonemta_py.core.networks import accept_client
from zonemta_py.intake.authentication import PasswordChecks
from zonemta_py.intake.context import ListenerContext, SessionSettings, load_settings
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.scan import MessageScanner
from zonemta_py.intake.session import Session
from zonemta_py.intake.sockets import BACKLOG, bound_address
from zonemta_py.intake.starttls_auth import HANDSHAKE_S
from zonemta_py.intake.turns import IntakeTurns
from zonemta_py.routing import Router
from zonemta_py.smtp.proxy import InvalidProxyHeader, missing_bytes, read_proxy_header
from zonemta_py.storage.disk_space import DiskSpace

DRAIN_POLL_S = 0.05

log = logging.getLogger(__name__)


class Listener:
    """The sessions of one listening address; ``sockets`` listen already and are closed by ``close``."""

    def __init__(self, context: ListenerContext, sockets: Sequence[socket.socket]) -> None:
        self.context = context
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._acceptors: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Accept connections."""
        context = self.context
        for sock in self._sockets:
            sock.listen(BACKLOG)  # one of a process before, which could not start, does not
            if context.implicit_context is not None:
                self._acceptors.append(asyncio.create_task(self._accept(sock)))
            else:
                self._servers.append(
                    await context.loop.create_server(
                        lambda: Session(context), sock=sock, backlog=BACKLOG
                    )
                )

    async def _accept(self, sock: socket.socket) -> None:
        """Accept connections that begin with TLS, and count them before their handshake."""
        context = self.context
        while True:
            accepted, peer_ip = await accept_client(sock, context.name)
            session = Session(context)
            if context.admit(session, peer_ip):
                accepted.close()
            else:
                task = asyncio.create_task(self._shake_hands(session, accepted, peer_ip))
                context.handshakes[session] = task
                task.add_done_callback(partial(self._shook_hands, session, accepted))

    async def _shake_hands(self, session: Session, accepted: socket.socket, peer_ip: str) -> None:
        context = self.context
        limit_s = min(HANDSHAKE_S, context.settings.idle_timeout)
        try:
            if context.is_proxy(peer_ip):
                async with asyncio.timeout(limit_s):
                    named = await self._read_proxy_header(accepted)
                client_ip = session.proxied_ip = peer_ip if named is None else named
                context.ended(session)  # as one of the proxy
                if refusal := context.admit(session, client_ip, is_named=True):
                    raise ConnectionError(refusal)
            await context.loop.connect_accepted_socket(
                lambda: session, accepted, ssl=context.implicit_context,
                ssl_handshake_timeout=limit_s,
            )  # fmt: skip
        except InvalidProxyHeader as exc:
            log.warning("the proxy %s sent no valid PROXY header: %s", peer_ip, exc)
        except (OSError, ssl.SSLError) as exc:  # TimeoutError is an OSError
            log.info("TLS handshake failed: %s", exc)

    def _shook_hands(self, session: Session, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        """The handshake has ended, or was cancelled, perhaps before it began."""
        del self.context.handshakes[session]
        if session.transport is None:
            self.context.ended(session)
            accepted.close()

    async def _read_proxy_header(self, accepted: socket.socket) -> str | None:
        """The client that a proxy names, see ``ProxyHeader``. Not a byte of TLS is read. Raises InvalidProxyHeader, OSError."""
        data = b""
        while not data or (header := read_proxy_header(data)) is None:
            more = await self.context.loop.sock_recv(accepted, missing_bytes(data))
            if not more:
                raise ConnectionError("closed before its PROXY header")
            data += more
        return header.client_ip

    def close(self) -> None:
        """Accept no more connections, and end the sessions without a transaction."""
        self.context.stopping = True
        for task in self._acceptors:
            task.cancel()
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
        handshakes = [*self.context.handshakes.values()]
        for task in handshakes:
            task.cancel()
        await asyncio.gather(*self._acceptors, *handshakes, return_exceptions=True)
        self.context.rejections.close()


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
        *,
        disk_space: DiskSpace,
        scanner: MessageScanner | None = None,
    ) -> None:
        self._scanner = scanner
        self._hooks = hooks
        self._disk_space = disk_space
        self._queue = queue
        self._sockets = sockets
        self._index = index
        self._processes = processes
        self._passwords = PasswordChecks(wrong=queue.wrong_passwords, recent=queue.recent_logins)
        self.listeners: list[Listener] = []

    @property
    def sessions(self) -> int:
        """The open sessions."""
        return sum(len(listener.context.sessions) for listener in self.listeners)

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

    async def start(self, prepared: Sequence[SessionSettings]) -> None:
        """Accept connections."""
        turns = IntakeTurns(asyncio.get_running_loop())
        for settings, sockets in zip(prepared, self._sockets, strict=True):
            context = ListenerContext(
                settings, self._queue, self._disk_space, self._passwords, turns, self._scanner
            )
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
