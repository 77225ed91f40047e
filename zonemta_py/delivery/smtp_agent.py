"""Executes one SMTP or LMTP transaction: find a session, send the message, return the peer's answers.

It knows no queue: a ``DeliveryRequest`` goes in, a ``DeliveryResult`` comes out, so it runs in the
queue's process or in another one.
"""

import logging
from dataclasses import dataclass
from functools import partial
from random import Random

from zonemta_py.config.zones import Zone
from zonemta_py.core import clock, faults
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import DestinationFailed, QueueCorrupt, SessionLost
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.dkim import Signer
from zonemta_py.delivery.endpoints import Candidates, Endpoint, EndpointResolver, credentials
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.delivery.session_pool import SessionPool
from zonemta_py.schedule.unreachable import UnreachableHosts
from zonemta_py.smtp.address import needs_smtputf8
from zonemta_py.smtp.classify import Phase
from zonemta_py.smtp.dkim import BodyHash
from zonemta_py.smtp.reply import Reply, printable
from zonemta_py.transports.connect import SessionOptions, Target, TlsFailed, open_session
from zonemta_py.transports.pipelining import SmtpSession, Transaction, TransactionResult

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SmtpResources:
    """What the agents of all zones in a process share."""

    hostname: str
    endpoints: EndpointResolver
    signer: Signer
    unreachable: UnreachableHosts
    rng: Random


class SmtpAgent:
    """The ``DeliveryAgent`` of a zone that delivers over sessions, which it keeps in ``pool``."""

    def __init__(self, zone: Zone, resources: SmtpResources, pool: SessionPool) -> None:
        self._zone = zone
        self._resources = resources
        self.pool = pool
        self._closed = False

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        """Execute ``request``. Raises what ``context`` raises, except QueueCorrupt."""
        began_s = clock.monotonic_s()
        endpoints: Candidates = ()
        try:
            endpoints = await self._resources.endpoints.find(self._zone, request.domain, request.message)
            session, endpoint, reused = await self._session(endpoints, request)
        except DestinationFailed as exc:
            has_idle = any(self.pool.has_idle(candidate) for candidate, _ in endpoints)
            return _no_session(request, exc, began_s, has_idle=has_idle)
        context.session_opened()
        try:
            if self._resources.signer.signs:
                request = await self._signed(request, context)
            result = await _transact(session, request, context)
            faults.reach("dot.answered")
            if reused and _is_closing(result):
                raise SessionLost("the peer was about to close the session")
        except SessionLost as exc:
            if not reused:
                return DeliveryResult(_lost(request, endpoint, session, str(exc), began_s))
            # The peer may have closed an idle session at any time: not a failure of this transaction.
            session.close()
            try:
                session, endpoint = await self._new_session(endpoints, request)
                result = await _transact(session, request, context)
            except DestinationFailed as failed:
                return _no_session(request, failed, began_s)
            except SessionLost as lost:
                return DeliveryResult(_lost(request, endpoint, session, str(lost), began_s))
        self._keep(session, endpoint, request.destination)
        return DeliveryResult(_attempts(result, endpoint, session, began_s))

    def close(self) -> None:
        """Close the idle sessions, and from now on every other one after its transaction."""
        self._closed = True
        self.pool.close()

    # ---- sessions

    async def _session(
        self, endpoints: Candidates, request: DeliveryRequest
    ) -> tuple[SmtpSession, Endpoint, bool]:
        """An idle session (then the last value is true) or a new one. Raises DestinationFailed."""
        for endpoint, _ in endpoints:
            session = self.pool.take(endpoint)
            if session is not None:
                return session, endpoint, True
        session, endpoint = await self._new_session(endpoints, request)
        return session, endpoint, False

    async def _new_session(
        self, endpoints: Candidates, request: DeliveryRequest
    ) -> tuple[SmtpSession, Endpoint]:
        """Connect to the first endpoint that accepts a session. Raises DestinationFailed."""
        resources = self._resources
        unreachable, now_s = resources.unreachable, clock.monotonic_s()
        failure = DestinationFailed(0, "4.4.1", _all_unreachable(endpoints))
        for endpoint, source in [
            pair for pair in endpoints if not unreachable.skipped_s(pair[0].ip, now_s)
        ]:
            self.pool.trim(request.destination, *request.idle_limits)
            try:
                session = await self._open(endpoint, source.ehlo or resources.hostname)
            except DestinationFailed as exc:
                failure = exc
                if exc.timed_out:
                    unreachable.timed_out(endpoint.ip, clock.monotonic_s(), resources.rng.random())
                else:
                    unreachable.answered(endpoint.ip)
            else:
                unreachable.answered(endpoint.ip)
                return session, endpoint
        raise failure

    async def _open(self, endpoint: Endpoint, ehlo: str) -> SmtpSession:
        zone = self._zone
        target = Target(endpoint.host, endpoint.ip, endpoint.port)
        lmtp = zone.transport == "lmtp"
        options = SessionOptions(ehlo, endpoint.source, zone.tls, zone.timeouts, credentials(zone), lmtp)
        try:
            return await open_session(target, options)
        except TlsFailed as exc:
            if zone.tls != "opportunistic" or options.credentials is not None:
                raise
            log.info("%s; continuing without TLS", exc.text)
            return await open_session(
                target, SessionOptions(ehlo, endpoint.source, "off", zone.timeouts, None, lmtp)
            )

    def _keep(self, session: SmtpSession, endpoint: Endpoint, destination: str) -> None:
        if not self._closed and session.usable and session.messages < self._zone.messages_per_connection:
            self.pool.put(endpoint, destination, session, self._zone.timeouts.idle)
        else:
            session.close()

    async def _signed(self, request: DeliveryRequest, context: RequestContext) -> DeliveryRequest:
        """``request`` with the DKIM signatures of its author's domain in front of its header."""
        try:
            fields = await self._resources.signer.signatures(
                request.message, request.header, partial(_body_hash, request, context)
            )
        except QueueCorrupt:
            return request  # reported when the body is read to be sent
        if not fields:
            return request
        size_bytes = request.size_bytes + len(fields)
        return replace(request, header=fields + request.header, size_bytes=size_bytes)


