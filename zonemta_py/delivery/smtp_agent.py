"""Executes one SMTP or LMTP transaction: find a session, send the message, return the peer's answers.

It knows no queue: a ``DeliveryRequest`` goes in, a ``DeliveryResult`` comes out, so it runs in the
queue's process or in another one.
"""

import asyncio
import dataclasses
import logging
from dataclasses import dataclass, field
from random import Random

from zonemta_py.config.destinations import DestinationTable
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock, faults
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import DestinationFailed, SessionLost
from zonemta_py.delivery.attempts import all_unreachable, no_session
from zonemta_py.delivery.dkim import Signer
from zonemta_py.delivery.endpoints import Candidates, Endpoint, EndpointResolver, credentials
from zonemta_py.delivery.peers import Peers
from zonemta_py.delivery.request import (
    DeliveryRequest,
    DeliveryResult,
    RequestContext,
)
from zonemta_py.delivery.request_progress import RequestProgress
from zonemta_py.delivery.session_pool import QUIT_S, SessionPool, way_of
from zonemta_py.delivery.transaction import MessageForm, MessageForms, transact
from zonemta_py.schedule.unreachable import AddressPair, UnreachableHosts, skip_times_s
from zonemta_py.smtp.classify import LOST, Phase
from zonemta_py.smtp.mx_order import MxAnswer
from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.connect import (
    LoopsBack,
    SessionOptions,
    Target,
    TlsFailed,
    open_session,
)
from zonemta_py.transports.pipelining import SmtpSession, TransactionResult
from zonemta_py.transports.tracing import TRACER, SessionTrace

OpenSession = tuple[SmtpSession, Endpoint, bool]  # the last: it was idle

AVOIDED_S = 60.0  # how long idle sessions with other hosts are preferred to one that opened none
FAILED_MAX = 10_000
NEVER_S = float("-inf")
HURRIED_S = 10.0  # for a session with one host: longer than the usual delays of greetings
CONVERSIONS = 2  # to 7 bits at the same time
SESSIONS_MAX = 3  # of one request, with different endpoints or after an idle one

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SmtpResources:
    """What the agents of all zones in a process share."""

    hostname: str
    endpoints: EndpointResolver
    peers: Peers
    signer: Signer
    unreachable: UnreachableHosts
    rng: Random
    conversions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONVERSIONS))


class NotPermitted(DestinationFailed):
    """A session is needed, and the order of the request permits none."""


class TooSlow(DestinationFailed):
    """A host opened no session in the time that it has while mail of others waits."""


