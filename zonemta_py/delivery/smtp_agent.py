"""One transaction on the wire: find a session, send, say what the peer said. Decides nothing about mail.

It knows no queue: what it is to send is an ``DeliveryRequest``, what came of it a ``DeliveryResult``, so that it runs
beside the queue or in a process of its own.
"""

import logging
from collections.abc import Sequence
from functools import partial
from random import Random

from zonemta_py.config.schema import PoolAddress, Zone
from zonemta_py.core import clock, faults
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import DestinationFailed, QueueCorrupt, SessionLost
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.dkim import Signer
from zonemta_py.delivery.endpoints import EndpointResolver, credentials
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.delivery.session_pool import Endpoint, SessionPool
from zonemta_py.schedule.unreachable import UnreachableHosts
from zonemta_py.smtp.address import needs_smtputf8
from zonemta_py.smtp.classify import Phase
from zonemta_py.smtp.dkim import BodyHash
from zonemta_py.smtp.reply import Reply, printable
from zonemta_py.transports.connect import SessionOptions, Target, TlsFailed, open_session
from zonemta_py.transports.pipelining import Mail, Result, SmtpSession

log = logging.getLogger(__name__)


class SmtpAgent:
    """Carries out orders of one zone, on sessions of its pool."""

    def __init__(
        self,
        zone: Zone,
        hostname: str,
        ways: EndpointResolver,
        signer: Signer,
        dead: UnreachableHosts,
        rng: Random,
    ) -> None:
        self._zone = zone
        self._hostname = hostname
        self._ways = ways
        self._signer = signer
        self._dead = dead
        self._rng = rng
        self.pool = SessionPool()
        self._closed = False

    async def send(self, order: DeliveryRequest, errand: RequestContext) -> DeliveryResult:
        """Carry out ``order``. Whatever the errand raises is raised here too."""
        began_s = clock.monotonic_s()
        ways: Sequence[tuple[Endpoint, PoolAddress]] = ()
        try:
            ways = await self._ways.find(self._zone, order.domain, order.message)
            session, way, reused = await self._session(ways, order)
        except DestinationFailed as exc:
            held = any(self.pool.holds(way) for way, _ in ways)
            return self._unreachable(order, exc, began_s, held=held)
        errand.opened()
        try:
            if self._signer.signs:
                order = await self._signed(order, errand)
            result = await self._transact(session, order, errand)
            faults.reach("dot.answered")
            if reused and _was_closing(result):
                raise SessionLost("the session was about to be closed")
        except SessionLost as exc:
            if not reused:
                return DeliveryResult(_same(order, way, session, str(exc), began_s))
            # A session that rested may have been closed at the other end: that says nothing.
            session.close()
            try:
                session, way, _ = await self._session(ways, order, fresh=True)
                result = await self._transact(session, order, errand)
            except DestinationFailed as failed:
                return self._unreachable(order, failed, began_s)
            except SessionLost as lost:
                return DeliveryResult(_same(order, way, session, str(lost), began_s))
        self._rest(session, way, order.destination)
        return DeliveryResult(_attempts(result, way, session, began_s))

    def close(self) -> None:
        """End the sessions at rest, and from now on every other after its transaction."""
        self._closed = True
        self.pool.close()

    # ---- sessions

    async def _session(
        self,
        ways: Sequence[tuple[Endpoint, PoolAddress]],
        order: DeliveryRequest,
        *,
        fresh: bool = False,
    ) -> tuple[SmtpSession, Endpoint, bool]:
        if not fresh:
            for way, _ in ways:
                session = self.pool.take(way)
                if session is not None:
                    return session, way, True
        now_s = clock.monotonic_s()
        alive = [pair for pair in ways if not self._dead.rests(pair[0].ip, now_s)]
        failure = DestinationFailed(0, "4.4.1", _nobody(ways))
        for way, source in alive:
            self.pool.make_room(order.destination, *order.room)
            try:
                session = await self._open(way, source.ehlo or self._hostname)
            except DestinationFailed as exc:
                failure = exc
                if exc.timed_out:
                    self._dead.timed_out(way.ip, clock.monotonic_s(), self._rng.random())
                else:
                    self._dead.answered(way.ip)
            else:
                self._dead.answered(way.ip)
                return session, way, False
        raise failure

    async def _open(self, way: Endpoint, ehlo: str) -> SmtpSession:
        zone = self._zone
        target = Target(way.host, way.ip, way.port)
        lmtp = zone.transport == "lmtp"
        manner = SessionOptions(ehlo, way.source, zone.tls, zone.timeouts, credentials(zone), lmtp)
        try:
            return await open_session(target, manner)
        except TlsFailed as exc:
            if zone.tls != "opportunistic" or manner.credentials is not None:
                raise
            log.info("%s; going on without TLS", exc.text)
            return await open_session(
                target, SessionOptions(ehlo, way.source, "off", zone.timeouts, None, lmtp)
            )

    def _rest(self, session: SmtpSession, way: Endpoint, destination: str) -> None:
        if not self._closed and session.usable and session.messages < self._zone.messages_per_connection:
            self.pool.put(way, destination, session, self._zone.timeouts.idle)
        else:
            session.close()

    # ---- the transaction

    async def _signed(self, order: DeliveryRequest, errand: RequestContext) -> DeliveryRequest:
        """``order`` with the signatures of its author's domain on top of its header."""
        try:
            fields = await self._signer.signatures(
                order.message, order.header, partial(_body_hash, order, errand)
            )
        except QueueCorrupt:
            return order  # found again, and told, when it is sent
        if not fields:
            return order
        return replace(order, header=fields + order.header, size=order.size + len(fields))

    async def _transact(
        self, session: SmtpSession, order: DeliveryRequest, errand: RequestContext
    ) -> Result:
        recipients = order.recipients
        ascii_header = order.header.isascii()
        smtputf8 = (
            (order.smtputf8 and not ascii_header)
            or needs_smtputf8(order.sender)
            or any(map(needs_smtputf8, recipients))
        )
        eight_bit = order.eight_bit or not ascii_header
        refusal = _unfit(session, order.size, eight_bit, smtputf8)
        if refusal is not None:
            return Result([(Phase.MAIL, refusal)] * len(recipients))
        if session.recipients_max is not None:
            recipients = recipients[: session.recipients_max]
        dsn = order.dsn if order.dsn is not None and session.offers("dsn") else None
        try:
            body = errand.body()
            mail = Mail(
                order.sender, recipients, order.header, body, order.size, eight_bit, smtputf8, dsn
            )
            return await session.transact(mail, errand.started)
        except QueueCorrupt as exc:
            log.critical("%s is not delivered: %s", order.message, exc)
            here = Reply(0, "4.3.0", "the stored message is damaged; the operator has been told")
            return Result([(Phase.DATA, here)] * len(recipients))

    @staticmethod
    def _unreachable(
        order: DeliveryRequest, exc: DestinationFailed, began_s: float, *, held: bool = False
    ) -> DeliveryResult:
        attempt = Attempt(
            phase=Phase.CONNECT.value,
            code=0,
            status=exc.status if exc.permanent or exc.status.startswith("4") else f"4{exc.status[1:]}",
            text=printable(exc.text),
            duration_ms=_since_ms(began_s),
        )
        return DeliveryResult([attempt] * len(order.recipients), attempt, exc.permanent, held)


