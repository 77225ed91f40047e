"""The HTTP server of the admin listener: connections, the Host field, tokens; what it serves are ``HttpRoute`` values.

On a loopback address or a Unix socket some routes need no token. A page in a browser can let its own name resolve to an
address of this machine (DNS rebinding), so a request without a token has to name an address or this relay.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from zonemta_py.admin.tokens import Role, Token, Tokens
from zonemta_py.config.endpoints import AdminAddress
from zonemta_py.config.schema import HTTP_CONNECTIONS_MAX, Admin
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError

BACKLOG = 128
FIRST_REQUEST_S = 30.0  # from the connection to a whole header
KEEP_ALIVE_S = 15.0  # from a response to the whole header of the next request
HANDSHAKE_S = 10.0  # of TLS
API = "/api/"  # where errors are JSON
SHORTEST_S = 0.1  # that a request has to finish
WARN_EVERY_S = 60.0  # about wrong tokens from one address
WARNED_MAX = 1000

Handler = Callable[[web.Request, Token | None], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)
_aiohttp_log = logging.getLogger(f"{__name__}.protocol")
_aiohttp_log.setLevel(logging.CRITICAL)  # a traceback for every request that is not HTTP


class HttpRoute(NamedTuple):
    """What is served at ``path``. ``role``: of the token that it needs; ``is_local``: none on a loopback address.

    ``is_open``: none at all; its handler decides. ``refusal``: header fields of a 401.
    """

    method: str
    path: str
    handler: Handler
    role: Role
    is_local: bool = False
    is_open: bool = False
    refusal: Mapping[str, str] = {}


class HttpServer:
    """Serves ``routes`` at the addresses of ``settings``. ``hostname``: the relay's."""

    def __init__(
        self,
        settings: Admin,
        routes: Sequence[HttpRoute],
        tokens: Tokens,
        hostname: str,
    ) -> None:
        self._settings = settings
        self.tokens = tokens
        hosts = (address.host.lower() for address in settings.address)
        self._names = ("localhost", hostname.lower(), *hosts)
        self._warned: dict[str, float] = {}  # by address of the client
        application = web.Application(middlewares=[self._answer])
        for route in routes:
            application.router.add_route(route.method, route.path, self._guarded(route))
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            logger=_aiohttp_log,
            shutdown_timeout=SHORTEST_S,
            keepalive_timeout=KEEP_ALIVE_S,
        )
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []  # of Unix sockets that are ours
        self._silent: dict[
            asyncio.Protocol, asyncio.TimerHandle
        ] = {}  # connections without a request so far
        self._starting: set[asyncio.Protocol] = (
            set()
        )  # of those, the ones that may be in their handshake
        self._under_way: set[asyncio.Task[None]] = set()  # requests, or connections that have had some
        self.ports: list[int] = []  # of the addresses, once started; 0 for a Unix socket

    async def start(self) -> None:
        """Accept connections. Raises LocalError when an address cannot be used."""
        await self._runner.setup()
        try:
            context = _tls_context(self._settings)
            for address in self._settings.address:
                self._servers.append(await self._listen(address, context))
                names = [sock.getsockname() for sock in self._servers[-1].sockets]
                self.ports.append(0 if address.path else names[0][1])
        except BaseException:
            await self.close()
            raise

    async def _listen(self, address: AdminAddress, context: ssl.SSLContext | None) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        try:
            if address.path:
                sock = _unix_socket(Path(address.path))
                self._paths.append(Path(address.path))
                return await loop.create_unix_server(self._connected, sock=sock, backlog=BACKLOG)
            timeout_s = HANDSHAKE_S if context is not None else None
            return await loop.create_server(
                self._connected, address.host, address.port, backlog=BACKLOG, ssl=context,
                ssl_handshake_timeout=timeout_s,
            )  # fmt: skip
        except OSError as exc:
            raise LocalError(f"admin.address: {address}: {exc.strerror or exc}") from exc

    async def close(self, grace_s: float = 0.0) -> None:
        """Accept no more requests; those under way have ``grace_s`` to finish."""
        for server in self._servers:
            server.close()
        _remove_sockets(self._paths)
        if self._runner.server is not None:
            self._runner.server.pre_shutdown()  # closes idle connections
            if (
                self._under_way and grace_s
            ):  # aiohttp waits for it twice, for a client that does not read
                await asyncio.wait(self._under_way, timeout=grace_s)
            await self._runner.server.shutdown(SHORTEST_S)
        await self._runner.cleanup()

    def _connected(self) -> asyncio.Protocol:
        """The protocol of a new connection: aiohttp's, or one that closes it."""
        server = self._runner.server
        if server is None or self._is_full(server):
            return _Refusal()
        protocol: asyncio.Protocol = server()
        loop = asyncio.get_running_loop()
        self._silent[protocol] = loop.call_later(FIRST_REQUEST_S, self._end_if_silent, protocol)
        self._starting.add(protocol)
        handshake_s = HANDSHAKE_S if self._settings.tls.certificate_file is not None else 0.0
        loop.call_later(handshake_s, self._starting.discard, protocol)
        return protocol

    def _is_full(self, server: web.Server) -> bool:
        """Whether as many connections are open as may be; those that are closed are forgotten then."""
        if len({*self._silent, *server.connections}) < HTTP_CONNECTIONS_MAX:
            return False
        for protocol in self._silent.keys() - self._starting - {*server.connections}:
            self._heard(protocol)
        return len({*self._silent, *server.connections}) >= HTTP_CONNECTIONS_MAX

    def _end_if_silent(self, protocol: asyncio.Protocol) -> None:
        transport = getattr(protocol, "transport", None)  # None when the connection has ended
        if transport is not None:
            transport.abort()
        self._heard(protocol)

    def _heard(self, protocol: asyncio.Protocol) -> None:
        """A connection is not silent any more."""
        timer = self._silent.pop(protocol, None)
        if timer is not None:
            timer.cancel()
        self._starting.discard(protocol)

    # ---- requests

    @web.middleware
    async def _answer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Every request comes here, also one for which there is no route."""
        self._heard(request.protocol)
        task = asyncio.current_task()
        assert task is not None
        if task not in self._under_way:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as exc:
            if not request.path.startswith(API):
                raise
            allowed = ", ".join(sorted(exc.allowed_methods))
            return problem(405, f"expected {allowed}, not {exc.method}", {"Allow": allowed})
        except web.HTTPNotFound:
            if not request.path.startswith(API):
                raise
            return problem(404, f"there is no {request.path}; /api/openapi.json has what there is")

    def _guarded(self, route: HttpRoute) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler of ``route`` for those who may use it."""

        async def handle(request: web.Request) -> web.StreamResponse:
            token = self._token(request)
            if token is None and not self._is_own_name(request.url.host or ""):
                text = f"Host: expected an address or one of {', '.join(self._names)}"
                return problem(403, text)
            if route.is_open:
                return await self._handled(route, request, token)
            if token is None and not (route.is_local and _is_local(request)):
                self._warn(request)
                headers = {"WWW-Authenticate": "Bearer", **route.refusal}
                return problem(401, "a token is required: Authorization: Bearer TOKEN", headers)
            if token is not None and not token.allows(route.role):
                return problem(
                    403, f"the token '{token.name}' has the role {token.role}, not {route.role}"
                )
            return await self._handled(route, request, token)

        return handle

    async def _handled(
        self, route: HttpRoute, request: web.Request, token: Token | None
    ) -> web.StreamResponse:
        try:
            return await route.handler(request, token)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            log.exception("a request from %s failed: %s", request.remote, request.path)
            return problem(500, "internal error; see the log of the relay")

    def _token(self, request: web.Request) -> Token | None:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return self.tokens.find(given.strip()) if scheme.lower() == "bearer" else None

    def _is_own_name(self, host: str) -> bool:
        """Whether ``host`` is an address, or a name of this relay."""
        with suppress(ValueError):
            return bool(ip_address(host))
        return host.lower() in self._names

    def _warn(self, request: web.Request) -> None:
        """Log a wrong token, once a minute for each address."""
        if "Authorization" not in request.headers:
            return
        client, now_s = request.remote or "a Unix socket", monotonic_s()
        if now_s - self._warned.get(client, -WARN_EVERY_S) < WARN_EVERY_S:
            return
        if len(self._warned) >= WARNED_MAX:
            self._warned.clear()
        self._warned[client] = now_s
        log.warning("authentication failed: token client=%s path=%s", client, request.path)


class _Refusal(asyncio.Protocol):
    """A connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()


def _unix_socket(path: Path) -> socket.socket:
    """A socket at ``path``, for the owner only; replaces that of a relay that was killed. Raises OSError."""
    if path.is_socket():
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), 0o600)  # before there is a name, which others could replace
        sock.bind(str(path))
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_sockets(paths: Sequence[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()


def problem(status: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response that says what is wrong, as JSON."""
    return web.json_response({"error": text}, status=status, headers=headers)


def _is_local(request: web.Request) -> bool:
    """Whether the connection came to a loopback address, or a Unix socket: from this machine."""
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    if not isinstance(name, tuple):
        return True
    with suppress(ValueError):
        return ip_address(name[0]).is_loopback
    return False


def _tls_context(settings: Admin) -> ssl.SSLContext | None:
    """Raises LocalError."""
    tls = settings.tls
    if tls.certificate_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    except OSError as exc:
        raise LocalError(f"admin.tls: {tls.certificate_file}, {tls.key_file}: {exc}") from exc
    return context
