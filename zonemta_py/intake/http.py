"""Mail by HTTP POST: ``message/rfc822`` with its envelope in header fields, streamed into the queue.

204 means that the message is on disk. Every response has the reply that SMTP would give. This is the only
module that uses aiohttp's server. Source: python-slimta, slimta/edge/wsgi.py.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address

from aiohttp import web

from zonemta_py.config.units import HostPort
from zonemta_py.core.clock import monotonic_s, now_ms
from zonemta_py.core.errors import LocalError, NotAccepted
from zonemta_py.intake.admission import HTTP_CONNECTIONS_MAX
from zonemta_py.intake.inject import Injector
from zonemta_py.intake.sockets import BACKLOG
from zonemta_py.queue.format.records import Origin
from zonemta_py.smtp.commands import Rcpt
from zonemta_py.smtp.http_mapping import (
    EHLO_FIELD,
    FIELD,
    RECIPIENT_FIELD,
    SENDER_FIELD,
    decode_address,
    retry_after_s,
    status_of,
    write_reply,
)
from zonemta_py.smtp.reply import Reply, make_reply

PATH = "/mail"
MEDIA_TYPE = "message/rfc822"
PROTOCOL = "HTTP"
HELO_MAX = 255
KEY_FIELD = "X-Submission-Key"
FIRST_REQUEST_S = 30.0  # from the connection to a whole header
KEEP_ALIVE_S = 15.0  # from a response to the whole header of the next request

log = logging.getLogger(__name__)
_aiohttp_log = logging.getLogger(f"{__name__}.protocol")
_aiohttp_log.setLevel(logging.CRITICAL)  # a traceback for every request that is not HTTP


class HttpListener:
    """Accepts mail at ``address``, each message with an injector from ``new_injector``.

    ``token``: refuse requests without it; empty accepts all that name an address, or ``hostname``.
    """

    def __init__(
        self,
        address: HostPort,
        token: str,
        hostname: str,
        new_injector: Callable[[], Injector],
        *,
        message_timeout_s: float,
        grace_s: float,
    ) -> None:
        self._address = address
        self._token = token
        self._names = ("localhost", hostname.lower(), address.host.lower())
        self._new_injector = new_injector
        self._timeout_s = message_timeout_s
        application = web.Application()
        application.router.add_post(PATH, self._post)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            logger=_aiohttp_log,
            shutdown_timeout=grace_s,
            keepalive_timeout=KEEP_ALIVE_S,
        )
        self._server: asyncio.Server | None = None
        self._silent: set[asyncio.Protocol] = set()  # connections without a request so far
        self.port = 0  # 0 before ``start``

    async def start(self) -> None:
        """Accept connections. Raises LocalError when the address cannot be used."""
        await self._runner.setup()
        loop, (host, port) = asyncio.get_running_loop(), self._address
        try:
            self._server = await loop.create_server(self._connected, host, port, backlog=BACKLOG)
        except OSError as exc:
            await self._runner.cleanup()
            raise LocalError(f"admin.address: {self._address}: {exc.strerror or exc}") from exc
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Accept no more requests, and finish those under way."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _connected(self) -> asyncio.Protocol:
        """The protocol of a new connection: aiohttp's, or one that closes it."""
        server = self._runner.server
        if server is None or len(server.connections) >= HTTP_CONNECTIONS_MAX:
            return _Refusal()
        protocol: asyncio.Protocol = server()
        self._silent.add(protocol)
        asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._end_if_silent, protocol)
        return protocol

    def _end_if_silent(self, protocol: asyncio.Protocol) -> None:
        transport = getattr(protocol, "transport", None)  # None when the connection has ended
        if protocol in self._silent and transport is not None:
            transport.abort()
        self._silent.discard(protocol)

    async def _post(self, request: web.Request) -> web.Response:
        self._silent.discard(request.protocol)
        if not self._token and not self._is_own_name(request.url.host or ""):
            return web.Response(
                status=403, text=f"Host: expected an address or one of {', '.join(self._names)}\n"
            )
        if not self._admitted(request):
            response = _response(Reply(535, "5.7.8", "Authentication credentials invalid"))
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if request.content_type != MEDIA_TYPE:
            return web.Response(status=415, text=f"expected Content-Type: {MEDIA_TYPE}\n")
        began_s, injector = monotonic_s(), self._new_injector()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._inject(request, injector)
            reply = Reply(250, "2.0.0", f"Ok: queued as {await injector.finish()}")
        except TimeoutError:
            reply = Reply(421, "4.4.2", "This message takes too long")
        except NotAccepted as exc:
            code, _, text = str(exc).partition(" ")
            reply = make_reply(int(code), text)
        except ValueError as exc:
            reply = Reply(501, "5.5.4", str(exc))
        except Exception:
            log.exception("a request from %s failed", request.remote)
            reply = Reply(421, "4.3.0", "Internal error")
        finally:
            injector.abort()
        log.debug("%s: %s after %.3f s", request.remote, reply, monotonic_s() - began_s)
        response = _response(reply)
        if not request.content.at_eof():
            response.force_close()  # the remaining data are not read
        return response

    def _is_own_name(self, host: str) -> bool:
        """Whether ``host`` is an address, or a name of this relay.

        A page in a browser can let its own name resolve to an address of this machine (DNS rebinding). It
        cannot know a token.
        """
        with suppress(ValueError):
            return bool(ip_address(host))
        return host.lower() in self._names

    def _admitted(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if not self._token:
            return True
        same = hmac.compare_digest(
            given.strip().encode("utf-8", "surrogateescape"), self._token.encode()
        )
        return same and scheme.lower() == "bearer"

    async def _inject(self, request: web.Request, injector: Injector) -> None:
        """Inject the message in ``request``. Raises NotAccepted, ValueError for a malformed envelope."""
        fields = request.headers
        if SENDER_FIELD not in fields:
            raise ValueError(f"{SENDER_FIELD} is missing; it is empty for the null sender")
        sender = decode_address(fields[SENDER_FIELD])
        recipients = [
            Rcpt(decode_address(value))
            for field in fields.getall(RECIPIENT_FIELD, [])
            for value in field.split(",")
        ]
        helo = fields.get(EHLO_FIELD, "").encode("ascii", "replace")[:HELO_MAX].decode()
        origin = Origin(f"http:{self._address}", request.remote or "", helo, "", PROTOCOL)
        await injector.begin(sender, recipients, key=fields.get(KEY_FIELD, ""), origin=origin)
        async for chunk in request.content.iter_any():
            await injector.write(chunk)
            if injector.refusal:
                raise NotAccepted(injector.refusal)


class _Refusal(asyncio.Protocol):
    """A connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()


def _response(reply: Reply) -> web.Response:
    headers = {FIELD: write_reply(reply)}
    wait_s = retry_after_s(reply, now_ms())
    if wait_s is not None:
        headers["Retry-After"] = str(wait_s)
    return web.Response(status=status_of(reply), headers=headers)
