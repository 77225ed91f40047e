"""Mail by HTTP POST: ``message/rfc822`` with its envelope in header fields, streamed into the queue.

The promise is SMTP's: 204 means that the message is on disk. Every answer has the reply that SMTP would
have given. Source: python-slimta, slimta/edge/wsgi.py. The door to aiohttp's server.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable

from aiohttp import web

from zonemta_py.config.units import HostPort
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError, NotAccepted
from zonemta_py.intake.inject import Injector
from zonemta_py.queue.format.records import Origin
from zonemta_py.smtp.commands import Rcpt
from zonemta_py.smtp.http_mapping import (
    EHLO_FIELD,
    FIELD,
    RECIPIENT_FIELD,
    SENDER_FIELD,
    decode_address,
    status_of,
    write_reply,
)
from zonemta_py.smtp.reply import Reply, make_reply

PATH = "/mail"
MEDIA_TYPE = "message/rfc822"
PROTOCOL = "HTTP"
HELO_MAX = 255
KEY_FIELD = "X-Submission-Key"

log = logging.getLogger(__name__)
_protocol = logging.getLogger(
    f"{__name__}.protocol"
)  # of aiohttp: a stack for each request that is no HTTP
_protocol.setLevel(logging.CRITICAL)


class HttpListener:
    """Takes mail at ``address``. ``handover`` begins a message; ``token``: who does not have it is refused."""

    def __init__(
        self,
        address: HostPort,
        token: str,
        handover: Callable[[], Injector],
        *,
        message_timeout_s: float,
        grace_s: float,
    ) -> None:
        self._address = address
        self._token = token
        self._handover = handover
        self._timeout_s = message_timeout_s
        application = web.Application()
        application.router.add_post(PATH, self._post)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            logger=_protocol,
            shutdown_timeout=grace_s,
        )
        self.port = 0  # where it listens, once started

    async def start(self) -> None:
        """Listen. Raises LocalError."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address.host, self._address.port)
        try:
            await site.start()
        except OSError as exc:
            await self._runner.cleanup()
            raise LocalError(f"admin.address: {self._address}: {exc.strerror or exc}") from exc
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Finish the requests under way, and stop."""
        await self._runner.cleanup()

    async def _post(self, request: web.Request) -> web.Response:
        if not self._admitted(request):
            return _answer(Reply(535, "5.7.8", "Authentication credentials invalid"))
        if request.content_type != MEDIA_TYPE:
            return web.Response(status=415, text=f"expected Content-Type: {MEDIA_TYPE}\n")
        began_s, handover = monotonic_s(), self._handover()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._take(request, handover)
            reply = Reply(250, "2.0.0", f"Ok: queued as {await handover.finish()}")
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
            handover.abort()
        log.debug("%s: %s after %.3f s", request.remote, reply, monotonic_s() - began_s)
        answer = _answer(reply)
        if not request.content.at_eof():
            answer.force_close()  # what is still to come is not read
        return answer

    def _admitted(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "")
        return not self._token or hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())

    async def _take(self, request: web.Request, handover: Injector) -> None:
        """Hand over all of a request. Raises NotAccepted, ValueError for an envelope that cannot be read."""
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
        await handover.begin(sender, recipients, key=fields.get(KEY_FIELD, ""), origin=origin)
        async for chunk in request.content.iter_any():
            await handover.write(chunk)
            if handover.refusal:
                raise NotAccepted(handover.refusal)


def _answer(reply: Reply) -> web.Response:
    return web.Response(status=status_of(reply), headers={FIELD: write_reply(reply)})