class SmtpAgent:
    """The ``DeliveryAgent`` of a zone that delivers over sessions, which it keeps in ``pool``."""

    def __init__(self, zone: Zone, resources: SmtpResources, pool: SessionPool) -> None:
        self._table = DestinationTable(zone)
        self._resources = resources
        self.pool = pool
        self._failed: dict[AddressPair, float] = {}  # when a host last opened no session
        self._closed = False

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        """Execute ``request``. Raises what ``context`` raises, except QueueCorrupt.

        Recipients that a session has not served, because the peer closed it or refused MAIL for now, are
        sent to the next endpoint (RFC 5321 section 5.1).
        """
        zone = self._table.settings(request.destination)
        progress = RequestProgress(request, clock.monotonic_s())
        forms = MessageForms(request, context, self._resources.signer, self._resources.conversions)
        endpoints: Candidates = ()
        try:
            endpoints = await self._resources.endpoints.find(
                zone, request.domain, request.message, request.tenant, request.order
            )
            session, endpoint, reused = await self._session(endpoints, request, zone)
        except NotPermitted:
            return replace(await self._answer(request, DeliveryResult([])), not_permitted=True)
        except DestinationFailed as exc:
            has_idle = any(self.pool.has_idle(candidate) for candidate, _ in endpoints)
            failed = no_session(request, exc, progress.began_s, has_idle=has_idle)
            return await self._answer(request, failed)
        context.session_opened(int(not reused))
        progress.opened += not reused
        if len(endpoints) > 1 and forms.converts(session):
            endpoints, session, endpoint, reused = await self._with_8bitmime(
                endpoints, (session, endpoint, reused), request, zone
            )
        while True:
            try:
                form = await forms.get(seven_bit=forms.converts(session))
                closed = await self._serve(progress, session, endpoint, form)
            except BaseException:
                session.close()
                raise
            # A peer may close an idle session at any time: that is no failure of the endpoint. Nor is it one
            # to close it at a certain number of recipients, or when it gets pipelined commands.
            expired = reused and closed
            same = expired or (closed and session.recipients_max is not None)
            if session.broke_pipelining:
                self._resources.peers.pipelining_broke(endpoint.ip, clock.monotonic_s())
                same = True
            if not progress.unserved or (progress.sessions == SESSIONS_MAX and not expired):
                return await self._answer(request, progress.result())
            if not same:
                endpoints = _without(endpoints, endpoint)
            try:
                if request.order is not None and request.order.connects >= 0:
                    raise NotPermitted(0, "4.4.1", "no further session is permitted now")
                session, endpoint = await self._new_session(endpoints, request, zone)
            except NotPermitted:
                return await self._answer(request, progress.result())
            except DestinationFailed as exc:
                return await self._answer(request, progress.result(exc if expired else None))
            progress.opened += 1
            reused = False

    async def resolve(self, domain: str) -> MxAnswer:
        """See ``DeliveryAgent``."""
        return await self._resources.endpoints.exchangers(domain)

    async def _answer(self, request: DeliveryRequest, result: DeliveryResult) -> DeliveryResult:
        """``result``, with the hosts of the domain if they were asked for: they are cached by now."""
        if not request.asks_hosts:
            return result
        return replace(result, hosts=await self._resources.endpoints.exchangers(request.domain))

    async def _serve(
        self, progress: RequestProgress, session: SmtpSession, endpoint: Endpoint, form: MessageForm
    ) -> bool:
        """Send to the recipients that are not served. Returns whether the peer closed the session on some of them."""
        if progress.recipients_max:
            session.recipients_max = progress.recipients_max
        if TRACER.is_active or session.trace is not None:
            session.trace = _trace(progress.request, endpoint, session.trace)
        try:
            result = await transact(session, progress.part(form.request), form)
            faults.reach("dot.answered")
        except SessionLost as exc:
            lost = (Phase.DATA, Reply(0, LOST, str(exc)))
            result = TransactionResult([lost] * len(progress.unserved))
        closed = progress.add(result, endpoint, session)
        if closed:
            session.close()
        else:
            await self._keep(session, endpoint, progress.request)
        return closed

    def close(self) -> None:
        """Close the idle sessions, and from now on every other one after its transaction."""
        self._closed = True
        self.pool.close()

    # ---- sessions

    async def _session(self, endpoints: Candidates, request: DeliveryRequest, zone: Zone) -> OpenSession:
        """An idle session or a new one, with the first endpoint if the destination has room for another session.

        So mail that comes in ones is spread over hosts of equal preference. Raises DestinationFailed.
        """
        first = endpoints[0][0]
        session = self.pool.take(first)
        if session is not None:
            return session, first, True
        failure: DestinationFailed | None = None
        if self._may_add(first, request):
            try:
                return (*await self._new_session(endpoints[:1], request, zone), False)
            except LoopsBack:
                raise
            except DestinationFailed as exc:
                failure = exc
        for endpoint, _ in endpoints[1:]:
            session = self.pool.take(endpoint)
            if session is not None:
                return session, endpoint, True
        return (*await self._new_session(endpoints, request, zone, failure), False)

    def _may_add(self, endpoint: Endpoint, request: DeliveryRequest) -> bool:
        """Whether a session with ``endpoint`` is worth more than an idle one with another host."""
        idle = self.pool.count(request.destination)
        if request.order is not None and request.order.connects >= 0:
            return False
        if not idle or idle >= min(request.idle_limits):
            return False
        failed_s = self._failed.get(_addresses(endpoint))
        return failed_s is None or clock.monotonic_s() - failed_s > AVOIDED_S

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
                    session, _ = await self._new_session([(endpoint, source)], request, zone)
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
        """Whether one more session may be open beside that of the request."""
        return request.order is None and self.pool.count(request.destination) < min(request.idle_limits)

    async def _new_session(
        self,
        endpoints: Candidates,
        request: DeliveryRequest,
        zone: Zone,
        failure: DestinationFailed | None = None,
    ) -> tuple[SmtpSession, Endpoint]:
        """Connect to the first endpoint that accepts a session; ``failure``: of the first one. Raises DestinationFailed.

        Addresses that timed out lately are skipped; not those of a smarthost, if there are no others.
        """
        left = endpoints if failure is None else endpoints[1:]
        resources = self._resources
        unreachable, now_s = resources.unreachable, clock.monotonic_s()
        reachable = [e for e in left if not unreachable.skipped_s(_addresses(e[0]), now_s)]
        if not reachable and zone.smarthost:
            reachable = list(left)
        order, connects = request.order, -1 if request.order is None else request.order.connects
        if connects >= 0:  # a host that has just failed must not use up what is permitted
            reachable.sort(
                key=lambda pair: now_s - self._failed.get(_addresses(pair[0]), NEVER_S) < AVOIDED_S
            )
        for tried, (endpoint, source) in enumerate(reachable):
            if tried == connects:
                raise self._no_connects(reachable[tried:], failure, now_s)
            self.pool.trim(request.destination, *request.idle_limits)
            if order is not None:
                await self.pool.together.trim(way_of(order), order.idle_max)
            ehlo = source.ehlo or resources.hostname
            trace = _trace(request, endpoint) if TRACER.is_active else None
            try:
                if request.hurried:
                    session = await self._open_hurried(endpoint, ehlo, zone, trace)
                else:
                    session = await self._open(endpoint, ehlo, zone, trace)
            except LoopsBack as exc:
                # Neither this host nor a less preferred one may be used (RFC 5321 section 5.1).
                if endpoint is endpoints[0][0]:
                    raise
                raise failure or DestinationFailed(0, "4.4.1", all_unreachable(endpoints)) from exc
            except DestinationFailed as exc:
                failure = exc
                self._failed_to_open(endpoint, request, zone, exc)
                if trace is not None:
                    trace.note(exc.text)
            else:
                unreachable.answered(_addresses(endpoint))
                return session, endpoint
        raise failure or DestinationFailed(0, "4.4.1", all_unreachable(endpoints))

    def _no_connects(
        self, left: Candidates, failure: DestinationFailed | None, now_s: float
    ) -> DestinationFailed:
        """Why no session was opened: every host was tried lately, or none of ``left`` may be tried now."""
        tried = (
            now_s - self._failed.get(_addresses(endpoint), NEVER_S) < AVOIDED_S for endpoint, _ in left
        )
        if failure is not None and all(tried):
            return failure
        return NotPermitted(0, "4.4.1", "no further session is permitted now")

    def _failed_to_open(
        self, endpoint: Endpoint, request: DeliveryRequest, zone: Zone, failure: DestinationFailed
    ) -> None:
        """Prefer other hosts for a while; skip the address if it timed out, and not for the first time."""
        resources, now_s, pair = self._resources, clock.monotonic_s(), _addresses(endpoint)
        if len(self._failed) >= FAILED_MAX:
            self._failed.clear()
        self._failed[pair] = now_s
        if failure.timed_out:
            times_s, spread = skip_times_s(zone.retry), resources.rng.random()
            resources.unreachable.timed_out(pair, request.destination, now_s, times_s, spread)
        elif not isinstance(failure, TooSlow):
            resources.unreachable.answered(pair)

    async def _open_hurried(
        self, endpoint: Endpoint, ehlo: str, zone: Zone, trace: SessionTrace | None
    ) -> SmtpSession:
        """A session within HURRIED_S. Raises DestinationFailed, TooSlow."""
        try:
            async with asyncio.timeout(HURRIED_S):
                return await self._open(endpoint, ehlo, zone, trace)
        except TimeoutError as exc:
            where = f"{endpoint.host}[{endpoint.ip}]"
            text = f"{where}: no session within {HURRIED_S:.0f} s, while mail of others waits"
            raise TooSlow(0, "4.4.1", text) from exc

    async def _open(
        self, endpoint: Endpoint, ehlo: str, zone: Zone, trace: SessionTrace | None
    ) -> SmtpSession:
        target = Target(endpoint.host, endpoint.ip, endpoint.port)
        lmtp, peers = zone.transport == "lmtp", self._resources.peers
        starttls = endpoint.port and peers.settings(endpoint.host, endpoint.ip).starttls
        options = SessionOptions(
            ehlo, endpoint.source, zone.tls if starttls or zone.tls != "opportunistic" else "off",
            zone.timeouts, credentials(zone), lmtp, zone.tls_ca_file,
            detects_loop=not zone.smarthost,
            pipelining=peers.may_pipeline(endpoint.host, endpoint.ip, clock.monotonic_s()),
        )  # fmt: skip
        try:
            return await open_session(target, options, trace=trace)
        except TlsFailed as exc:
            if options.tls != "opportunistic" or options.credentials is not None:
                raise
            log.info("%s; continuing without TLS", exc.text)
            return await open_session(target, dataclasses.replace(options, tls="off"), trace=trace)

    async def _keep(self, session: SmtpSession, endpoint: Endpoint, request: DeliveryRequest) -> None:
        """Keep the session for another request, or close it."""
        zone, order = self._table.settings(request.destination), request.order
        most = zone.messages_per_connection
        if order is not None and order.messages_max:
            most = min(most, order.messages_max)
        if not self._closed and session.usable and session.messages < most:
            way = way_of(order)
            self.pool.put(endpoint, request.destination, session, zone.timeouts.idle, way)
        elif order is not None:
            await session.quit(QUIT_S)  # the worker may open another one at once
        else:
            session.close()


def _trace(
    request: DeliveryRequest, endpoint: Endpoint, before: SessionTrace | None = None
) -> SessionTrace | None:
    """The trace of a request on a session with ``endpoint``, if it is traced."""
    names = (request.destination, request.domain, endpoint.ip, endpoint.source or "")
    peer = f"{endpoint.host}[{endpoint.ip}]:{endpoint.port}"
    return TRACER.outgoing(peer, names, request.message, before)


def _addresses(endpoint: Endpoint) -> AddressPair:
    return AddressPair(endpoint.source or "", endpoint.ip)


def _without(endpoints: Candidates, endpoint: Endpoint) -> Candidates:
    """``endpoints`` at other addresses."""
    return [pair for pair in endpoints if (pair[0].ip, pair[0].port) != (endpoint.ip, endpoint.port)]
