"""The HTTP server of the admin listener: connections, the Host field, tokens; what it serves are ``HttpRoute`` values.

On a loopback address or a Unix socket some routes need no token, for programs of this machine (``refusal_of_local``). A
proxy on this machine passes on requests of others, and a page in a browser can let its own name resolve to an address
of this machine (DNS rebinding): neither has these rights.
"""

import asyncio
import logging
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from zonemta_py.admin.connections import HttpConnections, Shares, owner_of
from zonemta_py.admin.tokens import Role, Token, Tokens
from zonemta_py.config.endpoints import AdminAddress
from zonemta_py.config.schema import HTTP_CONNECTIONS_MAX, Admin
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError

log = logging.getLogger(__name__)


BACKLOG = 128
LINGERING_S = 1.0  # for the rest of a request that was answered before its end
KEEP_ALIVE_S = 15.0  # from a response to the whole header of the next request
API = "/api/"  # where errors are JSON
SHORTEST_S = 0.1  # that a request has to finish
WARN_EVERY_S = 60.0  # about wrong tokens from one address
WARNED_MAX = 1000
SHOWN = 40  # characters of a field in an error
KEPT = 10  # every tenth connection is for health, metrics and new clients, every tenth for operators
# Header fields that proxies add, in lower case. Sources: RFC 7239, RFC 9110 section 7.6.3, the manuals of nginx, Apache
# httpd, Envoy, Varnish, Akamai, Cloudflare, Fastly, Fly.io and Azure.
FORWARDING_FIELD = re.compile(
    r"via|forwarded|x-(?:forwarded|original|envoy|azure)(?:-.+)?|x-(?:real|client|cluster-client|proxyuser|coming-from)(?:-ip)?"
    r"|x-(?:host|varnish|remote-(?:addr|ip))|client-ip|true-client-ip|cf-.+|fastly-.+|fly-.+"
    r"|cdn-loop|x-appengine-user-ip|x-amzn-trace-id|forwarded-for"
)
_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::(\d{0,5}))?")
_WHOLE_URL = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)

Handler = Callable[[web.Request, Token | None], Awaitable[web.StreamResponse]]

_aiohttp_log = logging.getLogger(f"{__name__}.protocol")
_aiohttp_log.setLevel(logging.CRITICAL)  # a traceback for every request that is not HTTP


