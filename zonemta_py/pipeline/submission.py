"""Envelopes of a plan into relays, over several pipelined sessions each, until every recipient is settled.

An envelope may be submitted any number of times: its key makes the relay answer a repeat with the
first message's id. So whatever stays open, a lost answer too, is simply tried again, until
``patience_s`` is over. A relay that is slow or answers 4xx is waited for. No Spark here.
"""

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zonemta_py.config.schema import Timeouts
from zonemta_py.config.units import host_port
from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed, SessionLost
from zonemta_py.pipeline.rules.keys import relays_of
from zonemta_py.smtp.address import needs_smtputf8
from zonemta_py.smtp.reply import Reply
from zonemta_py.submit.merge import Template
from zonemta_py.transports.connect import SessionOptions, Target, open_session
from zonemta_py.transports.pipelining import DsnOptions, Mail, SmtpSession

ENVID = " ENVID=submission-key-"
KEY_FIELD = b"X-Submission-Key: "  # for a relay that knows no ENVID
PAUSE_S = 0.2  # before the first repeat; each one after it waits twice as long
PAUSE_MAX_S = 30.0
FAILOVER_S = 10.0  # a relay that cannot be reached for so long gives its keys to the next

ACCEPTED, REFUSED, DEFERRED = "accepted", "refused", "deferred"

_QUEUED = re.compile(r"queued as (\w+)( duplicate)?(?:, \d+ new recipients as (\w+))?")


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message to be: its key, and address and merge fields of each recipient."""

    key: str
    recipients: Sequence[tuple[str, dict[str, str]]]


def envelope_of(row: Mapping[str, Any]) -> Envelope:
    """An envelope from a row of ``schema.ENVELOPE``, as Arrow gives it."""
    return Envelope(
        row["key"], [(each["address"], dict(each["fields"] or ())) for each in row["recipients"]]
    )


@dataclass(frozen=True, slots=True)
class Manners:
    """How to submit. ``relays`` are ``host:port``. ``failover``: a key may go to a second relay."""

    sender: str
    message: bytes
    relays: tuple[str, ...]
    sessions: int = 8
    tls: str = "opportunistic"
    credentials: tuple[str, str] | None = None
    ehlo: str = "localhost"
    patience_s: float = 3600.0
    failover: bool = False
    timeouts: Timeouts = Timeouts()


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one recipient. ``messages``: the relay's ids; two when some of a repeat were new."""

    key: str
    relay: str
    address: str
    state: str
    code: int
    reply: str
    messages: tuple[str, ...]
    repeated: bool
    time_ms: int


class Submission:
    """Sessions with the relays, kept from one batch of envelopes to the next."""

    def __init__(self, manners: Manners) -> None:
        self._manners = manners
        self._template = Template(manners.message)
        self._resting: defaultdict[str, list[SmtpSession]] = defaultdict(list)

    async def send(self, envelopes: Iterable[Envelope]) -> list[Settled]:
        """Submit all of ``envelopes``; a row for each of their recipients."""
        by_relay: defaultdict[str, deque[Envelope]] = defaultdict(deque)
        for envelope in envelopes:
            by_relay[relays_of(envelope.key, self._manners.relays)[0]].append(envelope)
        rows: list[Settled] = []
        async with asyncio.TaskGroup() as group:
            for waiting in by_relay.values():
                for _ in range(min(self._manners.sessions, len(waiting))):
                    group.create_task(self._work(waiting, rows))
        return rows

    async def _work(self, waiting: deque[Envelope], rows: list[Settled]) -> None:
        while waiting:
            envelope = waiting.popleft()
            rows.extend(await _Sending(self._manners, self._template, self._resting, envelope).run())

    async def aclose(self) -> None:
        """Say goodbye to the relays."""
        for sessions in self._resting.values():
            for session in sessions:
                session.close()


