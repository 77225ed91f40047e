"""Submits the envelopes of a plan to relays, each once: recipients that a relay defers are left to a later pass. No Spark here.

States of an envelope::

    waiting ─▶ in a transaction ─▶ each recipient ACCEPTED, REFUSED or DEFERRED
                 ├─ the session breaks ─▶ again, at most LOSSES_MAX times
                 └─ the relay cannot be reached ─▶ a pause that doubles ─▶ again, until ``patience_s`` or the time of ``send`` is over

Invariants:

- A key belongs to one of the relays (``relays_of``); with ``failover`` the next relay gets the envelope after FAILOVER_S.
- An envelope may be submitted more than once: its submission key makes the relay answer a repeat with the id of the first message.
- No recipient is refused by a reply to MAIL, which is about the client, the sender or the size.
- Every recipient of an envelope that was begun has one result.
- A session has one user at a time: it is taken from ``idle`` for a transaction, and put back if it is usable.

Callers: ``send.job`` in tasks (``send``), ``send.source`` (``settle``), both with an ``EnvelopeSubmitter`` that they close.

Example::

    submitter = EnvelopeSubmitter(SubmitOptions("news@example.org", message, ("mx1:587", "mx2:587")))
    results = await submitter.send([PlannedEnvelope("key1", [("a@example.com", {"name": "Ada"})])])
    await submitter.aclose()
"""

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf
from typing import Any

from zonemta_py.config.endpoints import host_port
from zonemta_py.config.zones import Timeouts
from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed, SessionLost
from zonemta_py.smtp.address import needs_smtputf8
from zonemta_py.smtp.commands import KEY_WINDOW
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.verdict import Phase
from zonemta_py.submit.merge import Template, UnusableValue
from zonemta_py.transports.connect import SessionOptions, Target, open_session
from zonemta_py.transports.session import DsnOptions, SmtpSession, Transaction

ACCEPTED, REFUSED, DEFERRED = "accepted", "refused", "deferred"
PERMANENT = 500  # the least code of a permanent reply: of DEFERRED ones, of a reply to MAIL
ENVID = " ENVID=submission-key-"
KEY_FIELD = b"X-Submission-Key: "  # for a relay that does not offer DSN, and so no ENVID
TIME_FIELD = b"X-Not-Before: "  # for a relay that does not offer FUTURERELEASE, or only after AUTH
PAUSE_S = 0.2  # before the first retry; doubles with each retry
PAUSE_MAX_S = 30.0
DEFERRED_PAUSE_MAX_S = 1.0  # between two messages while the relay defers each
LOSSES_MAX = 3  # sessions that may break in the submission of one envelope
FAILOVER_S = 10.0  # a relay that is unreachable for this long loses its keys to the next one
_QUEUED = re.compile(
    r"queued as (?P<id>\w+)(?P<duplicate> duplicate)?(?:, accepted (?P<age_s>\d+\.\d+) s ago)?"
    r"(?:, \d+ new recipients as (?P<new>\w+))?"
)


@dataclass(frozen=True, slots=True)
class PlannedEnvelope:
    """A message to submit: its submission key, and address and merge fields of each recipient.

    ``send_at_ms``: the relay does not send it before; None: at once.
    """

    key: str
    recipients: Sequence[tuple[str, dict[str, str]]]
    send_at_ms: int | None = None


def envelope_of(row: Mapping[str, Any]) -> PlannedEnvelope:
    """An envelope from a row of ``tables.ENVELOPE`` as Arrow returns it."""
    recipients = [(each["address"], dict(each["fields"] or ())) for each in row["recipients"]]
    return PlannedEnvelope(row["key"], recipients, row.get("send_at_ms"))


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """How to submit.

    ``relays``: each ``host:port``. ``connections``: to each relay. ``patience_s``: how long an
    unreachable relay is waited for, and how long deferred recipients are tried again (``send.job``).
    ``failover``: a key may go to a second relay.
    """

    sender: str
    message: bytes
    relays: tuple[str, ...]
    connections: int = 8
    tls: str = "opportunistic"
    credentials: tuple[str, str] | None = None
    ehlo: str = "localhost"
    patience_s: float = 3600.0
    failover: bool = False
    timeouts: Timeouts = Timeouts()


@dataclass(frozen=True, slots=True)
class SubmissionResult:
    """The result for one recipient: ``state`` is ACCEPTED, REFUSED or DEFERRED.

    ``messages``: the relay's message ids; two when only some recipients of a repeat were new.
    ``repeated``: the relay knew the key. ``age_ms``: how long before ``time_ms`` it had accepted the
    first message; None when it does not say.
    """

    key: str
    relay: str
    address: str
    state: str
    code: int
    reply: str
    messages: tuple[str, ...]
    repeated: bool
    time_ms: int
    age_ms: int | None = None

    @property
    def is_temporary(self) -> bool:
        """True if the same submission may have another result soon."""
        return self.state == DEFERRED and self.code < PERMANENT


