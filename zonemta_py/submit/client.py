"""Submission of a list over several pipelined sessions, reading it row by row.

States of a recipient: read ─▶ skipped (unusable, duplicate, of an earlier run), or sent ─▶ accepted, refused, deferred, uncertain; or
unsent, when the relay cannot be reached.

Invariants:

- Each recipient is counted once in ``SubmissionSummary.counts``.
- A recipient is in the journal as *sent* before the final dot leaves, so that a second run sends to none twice without ``resend_uncertain``.
- The sessions share the rows without a lock: ``_next_envelope`` and ``_is_due`` are plain functions.
- A run stops when the relay cannot be reached, or LOSSES_MAX connections in a row were lost; transactions in progress are finished.

Caller: ``zonemta submit``. Example: ``summary = await ListSubmission(settings, rows, journal, progress).run()``.

Source: RFC 2920 (pipelining).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.zones import Timeouts
from zonemta_py.core.errors import DestinationFailed, LocalError, SessionLost
from zonemta_py.smtp.address import needs_smtputf8
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.verdict import Phase
from zonemta_py.submit.journal import ACCEPTED, DEFERRED, REFUSED, UNCERTAIN, Journal, digest
from zonemta_py.submit.merge import MergeError, Template, UnusableValue
from zonemta_py.submit.recipients import ListRow
from zonemta_py.transports.connect import SessionOptions, Target, open_session
from zonemta_py.transports.session import SmtpSession, Transaction

CONNECT_TRIES = 5
LOSSES_MAX = 20  # consecutive lost sessions before the run stops
REFUSALS_KEPT = 1000
UNSENT = "unsent"


@dataclass(frozen=True, slots=True)
class SubmissionSettings:
    """The settings of a submission. ``ip`` is the address of ``relay``, ``ehlo`` the name we give.

    ``case_sensitive``: addresses that differ only in upper and lower case are different recipients.
    """

    sender: str
    template: Template
    relay: HostPort
    ip: str
    ehlo: str
    tls: str
    credentials: tuple[str, str] | None
    connections: int
    recipients_per_message: int
    resend_uncertain: bool
    case_sensitive: bool = False
    timeouts: Timeouts = Timeouts()


@dataclass(slots=True)
class SubmissionSummary:
    """The result, in recipients. ``refusals``: address and reply of the first REFUSALS_KEPT."""

    counts: Counter[str] = field(default_factory=Counter)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    failure: str = ""

    def refuse(self, state: str, addresses: Sequence[str], reply: str) -> None:
        """Count recipients that were not accepted."""
        self.counts[state] += len(addresses)
        room = REFUSALS_KEPT - len(self.refusals)
        self.refusals.extend((address, reply) for address in addresses[:room])

    @property
    def complete(self) -> bool:
        """True if every usable recipient of the list was accepted, in this run or an earlier one."""
        bad = (REFUSED, DEFERRED, UNCERTAIN, UNSENT)
        return not self.failure and not any(self.counts[name] for name in bad)


class ListSubmission:
    """One run over a list. ``progress`` is called with the number of recipients that are done."""

    def __init__(
        self,
        settings: SubmissionSettings,
        rows: Iterator[ListRow],
        journal: Journal | None,
        progress: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._rows = rows
        self._journal = journal
        self._progress = progress
        self._seen: set[bytes] = set()
        self._stopping = False
        self._losses = 0
        self._stop_reason = ""
        self.summary = SubmissionSummary()

    async def run(self) -> SubmissionSummary:
        """Submit until the list ends or the relay cannot be reached.

        Raises LocalError for an unusable list, and for a message with a merge field that cannot be replaced.
        """
        self._settings.template.require_reachable()
        async with asyncio.TaskGroup() as group:
            for number in range(self._settings.connections):
                group.create_task(self._work(), name=f"submit-{number}")
        return self.summary

    def stop(self, reason: str) -> None:
        """Read no more rows; transactions under way are finished and counted."""
        self._stopping = True
        self._stop_reason = reason
        self.summary.failure = reason

    # ---- decisions: plain functions, so that the sessions share the rows without a lock

    def _next_envelope(self) -> list[ListRow]:
        """The recipients of the next message; empty at the end of the list."""
        settings = self._settings
        size = 1 if settings.template.personal else settings.recipients_per_message
        envelope: list[ListRow] = []
        while len(envelope) < size and not self._stopping:
            row = next(self._rows, None)
            if row is None:
                break
            if self._is_due(row):
                envelope.append(row)
        return envelope

    def _is_due(self, row: ListRow) -> bool:
        """True if ``row`` is to be submitted; a row that is skipped is counted here."""
        summary, journal = self.summary, self._journal
        if row.problem:
            summary.refuse("invalid", [f"line {row.number} {row.address}".strip()], row.problem)
            self._progress(1)
            return False
        key = digest(row.address, case_sensitive=self._settings.case_sensitive)
        if key in self._seen:
            summary.counts["duplicate"] += 1
        elif journal is not None and key in journal.done:
            summary.counts["before"] += 1
        elif journal is not None and key in journal.uncertain and not self._settings.resend_uncertain:
            summary.refuse(
                UNCERTAIN, [row.address], "an earlier run received no reply; see --resend-uncertain"
            )
        else:
            self._seen.add(key)
            return True
        self._seen.add(key)
        self._progress(1)
        return False

    # ---- sending

    async def _work(self) -> None:
        session: SmtpSession | None = None
        while envelope := self._next_envelope():
            pending = [row.address for row in envelope]
            try:
                header, body = self._settings.template.render(envelope[0].fields)
            except UnusableValue as exc:
                self.summary.refuse("invalid", [f"line {envelope[0].number} {pending[0]}"], str(exc))
                self._progress(1)
                continue
            except MergeError as exc:
                raise LocalError(f"line {envelope[0].number} of the list: {exc}") from exc
            while pending:
                if session is None or not session.usable:
                    session = await self._connect()
                if session is None:
                    self.summary.refuse(UNSENT, pending, self.summary.failure)
                    break
                pending = await self._send(session, pending, header, body)
            self._progress(len(envelope))
        if session is not None:
            session.close()

    async def _connect(self) -> SmtpSession | None:
        """A session with the relay; None when it cannot be reached, and then the run stops."""
        settings = self._settings
        options = SessionOptions(
            settings.ehlo, None, settings.tls, settings.timeouts, settings.credentials
        )
        target = Target(settings.relay.host, settings.ip, settings.relay.port)
        for attempt in range(CONNECT_TRIES):
            if self._stopping:
                return None
            try:
                return await open_session(target, options)
            except DestinationFailed as exc:
                self.summary.failure = exc.text
                if exc.code >= 500:
                    break
            await asyncio.sleep(min(2.0, 0.1 * 4**attempt))
        self._stopping = True
        return None

    async def _send(
        self, session: SmtpSession, pending: list[str], header: bytes, body: bytes
    ) -> list[str]:
        """Submit one message; returns the recipients without a reply, which are to be tried again."""
        addresses = pending[: session.recipients_max] if session.recipients_max else pending
        recorded = False

        async def before_dot() -> None:
            nonlocal recorded
            if self._journal is not None:
                await self._journal.sent(addresses)
            recorded = True

        before = before_dot()
        try:
            result = await session.transact(self._mail(addresses, header, body), before)
        except SessionLost as exc:
            if recorded:  # the journal says "sent", but the dot itself was not sent
                await self._record(DEFERRED, addresses, str(exc))
            self.summary.failure = str(exc)
            self._losses += 1
            self._stopping = self._stopping or self._losses >= LOSSES_MAX
            return pending
        finally:
            before.close()
        self.summary.failure, self._losses = self._stop_reason, 0
        replies, untried = _by_reply(addresses, result.answers, uncertain=result.uncertain)
        untried = pending[len(addresses) :] + untried
        for (state, reply), of_them in replies.items():
            if state == ACCEPTED:
                self.summary.counts[ACCEPTED] += len(of_them)
            else:
                self.summary.refuse(state, of_them, reply)
            if state != UNCERTAIN:
                await self._record(state, of_them, reply)
        if untried:
            await self._record(DEFERRED, untried, "left for the next transaction")
        return untried

    def _mail(self, addresses: list[str], header: bytes, body: bytes) -> Transaction:
        sender = self._settings.sender
        return Transaction(
            sender=sender,
            recipients=addresses,
            header=header,
            body=body,
            size=len(header) + 2 + len(body),
            eight_bit=not (header.isascii() and body.isascii()),
            smtputf8=any(map(needs_smtputf8, [sender, *addresses])),
        )

    async def _record(self, state: str, addresses: Sequence[str], reply: str) -> None:
        if self._journal is not None:
            await self._journal.answered(state, addresses, reply)


def _by_reply(
    addresses: Sequence[str], answers: Sequence[tuple[Phase, Reply] | None], *, uncertain: bool
) -> tuple[dict[tuple[str, str], list[str]], list[str]]:
    """The recipients grouped by state and reply text, and those without a reply."""
    replies: dict[tuple[str, str], list[str]] = {}
    untried = []
    for address, answer in zip(addresses, answers, strict=True):
        if answer is None:
            untried.append(address)
            continue
        reply = answer[1]
        state = UNCERTAIN if uncertain and not reply.code else _state(reply)
        replies.setdefault((state, str(reply)), []).append(address)
    return replies, untried


def _state(reply: Reply) -> str:
    if 200 <= reply.code < 300:
        return ACCEPTED
    return REFUSED if reply.permanent else DEFERRED
