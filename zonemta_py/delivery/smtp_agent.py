"""Executes one SMTP or LMTP transaction: find a session, send the message, return the peer's answers.

States of a request (``SmtpAgent._deliver``)::

    endpoints found ─▶ has a session ─▶ served ─▶ answered
                            ▲              │
                            └── another ◀──┘   recipients are left that the session has not served

Invariants:

- A ``DeliveryRequest`` goes in, a ``DeliveryResult`` comes out. No queue is known here, so an agent runs in the queue's process
  or in another one; body and start of the transaction come from the ``RequestContext``.
- A request sends on at most SESSIONS_MAX sessions.
- A session has one transaction at a time. After it the session is kept in ``pool``, or closed; after an exception closed.
- Where an order limits new sessions, a request opens one session at most, and only if ``connects`` permits it.
- A peer that closes an idle session has not failed: the same endpoint is tried again.
- Messages are changed (7 bits, DKIM) in ``MessageForms`` only, each form once for a request, in this order.

Callers: ``Worker`` by the ``DeliveryAgent`` interface, in a sender process ``processes.sender_process``; ``delivery.assembly``
makes one for each zone.

Example: the peer has closed the idle session that a request takes. A new one is opened with the same endpoint, and serves it.

Source: RFC 5321 section 5.1 (the order of hosts), RFC 2033 (LMTP), RFC 6152 (conversion where 8BITMIME is missing).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Any

from zonemta_py.config.zones import DestinationTable, Zone
from zonemta_py.core import clock, faults
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import DestinationFailed, QueueCorrupt, SessionLost
from zonemta_py.delivery.attempts import RequestProgress, no_session
from zonemta_py.delivery.dkim import Signer
from zonemta_py.delivery.endpoints import Candidates, Endpoint
from zonemta_py.delivery.request import (
    DeliveryRequest,
    DeliveryResult,
    RequestContext,
)
from zonemta_py.delivery.session_opener import (
    AllSkipped,
    NotPermitted,
    SessionOpener,
    SmtpResources,
    beginning_with,
    session_trace,
)
from zonemta_py.delivery.session_pool import QUIT_S, SessionPool, path_of
from zonemta_py.smtp.address import needs_smtputf8
from zonemta_py.smtp.dkim import BodyHash
from zonemta_py.smtp.mx_order import MxAnswer
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.seven_bit import NotConvertible, to_seven_bit
from zonemta_py.smtp.verdict import LOST, PARAMETERS, Phase, refused_extensions
from zonemta_py.transports.connect import (
    LoopsBack,
)
from zonemta_py.transports.session import SmtpSession, Transaction, TransactionResult
from zonemta_py.transports.tracing import TRACER

log = logging.getLogger(__name__)


# ---- The forms of a message that sessions with different extensions need, and one transaction on a session.

CONVERTED_MAX = 64 << 20  # bytes; a larger message would take several times that in memory


class MessageForm:
    """A message as it is sent. ``body`` None: that of the queue, which ``context`` reads."""

    def __init__(
        self, request: DeliveryRequest, context: RequestContext, body: bytes | None = None
    ) -> None:
        self.request = request
        self.context = context
        self.body = body

    def read(self) -> bytes | AsyncIterator[bytes]:
        """The body. Raises QueueCorrupt, also while it is read."""
        return self.context.body() if self.body is None else self.body


class MessageForms:
    """The message of a request as it is, and in 7 bits; both signed, each made when it is first needed."""

    def __init__(
        self,
        request: DeliveryRequest,
        context: RequestContext,
        signer: Signer,
        conversions: asyncio.Semaphore,
    ) -> None:
        """``conversions``: as many at the same time; each takes several times the message in memory."""
        self._original = MessageForm(request, context)
        self._signer = signer
        self._conversions = conversions
        self._forms: dict[bool, MessageForm | None] = {}
        if not signer.signs:
            self._forms[False] = self._original

    def converts(self, session: SmtpSession) -> bool:
        """True if the peer lacks 8BITMIME and can get the message in 7 bits."""
        request = self._original.request
        if session.offers("8bitmime") or (request.eight_bit is False and request.header.isascii()):
            return False
        return not _needs_smtputf8(request) and request.size_bytes <= CONVERTED_MAX

    async def get(self, *, seven_bit: bool) -> MessageForm:
        """A form; the message as it is when it cannot be converted."""
        if seven_bit not in self._forms:
            form: MessageForm | None = self._original
            if seven_bit:
                async with self._conversions:
                    form = await _converted(self._original)
            self._forms[seven_bit] = await _signed(form, self._signer) if form is not None else None
        return self._forms[seven_bit] or await self.get(seven_bit=False)


async def _converted(form: MessageForm) -> MessageForm | None:
    """The message in 7 bits; None when that is not possible."""
    request = form.request
    try:
        whole = form.read()
        if not isinstance(whole, bytes):
            whole = b"".join([chunk async for chunk in whole])
        header, body = await asyncio.to_thread(to_seven_bit, request.header, whole)
    except QueueCorrupt:
        return None  # reported when the body is read to be sent
    except NotConvertible as exc:
        log.warning("%s cannot be sent in 7 bits: %s", request.message, exc)
        return None
    size_bytes = len(header) + 2 + len(body)
    changed = replace(
        request, header=header, size_bytes=size_bytes, eight_bit=False, smtputf8=False, body_hash=b""
    )
    return MessageForm(changed, form.context, body)


async def _signed(form: MessageForm, signer: Signer) -> MessageForm:
    """The message with the DKIM signatures of its author's domain in front of its header."""
    if not signer.signs:
        return form
    request = form.request
    name = request.message if form.body is None else f"{request.message} in 7 bits"
    try:
        fields = await signer.signatures(name, request.header, partial(_body_hash, form), request.tenant)
    except QueueCorrupt:
        return form  # reported when the body is read to be sent
    if not fields:
        return form
    size_bytes = request.size_bytes + len(fields)
    changed = replace(request, header=fields + request.header, size_bytes=size_bytes)
    return MessageForm(changed, form.context, form.body)


