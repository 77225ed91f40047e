"""Executes the requests of a zone without SMTP sessions: recipient by recipient, by the zone's transport."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from zonemta_py.config.hooks import read_token
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock, faults
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, MxAnswer
from zonemta_py.smtp.reply import Reply, printable
from zonemta_py.smtp.verdict import Phase
from zonemta_py.transports.local import (
    BlackholeTransport,
    LocalMessage,
    LocalTransport,
    MaildirTransport,
    PythonTransport,
    Unanswered,
)
from zonemta_py.transports.pipe import PRESETS, PipeTransport

log = logging.getLogger(__name__)


def _http(zone: Zone, hostname: str) -> LocalTransport:
    # Imported where it is used: loading aiohttp takes a quarter of a second.
    from zonemta_py.transports.http import HttpTransport

    token = read_token(zone.http.token_file)
    return HttpTransport(zone.http.url or "", zone.http.timeout, hostname, token)


_MAKERS: dict[str, Callable[[Zone, str], LocalTransport]] = {
    "blackhole": lambda zone, hostname: BlackholeTransport(zone.blackhole.latency),
    "http": _http,
    "maildir": lambda zone, hostname: MaildirTransport(
        str(zone.maildir.path), create=zone.maildir.create, hostname=hostname
    ),
    "pipe": lambda zone, hostname: PipeTransport(
        zone.pipe.command or PRESETS[zone.pipe.preset], zone.pipe.timeout, zone.pipe.temporary
    ),
    "python": lambda zone, hostname: PythonTransport(zone.python.function or "", zone.python.timeout),
}


class LocalAgent:
    """The ``DeliveryAgent`` of a zone whose transport has no sessions (see ``is_local``)."""

    def __init__(self, zone: Zone, hostname: str) -> None:
        """Raises ConfigError. See ``make_transport``."""
        self._transport = make_transport(zone, hostname)
        self._running = 0  # requests
        self._closed = False

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        """Deliver to each recipient, one after the other. Raises QueueUnavailable."""
        self._running += 1
        try:
            return await self._deliver(request, context)
        finally:
            self._running -= 1
            if self._closed and not self._running:
                self._transport.close()

    async def _deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        context.session_opened(0)
        attempts = []
        for recipient in request.recipients:
            began_s = clock.monotonic_s()
            message = LocalMessage(
                message=request.message,
                sender=request.sender,
                recipient=recipient,
                header=request.header,
                body=_body_reader(context),
                begin=_start_waiter(context),
                size_bytes=request.size_bytes,
            )
            attempts.append(await self._attempt(message, began_s))
        return DeliveryResult(attempts)

    async def _attempt(self, message: LocalMessage, began_s: float) -> Attempt:
        """Raises QueueUnavailable. Any other exception is this recipient's: others were delivered before it."""
        try:
            reply = await self._transport.deliver(message)
            faults.reach("dot.answered")
            return _attempt_of(reply, began_s)
        except QueueUnavailable:
            raise
        except QueueCorrupt as exc:
            log.critical("%s is not delivered: %s", message.message, exc)
            text = "the stored message is damaged; see the log of the relay"
            return _attempt_of(Reply(0, "4.3.0", text), began_s)
        except Exception as exc:
            log.exception("the delivery of %s failed", message.message)
            text = f"the delivery failed: {type(exc).__name__}; see the log of the relay"
            return _attempt_of(Reply(451, "4.3.0", text), began_s)

    async def resolve(self, domain: str) -> MxAnswer:
        return NO_MX_ANSWER

    def close(self) -> None:
        """Release the connections: now, or when the last running request has ended.

        A reload must not abort what is under way: it would be sent again.
        """
        self._closed = True
        if not self._running:
            self._transport.close()


def make_transport(zone: Zone, hostname: str) -> LocalTransport:
    """The transport of a zone's configuration. Raises ConfigError when it cannot be loaded."""
    return _MAKERS[zone.transport](zone, hostname)


def is_local(zone: Zone) -> bool:
    """True if the zone is delivered without SMTP sessions."""
    return zone.transport in _MAKERS


def _attempt_of(reply: Reply, began_s: float) -> Attempt:
    return Attempt(
        phase=Phase.DOT.value,
        code=reply.code,
        status=printable(reply.status),
        text=printable(reply.text),
        duration_ms=int((clock.monotonic_s() - began_s) * 1000),
        uncertain=isinstance(reply, Unanswered),
        final=True,
    )


def _body_reader(context: RequestContext) -> Callable[[], AsyncIterator[bytes]]:
    async def chunks() -> AsyncIterator[bytes]:
        body = context.body()
        if isinstance(body, bytes):
            yield body
            return
        async for chunk in body:
            yield chunk

    return chunks


def _start_waiter(context: RequestContext) -> Callable[[], Awaitable[None]]:
    async def started() -> None:
        await context.started

    return started
