"""Executes one SMTP or LMTP transaction: find a session, send the message, return the peer's answers.

It knows no queue: a ``DeliveryRequest`` goes in, a ``DeliveryResult`` comes out, so it runs in the
queue's process or in another one.
"""

import asyncio
import dataclasses
import logging
from dataclasses import dataclass
from functools import partial
from random import Random

from zonemta_py.config.zones import Zone
from zonemta_py.core import clock, faults
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import DestinationFailed, QueueCorrupt, SessionLost
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.attempts import all_unreachable, attempts_of, no_session
from zonemta_py.delivery.dkim import Signer
from zonemta_py.delivery.endpoints import Candidates, Endpoint, EndpointResolver, credentials
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.delivery.session_pool import SessionPool
from zonemta_py.schedule.unreachable import AddressPair, UnreachableHosts, skip_times_s
from zonemta_py.smtp.address import needs_smtputf8
from zonemta_py.smtp.classify import LOST, Phase, is_closed, is_unserved
from zonemta_py.smtp.dkim import BodyHash
from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.connect import (
    LoopsBack,
    SessionOptions,
    Target,
    TlsFailed,
    open_session,
)
from zonemta_py.transports.pipelining import DsnOptions, SmtpSession, Transaction, TransactionResult

HURRIED_S = 10.0  # for a session with one host: longer than the usual delays of greetings
SESSIONS_MAX = 3  # of one request, with different endpoints or after an idle one

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
        self._skip_times_s = skip_times_s(zone.retry)
        self.pool = pool
        self._closed = False

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        """Execute ``request``. Raises what ``context`` raises, except QueueCorrupt.

        Recipients that a session has not served, because the peer closed it or refused MAIL for now, are
        sent to the next endpoint (RFC 5321 section 5.1).
        """
        course = _Course(request, clock.monotonic_s())
        endpoints: Candidates = ()
        try:
            endpoints = await self._resources.endpoints.find(self._zone, request.domain, request.message)
            session, endpoint, reused = await self._session(endpoints, request)
        except DestinationFailed as exc:
            has_idle = any(self.pool.has_idle(candidate) for candidate, _ in endpoints)
            return no_session(request, exc, course.began_s, has_idle=has_idle)
        context.session_opened()
        if self._resources.signer.signs:
            course.request = await self._signed(request, context)
        while True:
            closed = await self._serve(course, session, endpoint, context)
            # A peer may close an idle session at any time: that is no failure of the endpoint. Nor is it
            # one to close it at a certain number of recipients.
            expired = reused and closed
            same = expired or (closed and session.recipients_max is not None)
            if not course.unserved or (course.sessions == SESSIONS_MAX and not expired):
                return course.result()
            if not same:
                endpoints = [pair for pair in endpoints if pair[0].ip != endpoint.ip]
            try:
                session, endpoint = await self._new_session(endpoints, request)
            except DestinationFailed as exc:
                return course.result(exc if expired else None)
            reused = False

    async def _serve(
        self, course: "_Course", session: SmtpSession, endpoint: Endpoint, context: RequestContext
    ) -> bool:
        """Send to the recipients that are not served. Returns whether the peer closed the session on some of them."""
        if course.recipients_max:
            session.recipients_max = course.recipients_max
        try:
            result = await _transact(session, course.part(), context)
            faults.reach("dot.answered")
        except SessionLost as exc:
            lost = (Phase.DATA, Reply(0, LOST, str(exc)))
            result = TransactionResult([lost] * len(course.unserved))
        closed = course.add(result, endpoint, session)
        if closed:
            session.close()
        else:
            self._keep(session, endpoint, course.request.destination)
        return closed

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
        """Connect to the first endpoint that accepts a session. Raises DestinationFailed.

        Addresses that timed out lately are skipped; not those of a smarthost, if there are no others.
        """
        resources = self._resources
        unreachable, now_s = resources.unreachable, clock.monotonic_s()
        failure = DestinationFailed(0, "4.4.1", all_unreachable(endpoints))
        reachable = [e for e in endpoints if not unreachable.skipped_s(_addresses(e[0]), now_s)]
        if not reachable and self._zone.smarthost is not None:
            reachable = list(endpoints)
        for endpoint, source in reachable:
            self.pool.trim(request.destination, *request.idle_limits)
            try:
                async with asyncio.timeout(HURRIED_S if request.hurried else None):
                    session = await self._open(endpoint, source.ehlo or resources.hostname)
            except TimeoutError:
                where = f"{endpoint.host}[{endpoint.ip}]"
                text = f"{where}: no session within {HURRIED_S:.0f} s, while mail of others waits"
                failure = DestinationFailed(0, "4.4.1", text)
            except LoopsBack as exc:
                # Neither this host nor a less preferred one may be used (RFC 5321 section 5.1).
                raise exc if endpoint is endpoints[0][0] else failure from exc
            except DestinationFailed as exc:
                failure = exc
                if exc.timed_out:
                    unreachable.timed_out(
                        _addresses(endpoint),
                        request.destination,
                        clock.monotonic_s(),
                        self._skip_times_s,
                        resources.rng.random(),
                    )
                else:
                    unreachable.answered(_addresses(endpoint))
            else:
                unreachable.answered(_addresses(endpoint))
                return session, endpoint
        raise failure

    async def _open(self, endpoint: Endpoint, ehlo: str) -> SmtpSession:
        zone = self._zone
        target = Target(endpoint.host, endpoint.ip, endpoint.port)
        lmtp = zone.transport == "lmtp"
        options = SessionOptions(
            ehlo, endpoint.source, zone.tls, zone.timeouts, credentials(zone), lmtp, zone.tls_ca_file,
            detects_loop=zone.smarthost is None,
        )  # fmt: skip
        try:
            return await open_session(target, options)
        except TlsFailed as exc:
            if zone.tls != "opportunistic" or options.credentials is not None:
                raise
            log.info("%s; continuing without TLS", exc.text)
            return await open_session(target, dataclasses.replace(options, tls="off"))

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