async def _body_hash(form: MessageForm) -> bytes:
    """The DKIM body hash from intake, or computed now. Raises QueueCorrupt."""
    if form.request.body_hash:
        return form.request.body_hash
    body, body_hash = form.read(), BodyHash()
    if isinstance(body, bytes):
        body_hash.feed(body)
    else:
        async for chunk in body:
            body_hash.feed(chunk)
    return body_hash.digest()


def _needs_smtputf8(request: DeliveryRequest) -> bool:
    addresses = "".join((request.sender, *request.recipients))
    return needs_smtputf8(addresses) or (request.smtputf8 and not request.header.isascii())


async def transact(
    session: SmtpSession, request: DeliveryRequest, form: MessageForm
) -> TransactionResult:
    """Send ``form`` to the recipients of ``request``. Raises SessionLost, and what its context raises except QueueCorrupt."""
    recipients = request.recipients
    smtputf8 = _needs_smtputf8(request)
    eight_bit = request.eight_bit or not request.header.isascii()
    refusal = _refusal(session, request.size_bytes, eight_bit, smtputf8)
    if refusal is not None:
        return TransactionResult([(Phase.MAIL, refusal)] * len(recipients))
    if session.recipients_max is not None:
        recipients = recipients[: session.recipients_max]
    dsn = request.dsn if request.dsn is not None and session.offers("dsn") else None
    try:
        transaction = Transaction(
            sender=request.sender, recipients=recipients, header=request.header, body=form.read(), size=request.size_bytes,
            eight_bit=eight_bit, smtputf8=smtputf8, dsn=dsn,
        )  # fmt: skip
        return await session.transact(transaction, form.context.started)
    except QueueCorrupt as exc:
        log.critical("%s is not delivered: %s", request.message, exc)
        reply = Reply(0, "4.3.0", "the stored message is damaged; see the log of the relay")
        return TransactionResult([(Phase.DATA, reply)] * len(recipients))


def refused(session: SmtpSession, request: DeliveryRequest, result: TransactionResult) -> frozenset[str]:
    """The extensions whose parameters the peer refused with every recipient; empty if it refused no parameter."""
    sent = [each for each in PARAMETERS if _is_sent(each, request) and session.offers(each)]
    found: frozenset[str] = frozenset()
    for answer in result.answers:
        extensions = (
            refused_extensions(answer[1], sent) if answer and answer[0] in _NAMES_ADDRESS else None
        )
        if not extensions:
            return frozenset()
        found |= extensions if answer and answer[0] is Phase.MAIL else extensions & {"dsn"}
    return found


_NAMES_ADDRESS = (Phase.MAIL, Phase.RCPT)