async def _body_hash(order: DeliveryRequest, errand: RequestContext) -> bytes:
    """The one computed at intake, or if nobody was going to sign then, computed now."""
    if order.body_hash:
        return order.body_hash
    body, found = errand.body(), BodyHash()
    if isinstance(body, bytes):
        found.feed(body)
    else:
        async for chunk in body:
            found.feed(chunk)
    return found.digest()


# ---- what it comes to


def _attempts(
    result: Result, way: Endpoint, session: SmtpSession, began_s: float
) -> list[Attempt | None]:
    """One Attempt for all recipients that got the same answer."""
    duration_ms = _since_ms(began_s)
    made: dict[tuple[Phase, Reply], Attempt] = {}
    attempts: list[Attempt | None] = []
    for answer in result.answers:
        if answer is None:
            attempts.append(None)
            continue
        if answer not in made:
            phase, reply = answer
            made[answer] = Attempt(
                phase=phase.value,
                code=reply.code,
                status=reply.status,
                text=reply.text,
                mx=way.host,
                mx_ip=way.ip,
                source_ip=way.source or "",
                tls=session.secure,
                duration_ms=duration_ms,
                uncertain=result.uncertain and phase is Phase.DOT,
                dsn=session.offers("dsn"),
            )
        attempts.append(made[answer])
    return attempts


def _same(
    order: DeliveryRequest, way: Endpoint, session: SmtpSession, text: str, began_s: float
) -> list[Attempt | None]:
    lost: tuple[Phase, Reply] | None = (Phase.DATA, Reply(0, "4.4.2", text))
    return _attempts(Result([lost] * len(order.recipients)), way, session, began_s)


def _nobody(ways: Sequence[tuple[Endpoint, PoolAddress]]) -> str:
    """Why no connection was even tried."""
    ips = ", ".join(dict.fromkeys(way.ip for way, _ in ways))
    return f"every address timed out lately and is left alone for a while: {ips}"


def _was_closing(result: Result) -> bool:
    """Whether all the peer had to say was that it closes the connection."""
    return all(
        answer is not None and answer[0] is Phase.MAIL and answer[1].code == 421
        for answer in result.answers
    )


def _unfit(session: SmtpSession, size: int, eight_bit: bool, smtputf8: bool) -> Reply | None:
    """Why this peer cannot take this message, found before it is asked."""
    if session.size_max and size > session.size_max:
        return Reply(0, "5.3.4", f"the message has {size} bytes, the peer takes {session.size_max}")
    if smtputf8 and not session.offers("smtputf8"):
        return Reply(0, "5.6.7", "an address or header needs SMTPUTF8, which the peer does not offer")
    if eight_bit and not session.offers("8bitmime") and not smtputf8:
        return Reply(0, "5.6.3", "the message has 8-bit content, which the peer does not take")
    return None


def _since_ms(began_s: float) -> int:
    return int((clock.monotonic_s() - began_s) * 1000)