def _addresses(endpoint: Endpoint) -> AddressPair:
    return AddressPair(endpoint.source or "", endpoint.ip)


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


# ---- the course of a request


class _Course:
    """What has become of each recipient of a request, over one session or several.

    ``unserved``: the indexes of those that the next session may serve.
    """

    def __init__(self, request: DeliveryRequest, began_s: float) -> None:
        self.request = request
        self.began_s = began_s
        self.sessions = 0
        self.unserved = list(range(len(request.recipients)))
        self.recipients_max = 0  # of a transaction, once it is known
        self._attempts: list[Attempt | None] = [None] * len(request.recipients)
        self._answered = False  # a recipient has an answer that is about it

    def part(self) -> DeliveryRequest:
        """The request for the recipients that are not served."""
        request, unserved = self.request, self.unserved
        if len(unserved) == len(request.recipients):
            return request
        dsn = request.dsn
        if dsn is not None:
            dsn = DsnOptions(dsn.mail, [dsn.rcpts[index] for index in unserved])
        return replace(request, recipients=[request.recipients[i] for i in unserved], dsn=dsn)

    def add(self, result: TransactionResult, endpoint: Endpoint, session: SmtpSession) -> bool:
        """Take the answers to ``part``. Returns whether one of them says that the session is closed."""
        self.sessions += 1
        self.recipients_max = session.recipients_max or 0
        indexes, self.unserved = self.unserved, []
        closed = unserved = False
        made = attempts_of(result, endpoint, session, self.began_s)
        known: Attempt | None = None
        for index in indexes[len(result.answers) :]:
            self._attempts[index] = None  # beyond the limit of recipients: not tried in this session
        for index, answer, attempt in zip(indexes, result.answers, made, strict=False):
            self._attempts[index] = attempt
            if answer is None:
                continue
            if attempt is not known:  # recipients with the same answer share an attempt
                known, unserved = attempt, is_unserved(*answer)
                closed = closed or is_closed(*answer)
            if unserved:
                self.unserved.append(index)
            else:
                self._answered = True
        return closed

    def result(self, failure: DestinationFailed | None = None) -> DeliveryResult:
        """The end of the request; ``failure``: no session could be opened after an idle one was closed."""
        if failure is not None and not self._answered:
            return no_session(self.request, failure, self.began_s)
        last = self._attempts[-1]
        if self._answered or last is None or last.code not in (0, 421):
            return DeliveryResult(self._attempts, recipients_max=self.recipients_max)
        return DeliveryResult(self._attempts, last, refuses_sessions=last.code == 421)