def _is_sent(extension: str, request: DeliveryRequest) -> bool:
    """True if MAIL or RCPT has parameters of ``extension`` if the peer offers it."""
    if extension == "dsn":
        return request.dsn is not None
    if extension == "smtputf8":
        return _needs_smtputf8(request)
    return extension == "size" or request.eight_bit or not request.header.isascii()


def _refusal(session: SmtpSession, size_bytes: int, eight_bit: bool, smtputf8: bool) -> Reply | None:
    """Why the peer cannot accept the message, known from its extensions; None when it can."""
    if session.size_max and size_bytes > session.size_max:
        return Reply(
            0, "5.3.4", f"the message has {size_bytes} bytes, the peer takes {session.size_max}"
        )
    if smtputf8 and not session.offers("smtputf8"):
        if "smtputf8" in session.withdrawn:
            return Reply(
                0, "4.6.7", "an address or header needs SMTPUTF8, which the peer offers and refuses"
            )
        return Reply(0, "5.6.7", "an address or header needs SMTPUTF8, which the peer does not offer")
    if eight_bit and not session.offers("8bitmime") and not smtputf8:
        if "8bitmime" in session.withdrawn:
            return Reply(
                0, "4.6.3", "the message has 8-bit content, which the peer offers to take and refuses"
            )
        return Reply(0, "5.6.3", "the message has 8-bit content, which the peer does not take")
    return None


# ---- smtp agent

OpenSession = tuple[SmtpSession, Endpoint, bool]  # the last: it was idle

SESSIONS_MAX = 3  # of one request, with different endpoints or after an idle one


_BEFORE_DATA = (Phase.MAIL, Phase.RCPT)