@dataclass(slots=True)
class _RelayState:
    """The state that envelopes for one relay share. ``failing_s``: monotonic time since when it cannot be reached; None if it was reached last."""

    idle: list[SmtpSession] = field(default_factory=list)
    failing_s: float | None = None

    def failing_for_s(self) -> float:
        """For how long the relay has not been reached; 0 if it was reached last."""
        if self.failing_s is None:
            self.failing_s = clock.monotonic_s()
        return clock.monotonic_s() - self.failing_s


class EnvelopeSubmitter:
    """Submits batches of envelopes; its SMTP sessions stay open between batches.

    Raises LocalError for a message with a merge field that cannot be replaced.
    """

    def __init__(self, options: SubmitOptions) -> None:
        self._options = options
        self._template = Template(options.message)
        self._template.require_reachable()
        self._relays: defaultdict[str, _RelayState] = defaultdict(_RelayState)

    async def send(
        self, envelopes: Iterable[PlannedEnvelope], until_s: float = inf
    ) -> list[SubmissionResult]:
        """Submit ``envelopes``; one result for each recipient of those that were begun before ``until_s`` (monotonic)."""
        by_relay: defaultdict[str, deque[PlannedEnvelope]] = defaultdict(deque)
        for envelope in envelopes:
            by_relay[relays_of(envelope.key, self._options.relays)[0]].append(envelope)
        results: list[SubmissionResult] = []
        async with asyncio.TaskGroup() as group:
            for waiting in by_relay.values():
                for _ in range(min(self._options.connections, len(waiting))):
                    group.create_task(self._work(waiting, results, until_s))
        return results

    async def settle(self, envelopes: Iterable[PlannedEnvelope]) -> list[SubmissionResult]:
        """Submit all ``envelopes``, and again what is deferred by a temporary reply, until ``patience_s`` has passed."""
        waiting, began_s, pause_s = list(envelopes), clock.monotonic_s(), PAUSE_S
        results: list[SubmissionResult] = []
        while True:
            found = await self.send(waiting)
            results += [result for result in found if not result.is_temporary]
            deferred = [result for result in found if result.is_temporary]
            if not deferred or clock.monotonic_s() - began_s >= self._options.patience_s:
                return results + deferred
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            left = {(result.key, result.address) for result in deferred}
            parts = (
                (each, [one for one in each.recipients if (each.key, one[0]) in left])
                for each in waiting
            )
            waiting = [replace(each, recipients=left_of) for each, left_of in parts if left_of]

    async def _work(
        self, waiting: deque[PlannedEnvelope], results: list[SubmissionResult], until_s: float
    ) -> None:
        pause_s = 0.0
        while waiting and clock.monotonic_s() < until_s:
            submission = _EnvelopeSubmission(
                self._options, self._template, self._relays, waiting.popleft(), until_s
            )
            results += await submission.run()
            # A relay that defers one recipient has others; one that defers each is given time.
            if submission.was_deferred and waiting:
                await asyncio.sleep(pause_s)
                pause_s = min(max(PAUSE_S, 2 * pause_s), DEFERRED_PAUSE_MAX_S)
            else:
                pause_s = 0.0

    async def aclose(self) -> None:
        """Close the idle sessions."""
        for relay in self._relays.values():
            for session in relay.idle:
                session.close()


