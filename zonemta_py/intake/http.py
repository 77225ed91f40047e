"""Mail by HTTP POST: ``message/rfc822`` with its envelope in header fields, streamed into the queue.

204 means that the message is on disk. Every response has the reply that SMTP would give. Source: python-slimta, slimta/edge/wsgi.py.
"""

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web

from zonemta_py.core.clock import monotonic_s, now_ms
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.inject import PROGRAM_IP, Injector, NamedKey
from zonemta_py.intake.submission_key import KEY_FIELD
from zonemta_py.queue.format.records import Origin
from zonemta_py.smtp.commands import Rcpt
from zonemta_py.smtp.reply import (
    EHLO_FIELD,
    FIELD,
    RECIPIENT_FIELD,
    SENDER_FIELD,
    Reply,
    decode_address,
    make_reply,
    retry_after_s,
    status_of,
    write_reply,
)

PATH = "/mail"
MEDIA_TYPE = "message/rfc822"
PROTOCOL = "HTTP"
HELO_MAX = 255
IDEMPOTENCY_FIELD = "Idempotency-Key"

log = logging.getLogger(__name__)


class MailEndpoint:
    """Accepts messages, each with an injector from ``new_injector``. ``where``: the address, for their trace."""

    def __init__(
        self, new_injector: Callable[[], Injector], *, where: str, message_timeout_s: float
    ) -> None:
        self._new_injector = new_injector
        self._where = where
        self._timeout_s = message_timeout_s

    async def post(self, request: web.Request, tenant: str = "", token: str = "") -> web.Response:
        """Accept the message in ``request``, of ``tenant`` if its token, whose name is ``token``, belongs to one."""
        if request.content_type != MEDIA_TYPE:
            return web.Response(status=415, text=f"expected Content-Type: {MEDIA_TYPE}\n")
        began_s, injector = monotonic_s(), self._new_injector()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._inject(request, injector, tenant, token)
            reply = Reply(250, "2.0.0", f"Ok: queued as {await injector.finish()}")
        except TimeoutError:
            reply = Reply(421, "4.4.2", "This message takes too long")
        except NotAccepted as exc:
            code, _, text = str(exc).partition(" ")
            reply = make_reply(int(code), text)
        except web.RequestPayloadError:
            reply = Reply(501, "5.5.4", "The body is not in the form that its header says")
        except ValueError as exc:
            reply = Reply(501, "5.5.4", str(exc))
        except ConnectionError:
            reply = Reply(421, "4.4.2", "The connection was lost")
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

    async def _inject(self, request: web.Request, injector: Injector, tenant: str, token: str) -> None:
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
        client = request.remote or PROGRAM_IP
        origin = Origin(
            listener=f"http:{self._where}", client_ip=client, helo=helo, user="", protocol=PROTOCOL, tenant=tenant,
        )  # fmt: skip
        owner = f"token:{token}" if token else ""  # several programs have one address
        key = NamedKey(fields.get(KEY_FIELD, ""), owner)
        if not key.value and (idempotent := fields.get(IDEMPOTENCY_FIELD, "").strip(' "')):
            key = NamedKey(f"{IDEMPOTENCY_FIELD}\0{idempotent}", owner, IDEMPOTENCY_FIELD)
        await injector.begin(sender, recipients, key=key, origin=origin)
        async for chunk in request.content.iter_any():
            await injector.write(chunk)
            if injector.refusal:
                raise NotAccepted(injector.refusal)


NO_TOKEN = {FIELD: write_reply(Reply(535, "5.7.8", "Authentication credentials invalid"))}


def _response(reply: Reply) -> web.Response:
    headers = {FIELD: write_reply(reply)}
    wait_s = retry_after_s(reply, now_ms())
    if wait_s is not None:
        headers["Retry-After"] = str(wait_s)
    return web.Response(status=status_of(reply), headers=headers)