class SmtpAgent:
    """The ``DeliveryAgent`` of a zone that delivers over sessions, which it keeps in ``pool``."""

    def __init__(self, zone: Zone, resources: SmtpResources, pool: SessionPool) -> None:
        self._table = DestinationTable(zone)
        self._resources = resources
        self.pool = pool
        self._opener = SessionOpener(resources, pool)
        self._closed = False

    def deliver(
        self, request: DeliveryRequest, context: RequestContext
    ) -> Coroutine[Any, Any, DeliveryResult]:
        """Execute ``request``. Raises what ``context`` raises, except QueueCorrupt.

        Recipients that a session has not served, because the peer closed it or refused them for now, are sent to
        the next endpoint (RFC 5321 section 5.1); those to which a session that was used before refused MAIL, to a new one.
        """
        if request.order is None:
            return self._deliver(request, context)  # without a frame that each answer passes
        return self._deliver_together(request, context)

    async def _deliver_together(
        self, request: DeliveryRequest, context: RequestContext
    ) -> DeliveryResult:
        """Execute a request whose sessions, or new ones, are limited."""
        path = path_of(request.order)
        self.pool.together.begin(path)
        try:
            return await self._deliver(request, context)
        finally:
            self.pool.together.end(path)

    async def _deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        zone = self._table.settings(request.destination)
        progress = RequestProgress(request, clock.monotonic_s())
        forms = MessageForms(request, context, self._resources.signer, self._resources.conversions)
        endpoints: Candidates = ()
        try:
            endpoints = await self._resources.endpoints.find(
                zone, request.domain, request.message, request.tenant, request.order, request.prefers
            )
            session, endpoint, reused = await self._session(endpoints, request, zone)
        except NotPermitted as exc:
            return await self._answer(request, DeliveryResult([], not_permitted=True, tried=exc.tried))
        except DestinationFailed as exc:
            return await self._answer(request, await self._no_session(progress, endpoints, exc))
        context.session_opened(int(not reused))
        progress.opened += not reused
        if len(endpoints) > 1 and forms.converts(session):
            endpoints, session, endpoint, reused = await self._with_8bitmime(
                endpoints, (session, endpoint, reused), request, zone
            )
        while True:
            withdrawn = session.withdrawn
            try:
                closed = await self._serve(progress, session, endpoint, forms)
            except BaseException:
                session.close()
                raise
            # A peer may close an idle session at any time: that is no failure of the endpoint. Nor is it one
            # to close it at a certain number of recipients, or when it gets pipelined commands.
            was_stale = reused and closed
            is_limit = session.recipients_max is not None or session.withdrawn != withdrawn
            retry_endpoint = was_stale or (closed and is_limit)
            if session.broke_pipelining:
                at = (endpoint.ip, endpoint.port)
                self._resources.peers.pipelining_broke(at, clock.monotonic_s())
                retry_endpoint = True
            if not progress.unserved or (progress.sessions == SESSIONS_MAX and not was_stale):
                return await self._answer(request, progress.result())
            if not retry_endpoint:
                endpoints = _without(endpoints, endpoint)
            try:
                if request.order is not None and request.order.connects >= 0:
                    raise NotPermitted(tried=False)
                session, endpoint = await self._opener.open(endpoints, request, zone)
            except NotPermitted:
                return await self._answer(request, progress.without_session(was_stale=was_stale))
            except DestinationFailed as exc:
                return await self._answer(request, progress.result(exc if was_stale else None))
            progress.opened += 1
            reused = False

    async def _no_session(
        self, progress: RequestProgress, endpoints: Candidates, exc: DestinationFailed
    ) -> DeliveryResult:
        domain = progress.request.domain
        if isinstance(exc, LoopsBack) and await self._resources.endpoints.lacks_best(domain):
            text = f"{exc.text}, and a host that is preferred to it could not be looked up"
            exc = DestinationFailed(0, "4.4.3", text)
        has_idle = any(self.pool.has_idle(candidate) for candidate, _ in endpoints)
        tried = bool(endpoints) and not isinstance(exc, AllSkipped)
        return no_session(progress.request, exc, progress.began_s, has_idle=has_idle, tried=tried)

    async def resolve(self, domain: str) -> MxAnswer:
        return await self._resources.endpoints.mx_hosts(domain)

    async def _answer(self, request: DeliveryRequest, result: DeliveryResult) -> DeliveryResult:
        """``result``, with the hosts of the domain if they were asked for: they are cached by now."""
        if not request.asks_hosts:
            return result
        return replace(result, hosts=await self._resources.endpoints.mx_hosts(request.domain))

    async def _serve(
        self, progress: RequestProgress, session: SmtpSession, endpoint: Endpoint, forms: MessageForms
    ) -> bool:
        """Send to the recipients that are not served. Returns whether the peer closed the session on some of them."""
        form = await forms.get(seven_bit=forms.converts(session))
        if progress.recipients_max:
            session.recipients_max = progress.recipients_max
        is_new = not session.messages
        if TRACER.is_active or session.trace is not None:
            session.trace = session_trace(progress.request, endpoint, session.trace)
        try:
            result = await transact(session, progress.part(form.request), form)
            first = result.answers[0] if result.answers else None
            if first is not None and first[1].code >= 500 and first[0] in _BEFORE_DATA:
                result = await self._without_parameters(progress, session, endpoint, forms, result)
            if faults.armed:
                faults.reach("dot.answered")
        except SessionLost as exc:
            lost = (Phase.DATA, Reply(0, LOST, str(exc)))
            result = TransactionResult([lost] * len(progress.unserved))
        first, refuses_session = result.answers[0] if result.answers else None, False
        if first is not None and first[0] is Phase.MAIL and first[1].code >= 400:
            peers, at, now_s = self._resources.peers, (endpoint.ip, endpoint.port), clock.monotonic_s()
            sender = form.request.sender
            refuses_session = peers.refuses_session(at, sender, first[1], now_s, is_new=is_new)
            if not session.secure and not peers.may_encrypt(endpoint.host, at, now_s, repeats=False):
                session.usable = (
                    False  # it may be refused because TLS failed, which the next one tries again
                )
        closed = progress.add(result, endpoint, session, refuses_session=refuses_session)
        if result.uncertain:
            self._opener.gave_no_reply(endpoint)
        if closed:
            session.close()
        else:
            await self._keep(session, endpoint, progress.request)
        return closed

    async def _without_parameters(
        self,
        progress: RequestProgress,
        session: SmtpSession,
        endpoint: Endpoint,
        forms: MessageForms,
        result: TransactionResult,
    ) -> TransactionResult:
        """``result``, or that of the same mail without parameters that the peer offered and refused.

        Sessions with the host have none of these for an hour, if it was for them. Raises SessionLost.
        """
        peers, at, withdrawn = self._resources.peers, (endpoint.ip, endpoint.port), set[str]()
        form = await forms.get(seven_bit=forms.converts(session))
        while extensions := refused(session, progress.part(form.request), result):
            withdrawn |= extensions
            session.withdraw(extensions)
            form = await forms.get(seven_bit=forms.converts(session))
            try:
                if not session.usable:
                    raise SessionLost(
                        "the peer refused a parameter that it offers, and ended the session"
                    )
                result = await transact(session, progress.part(form.request), form)
            except SessionLost:
                peers.parameters_broke(withdrawn, at, clock.monotonic_s())
                raise
        if any(each is None or each[0] is not Phase.MAIL for each in result.answers):
            peers.parameters_broke(withdrawn, at, clock.monotonic_s())
        return result

    def close(self) -> None:
        """Close the idle sessions, and from now on every other one after its transaction."""
        self._closed = True
        self.pool.close()

    # ---- sessions

    async def _session(self, endpoints: Candidates, request: DeliveryRequest, zone: Zone) -> OpenSession:
        """An idle session or a new one, with the first endpoint if the destination has room for another session.

        So mail that comes in ones is spread over hosts of equal preference. Raises DestinationFailed.
        """
        if request.lacks_hosts:
            raise NotPermitted(tried=False)
        best = endpoints[0][0]
        has_turn = request.turn > 0 and any(each.host != best.host for each, _ in endpoints)
        in_turn = beginning_with(endpoints, request.turn) if has_turn else endpoints
        if self._opener.cut:
            in_turn = self._opener.in_turn(in_turn)
        first = in_turn[0][0]
        session = self.pool.take(first)
        if session is not None:
            return session, first, True
        failure: DestinationFailed | None = None
        if self._may_add(first, request):
            try:
                return (*await self._opener.open(in_turn[:1], request, zone), False)
            except LoopsBack as exc:
                if first is best:
                    raise
                failure = DestinationFailed(0, "4.4.1", exc.text)
            except DestinationFailed as exc:
                failure = exc
        if has_turn and request.order is not None and request.order.connects > 0:  # it may be opened
            others = in_turn[1:] if self._opener.failed_lately(first) else ()
        else:
            others = in_turn[1:]
        for endpoint, _ in others:
            session = self.pool.take(endpoint)
            if session is not None:
                return session, endpoint, True
        left = endpoints if failure is None else [pair for pair in endpoints if pair[0] is not first]
        return (*await self._opener.open(left, request, zone, failure, best=best), False)

    def _may_add(self, endpoint: Endpoint, request: DeliveryRequest) -> bool:
        """True if a session with ``endpoint`` is worth more than an idle one with another host."""
        idle = self.pool.count(request.destination)
        if request.order is not None and request.order.connects >= 0:
            return False
        if not idle or idle >= min(request.idle_limits):
            return False
        return not self._opener.failed_lately(endpoint)

    async def _with_8bitmime(
        self, endpoints: Candidates, current: OpenSession, request: DeliveryRequest, zone: Zone
    ) -> tuple[Candidates, SmtpSession, Endpoint, bool]:
        """A session with another host that takes 8-bit mail, else ``current``, within the limits of sessions."""
        others = _without(endpoints, current[1])
        for endpoint, source in others[: SESSIONS_MAX - 1]:
            session, reused = self.pool.take(endpoint), True
            try:
                if session is None and self._has_room(request):
                    reused = False
                    session, _ = await self._opener.open([(endpoint, source)], request, zone)
            except DestinationFailed:
                continue
            except BaseException:
                current[0].close()
                raise
            if session is not None and session.offers("8bitmime"):
                await self._keep(*current[:2], request)
                return others, session, endpoint, reused
            if session is not None:
                await self._keep(session, endpoint, request)
        return endpoints, *current

    def _has_room(self, request: DeliveryRequest) -> bool:
        """True if one more session may be open in addition to that of the request."""
        return request.order is None and self.pool.count(request.destination) < min(request.idle_limits)

    async def _keep(self, session: SmtpSession, endpoint: Endpoint, request: DeliveryRequest) -> None:
        """Keep the session for another request, or close it."""
        zone, order = self._table.settings(request.destination), request.order
        most = zone.messages_per_connection
        if order is not None and order.messages_max:
            most = min(most, order.messages_max)
        if not self._closed and session.usable and session.messages < most:
            path = path_of(order)
            self.pool.put(endpoint, request.destination, session, zone.timeouts.idle, path)
        elif order is not None:
            await session.quit(QUIT_S)  # the worker may open another one at once
        else:
            session.close()


def _without(endpoints: Candidates, endpoint: Endpoint) -> Candidates:
    """``endpoints`` at other addresses."""
    return [pair for pair in endpoints if (pair[0].ip, pair[0].port) != (endpoint.ip, endpoint.port)]