class _EnvelopeSubmission:
    """The transactions of one envelope."""

    def __init__(
        self,
        options: SubmitOptions,
        template: Template,
        relays: Mapping[str, _RelayState],
        envelope: PlannedEnvelope,
        until_s: float,
    ) -> None:
        self._until_s = until_s
        self._options = options
        self._states = relays
        self._envelope = envelope
        self._relays = relays_of(envelope.key, options.relays)
        self._relay = self._relays[0]
        self._template = template
        self._header = self._body = b""
        self._results: list[SubmissionResult] = []
        self.was_deferred = False  # although the relay was reached

    async def run(self) -> list[SubmissionResult]:
        """Submit to all recipients once; again only where a session broke or the relay cannot be reached."""
        pending = [address for address, _ in self._envelope.recipients]
        losses, pause_s = 0, PAUSE_S
        try:
            self._header, self._body = self._template.render(self._envelope.recipients[0][1])
        except UnusableValue as exc:
            self._record(REFUSED, pending, Reply(0, "5.6.0", str(exc)))
            return self._results
        if self._states[self._relay].failing_s is not None and self._gives_up():
            self._record(DEFERRED, pending, Reply(0, "4.4.1", f"{self._relay} cannot be reached"))
            return self._results
        while pending:
            before = len(pending)
            try:
                pending, last = await self._transact(pending)
            except SessionLost as exc:
                last = Reply(0, "4.4.2", str(exc))
            except DestinationFailed as exc:
                if self._gives_up():
                    # Without its code: a permanent one is that of a reply to MAIL.
                    self._record(DEFERRED, pending, Reply(0, exc.status, str(exc)))
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            if len(pending) < before:
                continue
            losses += last.code == 0
            if last.code or losses > LOSSES_MAX:
                self.was_deferred = True
                self._record(DEFERRED, pending, last)
                break
        return self._results

    def _gives_up(self) -> bool:
        """True if the relay was not reached for ``patience_s``, or time is over; with ``failover`` it may change to the next relay."""
        failing_for_s = self._states[self._relay].failing_for_s()
        if self._options.failover and failing_for_s >= FAILOVER_S:
            current = self._relays.index(self._relay)
            self._relay = self._relays[(current + 1) % len(self._relays)]
        return failing_for_s >= self._options.patience_s or clock.monotonic_s() >= self._until_s

    async def _transact(self, pending: list[str]) -> tuple[list[str], Reply]:
        """Run one transaction. Returns the addresses without a final reply, and the last reply to others, with code 0 if none.

        A reply to MAIL is about the client, the sender or the size, so no recipient is refused by it for good.

        Raises DestinationFailed and SessionLost.
        """
        session = await self._session()
        addresses = pending[: session.recipients_max] if session.recipients_max else pending
        # Nothing is written before the final dot: a repeat is harmless.
        result = await session.transact(self._mail(session, addresses))
        relay = self._states[self._relay]
        relay.failing_s = None
        if session.usable:
            relay.idle.append(session)
        replies: defaultdict[tuple[int, str, str], list[str]] = defaultdict(list)
        left, last = pending[len(addresses) :], Reply(0, "4.4.2", "the session ended without a reply")
        for address, answer in zip(addresses, result.answers, strict=True):
            if answer is None:
                left.append(address)
            elif answer[1].positive or (answer[1].permanent and answer[0] is not Phase.MAIL):
                reply = answer[1]
                replies[(reply.code, reply.status, reply.text)].append(address)
            else:
                left.append(address)
                last = answer[1]
        for (code, status, text), settled in replies.items():
            self._record(ACCEPTED if code < 300 else REFUSED, settled, Reply(code, status, text))
        return left, last

    def _mail(self, session: SmtpSession, addresses: list[str]) -> Transaction:
        header, body, parameters = self._header, self._body, ""
        if session.offers("dsn"):
            parameters = ENVID + self._envelope.key
        else:
            header = KEY_FIELD + self._envelope.key.encode() + b"\r\n" + header
        send_at_ms = self._envelope.send_at_ms
        if send_at_ms is not None and send_at_ms > clock.now_ms():
            time = f"{clock.utc(send_at_ms):%Y-%m-%dT%H:%M:%SZ}"
            if session.offers("futurerelease"):
                parameters += f" HOLDUNTIL={time}"
            else:
                header = TIME_FIELD + time.encode() + b"\r\n" + header
        dsn = DsnOptions(parameters, [""] * len(addresses)) if parameters else None
        return Transaction(
            sender=self._options.sender,
            recipients=addresses,
            header=header,
            body=body,
            size=len(header) + 2 + len(body),
            eight_bit=not (header.isascii() and body.isascii()),
            smtputf8=any(map(needs_smtputf8, [self._options.sender, *addresses])),
            dsn=dsn,
        )

    async def _session(self) -> SmtpSession:
        state = self._states[self._relay]
        while state.idle:
            session = state.idle.pop()
            if session.usable:
                return session
        return await _open(self._relay, self._options)

    def _record(self, state: str, addresses: list[str], reply: Reply) -> None:
        queued = _QUEUED.search(reply.text) if state == ACCEPTED else None
        messages = tuple(id_ for id_ in (queued["id"], queued["new"]) if id_) if queued else ()
        repeated, now_ms = bool(queued and queued["duplicate"]), clock.now_ms()
        age_ms = round(float(queued["age_s"]) * 1000) if queued and queued["age_s"] else None
        for address in addresses:
            self._results.append(
                SubmissionResult(
                    key=self._envelope.key, relay=self._relay, address=address, state=state, code=reply.code, reply=str(reply),
                    messages=messages, repeated=repeated, time_ms=now_ms, age_ms=age_ms,
                )
            )  # fmt: skip


async def key_windows(options: SubmitOptions) -> dict[str, int | None]:
    """The seconds for which each relay that can be reached remembers a key; None: it does not say."""
    found: dict[str, int | None] = {}
    for relay in options.relays:
        try:
            session = await _open(relay, options)
        except DestinationFailed:
            continue  # ``EnvelopeSubmitter`` waits for it
        text = session.parameter(KEY_WINDOW.lower())
        found[relay] = int(text) if text.isascii() and text.isdigit() else None
        session.close()
    return found


def relays_of(key: str, relays: Sequence[str]) -> list[str]:
    """``relays`` in the order of preference of ``key`` (rendezvous hashing); ``key`` belongs to the first.

    When a relay is added or removed, only the keys that it gains or loses change their relay.
    """
    return sorted(relays, key=lambda relay: _weight(relay, key), reverse=True)


def _weight(relay: str, key: str) -> bytes:
    return blake2b(f"{relay}\0{key}".encode(), digest_size=8).digest()


async def _open(relay: str, options: SubmitOptions) -> SmtpSession:
    """A session with a relay. Raises DestinationFailed."""
    target = host_port(relay)
    session_options = SessionOptions(
        options.ehlo, None, options.tls, options.timeouts, options.credentials
    )
    return await open_session(Target(target.host, target.host, target.port), session_options)
