"""One lease: find a session, send, settle. Moves the bytes; what it all means is decided elsewhere."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from zonemta_py import clock, faults
from zonemta_py.config.schema import PoolAddress, Zone
from zonemta_py.delivery import report, settle
from zonemta_py.delivery.outbound import Outbound
from zonemta_py.delivery.pools import SessionPool, Way
from zonemta_py.errors import DestinationFailed, QueueCorrupt, SessionLost
from zonemta_py.model import Attempt
from zonemta_py.queue.commit import Batch
from zonemta_py.queue.lease import Lease
from zonemta_py.queue.live import LiveMessage
from zonemta_py.queue.transitions import NOTHING
from zonemta_py.schedule.destination import Destination
from zonemta_py.schedule.retry import RetryContext, make_policy, next_attempt, priority_of
from zonemta_py.smtp import verp
from zonemta_py.smtp.address import needs_smtputf8
from zonemta_py.smtp.classify import Phase
from zonemta_py.smtp.dsn_options import write_notify
from zonemta_py.smtp.headers import field_value, scan
from zonemta_py.smtp.reply import Reply, printable
from zonemta_py.transports.pipelining import DsnOptions, Mail, Result, SmtpSession
from zonemta_py.transports.smtp import Manner, Target, TlsFailed, open_session

REST_S = 300.0  # of a destination, when the policy names no time

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an attempt ended: the batch of its settle, and why no session was had, if so.

    ``crowded``: none could be had beside those that work, and the lease was given back untried.
    """

    settled: Batch
    failure: Attempt | None = None
    crowded: bool = False