# ---- the transaction


async def _transact(
    session: SmtpSession, request: DeliveryRequest, context: RequestContext
) -> TransactionResult:
    """Send the message. Raises SessionLost, and what ``context`` raises except QueueCorrupt."""
    recipients = request.recipients
    ascii_header = request.header.isascii()
    smtputf8 = (
        (request.smtputf8 and not ascii_header)
        or needs_smtputf8(request.sender)
        or any(map(needs_smtputf8, recipients))
    )
    eight_bit = request.eight_bit or not ascii_header
    refusal = _refusal(session, request.size_bytes, eight_bit, smtputf8)
    if refusal is not None:
        return TransactionResult([(Phase.MAIL, refusal)] * len(recipients))
    if session.recipients_max is not None:
        recipients = recipients[: session.recipients_max]
    dsn = request.dsn if request.dsn is not None and session.offers("dsn") else None
    try:
        transaction = Transaction(
            request.sender, recipients, request.header, context.body(), request.size_bytes,
            eight_bit, smtputf8, dsn,
        )  # fmt: skip
        return await session.transact(transaction, context.started)
    except QueueCorrupt as exc:
        log.critical("%s is not delivered: %s", request.message, exc)
        reply = Reply(0, "4.3.0", "the stored message is damaged; see the log of the relay")
        return TransactionResult([(Phase.DATA, reply)] * len(recipients))


async def _body_hash(request: DeliveryRequest, context: RequestContext) -> bytes:
    """The DKIM body hash from intake, or computed now. Raises QueueCorrupt."""
    if request.body_hash:
        return request.body_hash
    body, body_hash = context.body(), BodyHash()
    if isinstance(body, bytes):
        body_hash.feed(body)
    else:
        async for chunk in body:
            body_hash.feed(chunk)
    return body_hash.digest()


def _refusal(session: SmtpSession, size_bytes: int, eight_bit: bool, smtputf8: bool) -> Reply | None:
    """Why the peer cannot accept the message, known from its extensions; None when it can."""
    if session.size_max and size_bytes > session.size_max:
        return Reply(
            0, "5.3.4", f"the message has {size_bytes} bytes, the peer takes {session.size_max}"
        )
    if smtputf8 and not session.offers("smtputf8"):
        return Reply(0, "5.6.7", "an address or header needs SMTPUTF8, which the peer does not offer")
    if eight_bit and not session.offers("8bitmime") and not smtputf8:
        return Reply(0, "5.6.3", "the message has 8-bit content, which the peer does not take")
    return None


def _is_closing(result: TransactionResult) -> bool:
    """Whether the peer only said that it closes the connection."""
    return all(
        answer is not None and answer[0] is Phase.MAIL and answer[1].code == 421
        for answer in result.answers
    )


# ---- the attempts


def _attempts(
    result: TransactionResult, endpoint: Endpoint, session: SmtpSession, began_s: float
) -> list[Attempt | None]:
    """An attempt per recipient; recipients with the same answer share one."""
    duration_ms = _since_ms(began_s)
    by_answer: dict[tuple[Phase, Reply], Attempt] = {}
    attempts: list[Attempt | None] = []
    for answer in result.answers:
        if answer is None:
            attempts.append(None)
            continue
        if answer not in by_answer:
            phase, reply = answer
            by_answer[answer] = Attempt(
                phase=phase.value,
                code=reply.code,
                status=reply.status,
                text=reply.text,
                mx=endpoint.host,
                mx_ip=endpoint.ip,
                source_ip=endpoint.source or "",
                tls=session.secure,
                duration_ms=duration_ms,
                uncertain=result.uncertain and phase is Phase.DOT,
                dsn=session.offers("dsn"),
            )
        attempts.append(by_answer[answer])
    return attempts


def _lost(
    request: DeliveryRequest, endpoint: Endpoint, session: SmtpSession, text: str, began_s: float
) -> list[Attempt | None]:
    """The attempts of a transaction whose session was lost before the final dot."""
    answer: tuple[Phase, Reply] | None = (Phase.DATA, Reply(0, "4.4.2", text))
    return _attempts(TransactionResult([answer] * len(request.recipients)), endpoint, session, began_s)


def _no_session(
    request: DeliveryRequest, exc: DestinationFailed, began_s: float, *, has_idle: bool = False
) -> DeliveryResult:
    """A temporary failure for every recipient, whatever the peer's status, unless ``exc`` is permanent."""
    attempt = Attempt(
        phase=Phase.CONNECT.value,
        code=0,
        status=exc.status if exc.permanent or exc.status.startswith("4") else f"4{exc.status[1:]}",
        text=printable(exc.text),
        duration_ms=_since_ms(began_s),
    )
    return DeliveryResult([attempt] * len(request.recipients), attempt, exc.permanent, has_idle)


def _all_unreachable(endpoints: Candidates) -> str:
    """Why no connection was attempted."""
    ips = ", ".join(dict.fromkeys(endpoint.ip for endpoint, _ in endpoints))
    return f"every address timed out lately and is not tried for a while: {ips}"


def _since_ms(began_s: float) -> int:
    return int((clock.monotonic_s() - began_s) * 1000)
