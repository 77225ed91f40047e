"""Listeners: they accept connections, and on shutdown wait for open transactions. ``AssembledIntake`` puts them together.

The relay makes one intake for the listeners in its process, and for mail of programs and by HTTP; each receiver process makes
one. A configuration is read by ``prepare``, which may run in a thread and changes nothing, and used by ``configure``, which
cannot fail; without listeners ``prepare`` returns nothing, and only the scanner is configured:

    intake = AssembledIntake(queue, config, store.space)
    intake.add_listeners(sockets)
    await intake.start(intake.prepare(config, hostname, router))
    intake.configure(new, intake.prepare(new, hostname, router))
    await intake.drain(grace_s)
    await intake.close()
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.networks import accept_client
from zonemta_py.intake.context import IntakeTurns, ListenerContext, SessionSettings, load_settings
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.scan import MessageScanner, ScanClient
from zonemta_py.intake.session import HANDSHAKE_S, Session
from zonemta_py.intake.users import PasswordChecks
from zonemta_py.routing import Router
from zonemta_py.smtp.auth import InvalidProxyHeader, missing_bytes, read_proxy_header
from zonemta_py.storage.interface import Space
from zonemta_py.storage.open import DiskSpace

log = logging.getLogger(__name__)


# ---- Sockets, for one process or for several that share an address.
#
# Processes share an address by SO_REUSEPORT: the kernel distributes connections over sockets, each with
# its own backlog. With one socket in several processes, most connections go to the process that wakes up
# first.

BACKLOG = 1024
BUSY_S = 10.0  # the processes of a killed relay end a moment after it, on a busy machine after seconds
RETRY_EVERY_S = 0.05


async def listening_sockets(address: HostPort, copies: int) -> list[list[socket.socket]]:
    """``copies`` sets of sockets for ``address``, each with one for every IP address that it has.

    Raises ConfigError.
    """
    made: list[list[socket.socket]] = [[] for _ in range(copies)]
    port, shared = address.port, copies > 1
    try:
        found = socket.getaddrinfo(address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, host in dict.fromkeys((family, info[0]) for family, _, _, _, info in found):
            if shared:
                port = await _free_port(family, host, port)
            for sockets in made:
                sock = _bound(family, host, port, shared=shared)
                sockets.append(sock)
                sock.listen(BACKLOG)
                port = sock.getsockname()[1]
    except OSError as exc:
        for sock in (sock for sockets in made for sock in sockets):
            sock.close()
        raise ConfigError(f"cannot listen on {address}: {exc}") from exc
    return made


def bound_address(address: HostPort, sockets: Sequence[socket.socket]) -> HostPort:
    return HostPort(address.host, sockets[0].getsockname()[1])


async def _free_port(family: int, host: str | int, port: int) -> int:
    """A port without a socket: with SO_REUSEPORT alone, another relay could have it, too."""
    end_s = clock.monotonic_s() + BUSY_S
    while True:
        try:
            with _bound(family, host, port, shared=False) as sock:
                return int(sock.getsockname()[1])
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or clock.monotonic_s() > end_s:
                raise
        await asyncio.sleep(RETRY_EVERY_S)


def _bound(family: int, host: str | int, port: int, *, shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


# ---- Listeners.

DRAIN_POLL_S = 0.05


class Listener:
    """The sessions of one listening address; ``sockets`` listen already and are closed by ``close``."""

    def __init__(self, context: ListenerContext, sockets: Sequence[socket.socket]) -> None:
        self.context = context
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._acceptors: list[asyncio.Task[None]] = []

    async def start(self) -> None:
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
        """Note that the handshake has ended, or was cancelled, perhaps before it began."""
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


# ---- The intake of one process: listeners, the scanner of messages, the free space that is asked before each.


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
        """True if this process has some."""
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