class Worker:
    """Delivers one lease after another of one zone, on sessions of its pool."""

    def __init__(self, outbound: Outbound, zone: Zone, pool: SessionPool) -> None:
        self._outbound = outbound
        self._zone = zone
        self._policy = make_policy(zone.retry)
        self._pool = pool

    async def deliver(self, lease: Lease, room: tuple[int, int], destination: Destination) -> Delivery:
        """Attempt ``lease``.

        ``room``: how many sessions may rest in the zone and at the destination while this runs.
        """
        began_s = clock.monotonic_s()
        domain = lease.recipients[0].record.domain
        ways: list[tuple[Way, PoolAddress]] = []
        try:
            ways = await self._outbound.ways(self._zone, domain, lease.live.id)
            session, way, reused = await self._session(ways, lease.destination, room)
        except DestinationFailed as exc:
            # Others hold a session, or have just put one to rest: the peer is there, and full.
            answers = destination.working or any(self._pool.holds(way) for way, _ in ways)
            if answers and not exc.permanent:
                return Delivery(self._outbound.queue.release(lease), crowded=True)
            attempt = self._unreachable(exc, began_s)
            settled = self._settle(lease, [attempt] * len(lease.recipients))
            return Delivery(settled, None if exc.permanent else attempt)
        destination.working += 1
        try:
            return await self._deliver(lease, room, ways, session, way, began_s, reused=reused)
        finally:
            destination.working -= 1

    async def _deliver(
        self,
        lease: Lease,
        room: tuple[int, int],
        ways: Sequence[tuple[Way, PoolAddress]],
        session: SmtpSession,
        way: Way,
        began_s: float,
        *,
        reused: bool,
    ) -> Delivery:
        if self._zone.sender_verp or verp.is_verp(lease.live.meta.sender):
            self._outbound.queue.narrow(lease, 1)
        started = self._outbound.queue.start(lease)
        try:
            result = await self._transact(session, lease, started)
            faults.reach("dot.answered")
            if reused and _was_closing(result):
                raise SessionLost("the session was about to be closed")
        except SessionLost as exc:
            if not reused:
                return Delivery(self._settle(lease, self._same(lease, way, session, str(exc), began_s)))
            # A session that rested may have been closed at the other end: that says nothing.
            session.close()
            try:
                session, way, _ = await self._session(ways, lease.destination, room, fresh=True)
                result = await self._transact(session, lease, started)
            except DestinationFailed as failed:
                attempt = self._unreachable(failed, began_s)
                return Delivery(self._settle(lease, [attempt] * len(lease.recipients)), attempt)
            except SessionLost as lost:
                return Delivery(self._settle(lease, self._same(lease, way, session, str(lost), began_s)))
        self._rest(session, way, lease.destination)
        return Delivery(self._settle(lease, self._attempts(result, way, session, began_s)))

    def give_up(self, lease: Lease, failure: Attempt) -> Batch:
        """Settle ``lease`` with a failure that another lease of its destination met."""
        return self._settle(lease, [failure] * len(lease.recipients))

    def first_delay_s(self) -> float:
        """How long a message waits after its first failure; a destination that is down rests as long."""
        now_ms = clock.now_ms()
        end_ms = now_ms + int(self._zone.retry.give_up_after * 1000)
        due_ms = next_attempt(self._policy, RetryContext(now_ms, 1, now_ms, end_ms), 0)
        return (due_ms - now_ms) / 1000 if due_ms is not None else REST_S

    def broken(self, lease: Lease) -> Batch:
        """A defect of ours kept ``lease`` from being attempted: its recipients are deferred, not lost."""
        here = Attempt(
            Phase.CONNECT.value, 0, "4.3.0", "internal error of the relay; the operator has been told"
        )
        return self._settle(lease, [here] * len(lease.recipients))

    # ---- sessions

    async def _session(
        self,
        ways: Sequence[tuple[Way, PoolAddress]],
        destination: str,
        room: tuple[int, int],
        *,
        fresh: bool = False,
    ) -> tuple[SmtpSession, Way, bool]:
        if not fresh:
            for way, _ in ways:
                session = self._pool.take(way)
                if session is not None:
                    return session, way, True
        dead, now_s = self._outbound.dead, clock.monotonic_s()
        alive = [pair for pair in ways if not dead.rests(pair[0].ip, now_s)]
        failure = DestinationFailed(0, "4.4.1", _nobody(ways))
        for way, source in alive:
            self._pool.make_room(destination, *room)
            ehlo = source.ehlo or self._outbound.hostname
            try:
                session = await self._open(way, ehlo)
            except DestinationFailed as exc:
                failure = exc
                if exc.timed_out:
                    dead.timed_out(way.ip, clock.monotonic_s(), self._outbound.rng.random())
                else:
                    dead.answered(way.ip)
            else:
                dead.answered(way.ip)
                return session, way, False
        raise failure

    async def _open(self, way: Way, ehlo: str) -> SmtpSession:
        zone = self._zone
        target = Target(way.host, way.ip, way.port)
        manner = Manner(ehlo, way.source, zone.tls, zone.timeouts, self._outbound.credentials(zone))
        try:
            return await open_session(target, manner)
        except TlsFailed as exc:
            if zone.tls != "opportunistic" or manner.credentials is not None:
                raise
            log.info("%s; going on without TLS", exc.text)
            return await open_session(target, Manner(ehlo, way.source, "off", zone.timeouts))

    def _rest(self, session: SmtpSession, way: Way, destination: str) -> None:
        if session.usable and session.messages < self._zone.messages_per_connection:
            self._pool.put(way, destination, session, self._zone.timeouts.idle)
        else:
            session.close()

    # ---- the transaction

    async def _transact(self, session: SmtpSession, lease: Lease, started: Batch) -> Result:
        meta, live = lease.live.meta, lease.live
        recipients = [recipient.address for recipient in lease.recipients]
        size = len(meta.header) + 2 + live.mark.size
        addresses_utf8 = needs_smtputf8(meta.sender) or any(map(needs_smtputf8, recipients))
        smtputf8 = addresses_utf8 or (meta.smtputf8 and not meta.header.isascii())
        refusal = _unfit(session, size, meta.eight_bit or not meta.header.isascii(), smtputf8)
        if refusal is not None:
            return Result([(Phase.MAIL, refusal)] * len(recipients))
        if session.recipients_max is not None:
            recipients = recipients[: session.recipients_max]
        sender = meta.sender
        if self._zone.sender_verp or verp.is_verp(sender):
            sender = verp.expand(sender, recipients[0])
        options = _dsn_options(lease) if session.offers("dsn") else None
        mail = Mail(
            sender,
            recipients,
            meta.header,
            self._outbound.queue.body(live),
            size,
            meta.eight_bit or not meta.header.isascii(),
            smtputf8,
            options,
        )
        try:
            return await session.transact(mail, started)
        except QueueCorrupt as exc:
            log.critical("%s is not delivered: %s", live.id, exc)
            here = Reply(0, "4.3.0", "the stored message is damaged; the operator has been told")
            return Result([(Phase.DATA, here)] * len(recipients))

    # ---- what it comes to

    def _attempts(
        self, result: Result, way: Way, session: SmtpSession, began_s: float
    ) -> list[Attempt | None]:
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
        self, lease: Lease, way: Way, session: SmtpSession, text: str, began_s: float
    ) -> list[Attempt | None]:
        lost: tuple[Phase, Reply] | None = (Phase.DATA, Reply(0, "4.4.2", text))
        return self._attempts(Result([lost] * len(lease.recipients)), way, session, began_s)

    @staticmethod
    def _unreachable(exc: DestinationFailed, began_s: float) -> Attempt:
        return Attempt(
            phase=Phase.CONNECT.value,
            code=0,
            status=exc.status if exc.permanent or exc.status.startswith("4") else f"4{exc.status[1:]}",
            text=printable(exc.text),
            duration_ms=_since_ms(began_s),
        )

    def _settle(self, lease: Lease, attempts: Sequence[Attempt | None]) -> Batch:
        outbound, live, retry = self._outbound, lease.live, self._zone.retry
        now_ms, priority = clock.now_ms(), _priority(live, retry.policy)
        outcomes = [
            settle.decide(
                live.meta,
                priority,
                recipient,
                attempt,
                retry,
                self._policy,
                now_ms,
                outbound.rng.random(),
            )
            for recipient, attempt in zip(lease.recipients, attempts, strict=False)
            if attempt is not None
        ]
        try:
            after = report.aftermath(outbound, self._zone, live, outcomes)
        except Exception:
            # What the peers said is a fact; a report that cannot be made must not undo it.
            log.exception("no report about %s could be made", live.id)
            after = NOTHING
        return outbound.queue.settle(lease, outcomes, after)


def _priority(live: LiveMessage, policy: str) -> str:
    """The message's priority, looked up only for a policy that asks."""
    if policy not in ("priority", "function"):
        return "normal"
    header = live.meta.header
    for field in scan(header)[0]:
        if field.name == b"priority":
            return priority_of(field_value(header, field))
    return "normal"


def _dsn_options(lease: Lease) -> DsnOptions:
    """What the client asked about reports, for a peer that takes over the duty."""
    meta = lease.live.meta
    mail = f" RET={meta.ret}" if meta.ret else ""
    mail += f" ENVID={meta.envid}" if meta.envid else ""
    rcpts = []
    for recipient in lease.recipients:
        record = recipient.record
        own = f" NOTIFY={write_notify(record.notify)}" if record.notify else ""
        rcpts.append(own + (f" ORCPT={record.orcpt}" if record.orcpt else ""))
    return DsnOptions(mail, rcpts)


def _nobody(ways: Sequence[tuple[Way, PoolAddress]]) -> str:
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
