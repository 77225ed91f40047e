"""Carries out orders of a zone without sessions: each recipient by itself, through the zone's transport."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from zonemta_py.config.schema import Zone
from zonemta_py.config.secrets import read_token
from zonemta_py.core import clock, faults
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.smtp.classify import Phase
from zonemta_py.smtp.reply import Reply, printable
from zonemta_py.transports.blackhole import Blackhole
from zonemta_py.transports.interface import LocalTransport, Parcel
from zonemta_py.transports.maildir import Maildir
from zonemta_py.transports.pipe import PRESETS, Pipe
from zonemta_py.transports.python import Routine

log = logging.getLogger(__name__)


def _http(zone: Zone, hostname: str) -> LocalTransport:
    # Only where it is used: loading aiohttp takes a command a quarter of a second.
    from zonemta_py.transports.http import HttpPost

    token = read_token(zone.http.token_file)
    return HttpPost(zone.http.url or "", zone.http.timeout, hostname, token)


_MAKERS: dict[str, Callable[[Zone, str], LocalTransport]] = {
    "blackhole": lambda zone, hostname: Blackhole(zone.blackhole.latency),
    "http": _http,
    "maildir": lambda zone, hostname: Maildir(
        str(zone.maildir.path), create=zone.maildir.create, hostname=hostname
    ),
    "pipe": lambda zone, hostname: Pipe(
        zone.pipe.command or PRESETS[zone.pipe.preset], zone.pipe.timeout
    ),
    "python": lambda zone, hostname: Routine(zone.python.function or "", zone.python.timeout),
}


class LocalAgent:
    """As ``worker.Carrier``, for the transports in ``_MAKERS``."""

    def __init__(self, zone: Zone, hostname: str) -> None:
        self._transport = make_transport(zone, hostname)

    async def send(self, order: DeliveryRequest, errand: RequestContext) -> DeliveryResult:
        """Hand the message over for each recipient, one after the other."""
        errand.opened()
        attempts = []
        for recipient in order.recipients:
            began_s = clock.monotonic_s()
            parcel = Parcel(
                order.message, order.sender, recipient, order.header, _opener(errand), _beginner(errand)
            )
            try:
                reply = await self._transport.deliver(parcel)
            except QueueCorrupt as exc:
                log.critical("%s is not delivered: %s", order.message, exc)
                reply = Reply(0, "4.3.0", "the stored message is damaged; the operator has been told")
            faults.reach("dot.answered")
            attempts.append(
                Attempt(
                    phase=Phase.DOT.value,
                    code=reply.code,
                    status=printable(reply.status),
                    text=printable(reply.text),
                    duration_ms=int((clock.monotonic_s() - began_s) * 1000),
                    final=True,
                )
            )
        return DeliveryResult(attempts)

    def close(self) -> None:
        """Connections at rest end."""
        self._transport.close()


def make_transport(zone: Zone, hostname: str) -> LocalTransport:
    """The transport that a zone's configuration asks for. Raises ConfigError when it cannot be had."""
    return _MAKERS[zone.transport](zone, hostname)


def is_local(zone: Zone) -> bool:
    """Whether the zone's mail needs no session."""
    return zone.transport in _MAKERS


def _opener(errand: RequestContext) -> Callable[[], AsyncIterator[bytes]]:
    async def chunks() -> AsyncIterator[bytes]:
        body = errand.body()
        if isinstance(body, bytes):
            yield body
            return
        async for chunk in body:
            yield chunk

    return chunks


def _beginner(errand: RequestContext) -> Callable[[], Awaitable[None]]:
    async def begin() -> None:
        await errand.started

    return begin