class HttpRoute(NamedTuple):
    """A handler for ``path``. ``role``: of the token that it needs; ``is_local``: none on a loopback address.

    ``is_open``: none at all; its handler decides, and ``token_of`` says whose request it is. ``refusal``: header fields of a 401. ``is_quick``: it takes no
    time, so it is answered whatever else is under way.
    """

    method: str
    path: str
    handler: Handler
    role: Role
    is_local: bool = False
    is_open: bool = False
    is_quick: bool = False
    token_of: Callable[[web.Request], Token | None] = lambda request: None
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
        hosts = (address.host.lower() for address in settings.address if address.host)
        self._local_names = frozenset(("localhost", *hosts))
        self._names = self._local_names | {hostname.lower()}
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
            lingering_time=LINGERING_S,
            auto_decompress=False,  # a body that is compressed is refused
        )
        self._connections = HttpConnections(HTTP_CONNECTIONS_MAX, self._new_protocol)
        kept = HTTP_CONNECTIONS_MAX // KEPT
        self._shares = Shares(HTTP_CONNECTIONS_MAX - kept, kept)  # of requests under way
        self._paths: list[Path] = []  # of Unix sockets that are ours
        self._under_way: set[asyncio.Task[None]] = set()  # requests, or connections that have had some
        self.ports: list[int] = []  # of the addresses, once started; 0 for a Unix socket

    async def start(self) -> None:
        """Accept connections. Raises LocalError when an address cannot be used."""
        await self._runner.setup()
        try:
            context = _tls_context(self._settings)
            for address in self._settings.address:
                sockets = await self._bound(address)
                self._connections.listen(sockets, None if address.path else context)
                self.ports.append(0 if address.path else sockets[0].getsockname()[1])
        except BaseException:
            await self.close()
            raise

    async def _bound(self, address: AdminAddress) -> list[socket.socket]:
        """Listening sockets. Raises LocalError."""
        try:
            if address.path:
                sock = _unix_socket(Path(address.path))
                self._paths.append(Path(address.path))
                return [sock]
            return await _tcp_sockets(address)
        except OSError as exc:
            raise LocalError(f"admin.address: {address}: {exc.strerror or exc}") from exc

    def _new_protocol(self) -> asyncio.Protocol | None:
        server = self._runner.server
        return server() if server is not None else None

    async def close(self, grace_s: float = 0.0) -> None:
        """Accept no more requests; those under way have ``grace_s`` to finish."""
        self._connections.close()
        _remove_sockets(self._paths)
        if self._runner.server is not None:
            self._runner.server.pre_shutdown()  # closes idle connections
            if (
                self._under_way and grace_s
            ):  # aiohttp waits for it twice, for a client that does not read
                await asyncio.wait(self._under_way, timeout=grace_s)
            await self._runner.server.shutdown(SHORTEST_S)
        await self._runner.cleanup()

    # ---- requests

    @web.middleware
    async def _answer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Every request comes here, also one for which there is no route."""
        self._connections.began(request.protocol)
        task = asyncio.current_task()
        assert task is not None
        if task not in self._under_way:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        try:
            coding = request.headers.get("Content-Encoding", "identity")
            if coding.lower() != "identity":
                return problem(415, f"Content-Encoding: found {coding[:SHOWN]}, expected none")
            return await handler(request)
        except web.RequestPayloadError as exc:
            return problem(400, f"the body cannot be read: {exc}")
        except web.HTTPMethodNotAllowed as exc:
            if not request.path.startswith(API):
                raise
            allowed = ", ".join(sorted(exc.allowed_methods))
            return problem(405, f"expected {allowed}, not {exc.method}", {"Allow": allowed})
        except web.HTTPNotFound:
            if not request.path.startswith(API):
                raise
            return problem(404, f"there is no {request.path}; /api/openapi.json has what there is")
        finally:
            self._connections.ended(request.protocol)

    def _guarded(self, route: HttpRoute) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler of ``route`` for those who may use it."""

        async def handle(request: web.Request) -> web.StreamResponse:
            token = self._token(request)
            if token is None and not all(map(self._is_own_name, hosts_of(request))):
                text = f"Host: expected an address or one of {', '.join(sorted(self._names))}"
                return problem(403, text)
            if route.is_open:
                return await self._handled(route, request, token)
            if token is None:
                why = refusal_of_local(request, self._local_names) if route.is_local else ""
                if why or not route.is_local:
                    self._warn(request, why)
                    headers = {"WWW-Authenticate": "Bearer", **route.refusal}
                    text = "a token is required: Authorization: Bearer TOKEN"
                    return problem(401, f"{text} ({why})" if why else text, headers)
            elif not token.allows(route.role):
                return problem(
                    403, f"the token '{token.name}' has the role {token.role}, not {route.role}"
                )
            return await self._handled(route, request, token)

        return handle

    async def _handled(
        self, route: HttpRoute, request: web.Request, token: Token | None
    ) -> web.StreamResponse:
        owner = owner_of(route.token_of(request) if route.is_open else token, request.remote)
        if not route.is_quick and not self._shares.take(owner):
            text = f"too many requests of the {owner} are under way"
            response = problem(503, text, {"Retry-After": "1"})
            response.force_close()
            return response
        try:
            return await route.handler(request, token)
        except (web.HTTPException, web.RequestPayloadError, ConnectionError):
            raise
        except Exception as exc:
            if isinstance(exc, RuntimeError) and request.transport is None:
                raise ConnectionResetError("closed before its body was read") from exc  # of aiohttp
            log.exception("a request from %s failed: %s", request.remote, request.path)
            return problem(500, "internal error; see the log of the relay")
        finally:
            if not route.is_quick:
                self._shares.give_back(owner)

    def _token(self, request: web.Request) -> Token | None:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return self.tokens.find(given.strip()) if scheme.lower() == "bearer" else None

    def _is_own_name(self, host: str) -> bool:
        """True if ``host`` is an address, or a name of this relay."""
        with suppress(ValueError):
            return bool(ip_address(host))
        return host.lower() in self._names

    def _warn(self, request: web.Request, why: str) -> None:
        """Log a wrong token, and a request of a proxy, once a minute for each address."""
        if not why and "Authorization" not in request.headers:
            return
        client, now_s = request.remote or "a Unix socket", monotonic_s()
        if now_s - self._warned.get(client, -WARN_EVERY_S) < WARN_EVERY_S:
            return
        if len(self._warned) >= WARNED_MAX:
            self._warned.clear()
        self._warned[client] = now_s
        reason = f" ({why})" if why else ""
        log.warning("authentication failed: token client=%s path=%s%s", client, request.path, reason)


async def _tcp_sockets(address: AdminAddress) -> list[socket.socket]:
    """A listening socket for each address of the host. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, info in dict.fromkeys((family, info) for family, _, _, _, info in found):
            sockets.append(socket.create_server(info, family=family, backlog=BACKLOG))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _unix_socket(path: Path) -> socket.socket:
    """A socket at ``path``, for the owner only; replaces that of a relay that was killed. Raises OSError."""
    if path.is_socket():
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), 0o600)  # before there is a name, which others could replace
        sock.bind(str(path))
        sock.listen(BACKLOG)
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


def hosts_of(request: web.Request) -> set[str]:
    """The hosts that a request names, in lower case: in Host fields, and in its target if that is a whole URL.

    None is named by a request of HTTP/1.0 without Host: a browser, which could be led here, always sends one.
    """
    named = request.headers.getall("Host", [])
    target = _WHOLE_URL.match(request.raw_path)
    return {host_and_port(text)[0] for text in ([*named, target[1]] if target else named)}


def host_and_port(text: str) -> tuple[str, str]:
    """The parts of a Host field, in lower case; both are empty if it is malformed, the port also without one."""
    match = _HOST.fullmatch(text.strip())
    if match is None:
        return "", ""
    return (match[1] or match[2] or "").lower(), match[3] or ""


def refusal_of_local(request: web.Request, names: Collection[str]) -> str:
    """Why a request without a token has no rights of a program of this machine; empty if it has them.

    It has to come to a loopback address or a Unix socket, without a proxy, and to name a loopback address or one of
    ``names`` as its host. The name of the relay is not among them: it is what clients of a proxy call.
    """
    if request.transport is None:
        return "the connection has ended"
    addresses = [request.transport.get_extra_info(end) for end in ("sockname", "peername")]
    if not all(_is_loopback(each[0]) for each in addresses if isinstance(each, tuple)):
        return "the request does not come from this machine"
    for field in request.headers:
        if FORWARDING_FIELD.fullmatch(field.lower()):
            return f"the request comes through a proxy: it has the field {field}"
    foreign = [host for host in hosts_of(request) if host not in names and not _is_loopback(host)]
    return "the request names another host than this machine" if foreign else ""


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        address = ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
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