class _Sending:
    """One envelope on its way, through as many transactions as it takes."""

    def __init__(
        self, manners: Manners, template: Template, resting: dict[str, list[SmtpSession]], envelope: Envelope
    ) -> None:  # fmt: skip
        self._manners = manners
        self._resting = resting
        self._envelope = envelope
        self._relays = relays_of(envelope.key, manners.relays)
        self._relay = self._relays[0]
        self._header, self._body = template.render(envelope.recipients[0][1])
        self._began_s = self._reached_s = clock.monotonic_s()
        self._settled: list[Settled] = []

    async def run(self) -> list[Settled]:
        pending = [address for address, _ in self._envelope.recipients]
        last, pause_s = Reply(0, "4.4.1", "never tried"), PAUSE_S
        while pending:
            before = len(pending)
            try:
                pending, last = await self._transact(pending)
            except (DestinationFailed, SessionLost) as exc:
                last = Reply(0, "4.4.2", str(exc))
                self._fail_over()
            if not pending:
                break
            if clock.monotonic_s() - self._began_s > self._manners.patience_s:
                self._note(DEFERRED, pending, last)
                break
            if len(pending) == before:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return self._settled

    def _fail_over(self) -> None:
        """Another relay takes the envelope, if it may and this one has been away for long."""
        if not self._manners.failover or clock.monotonic_s() - self._reached_s < FAILOVER_S:
            return
        place = self._relays.index(self._relay)
        self._relay = self._relays[(place + 1) % len(self._relays)]
        self._reached_s = clock.monotonic_s()

    async def _transact(self, pending: list[str]) -> tuple[list[str], Reply]:
        """Submit once; who is still open, and the last reply that left somebody so."""
        session = await self._session()
        addresses = pending[: session.recipients_max] if session.recipients_max else pending
        result = await session.transact(self._mail(session, addresses))
        self._reached_s = clock.monotonic_s()
        if session.usable:
            self._resting[self._relay].append(session)
        replies: defaultdict[tuple[int, str, str], list[str]] = defaultdict(list)
        left, last = pending[len(addresses) :], Reply(0, "4.5.3", "left for the next transaction")
        for address, answer in zip(addresses, result.answers, strict=True):
            if answer is None:
                left.append(address)
            elif answer[1].positive or answer[1].permanent:
                reply = answer[1]
                replies[(reply.code, reply.status, reply.text)].append(address)
            else:
                left.append(address)
                last = answer[1]
        for (code, status, text), of_them in replies.items():
            self._note(ACCEPTED if code < 300 else REFUSED, of_them, Reply(code, status, text))
        return left, last

    def _mail(self, session: SmtpSession, addresses: list[str]) -> Mail:
        header, body, dsn = self._header, self._body, None
        if session.offers("dsn"):
            dsn = DsnOptions(ENVID + self._envelope.key, [""] * len(addresses))
        else:
            header = KEY_FIELD + self._envelope.key.encode() + b"\r\n" + header
        return Mail(
            self._manners.sender,
            addresses,
            header,
            body,
            len(header) + 2 + len(body),
            not (header.isascii() and body.isascii()),
            any(map(needs_smtputf8, [self._manners.sender, *addresses])),
            dsn,
        )

    async def _session(self) -> SmtpSession:
        resting = self._resting[self._relay]
        while resting:
            session = resting.pop()
            if session.usable:
                return session
        manners = self._manners
        relay = host_port(self._relay)
        manner = SessionOptions(manners.ehlo, None, manners.tls, manners.timeouts, manners.credentials)
        return await open_session(Target(relay.host, relay.host, relay.port), manner)

    def _note(self, state: str, addresses: list[str], reply: Reply) -> None:
        queued = _QUEUED.search(reply.text) if state == ACCEPTED else None
        messages = tuple(id_ for id_ in (queued[1], queued[3]) if id_) if queued else ()
        repeated, now_ms = bool(queued and queued[2]), clock.now_ms()
        for address in addresses:
            self._settled.append(
                Settled(
                    self._envelope.key, self._relay, address, state, reply.code, str(reply), messages,
                    repeated, now_ms,
                )
            )  # fmt: skip
