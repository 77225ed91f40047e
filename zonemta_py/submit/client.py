"""Submits a list over several pipelined sessions, row by row, without holding it in memory."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from zonemta_py.config.schema import Timeouts
from zonemta_py.config.units import HostPort
from zonemta_py.core.errors import DestinationFailed, LocalError, SessionLost
from zonemta_py.smtp.address import needs_smtputf8
from zonemta_py.smtp.reply import Reply
from zonemta_py.submit.journal import ACCEPTED, DEFERRED, REFUSED, UNCERTAIN, Journal, digest
from zonemta_py.submit.merge import MergeError, Template
from zonemta_py.submit.recipients import Row
from zonemta_py.transports.connect import SessionOptions, Target, open_session
from zonemta_py.transports.pipelining import Mail, SmtpSession

CONNECT_TRIES = 5
LOSSES_MAX = 20  # sessions that break one after another before the run gives up
REFUSALS_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to submit, and how. ``target`` is the relay's address, ``ehlo`` our name."""

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
    timeouts: Timeouts = Timeouts()


@dataclass(slots=True)
class Summary:
    """How it went, in recipients. ``refusals``: address and reply, the first REFUSALS_SHOWN."""

    counts: Counter[str] = field(default_factory=Counter)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    failure: str = ""

    def refuse(self, state: str, addresses: Sequence[str], reply: str) -> None:
        """Count recipients that were not accepted."""
        self.counts[state] += len(addresses)
        room = REFUSALS_SHOWN - len(self.refusals)
        self.refusals.extend((address, reply) for address in addresses[:room])

    @property
    def complete(self) -> bool:
        """Whether every usable recipient of the list was accepted, now or before."""
        bad = (REFUSED, DEFERRED, UNCERTAIN, "unsent")
        return not self.failure and not any(self.counts[name] for name in bad)


class Submission:
    """One run over a list."""

    def __init__(
        self, plan: Plan, rows: Iterator[Row], journal: Journal | None, progress: Callable[[int], None]
    ) -> None:
        self._plan = plan
        self._rows = rows
        self._journal = journal
        self._progress = progress
        self._seen: set[bytes] = set()
        self._stop = False
        self._losses = 0
        self._stopped = ""
        self.summary = Summary()

    async def run(self) -> Summary:
        """Submit until the list ends or the relay cannot be reached. Raises LocalError for a bad list."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.connections):
                group.create_task(self._work(), name=f"submit-{number}")
        return self.summary

    def stop(self, reason: str) -> None:
        """Take no more rows; what is under way is finished and counted."""
        self._stop = True
        self._stopped = reason
        self.summary.failure = reason

    # ---- what to send: plain def, so that rows are shared without locks

    def _next_envelope(self) -> list[Row]:
        """The next recipients of one message; empty at the end of the list."""
        plan = self._plan
        most = 1 if plan.template.personal else plan.recipients_per_message
        envelope: list[Row] = []
        while len(envelope) < most and not self._stop:
            row = next(self._rows, None)
            if row is None:
                break
            if self._wanted(row):
                envelope.append(row)
        return envelope

    def _wanted(self, row: Row) -> bool:
        summary = self.summary
        if row.problem:
            summary.refuse("invalid", [f"line {row.number} {row.address}".strip()], row.problem)
            self._progress(1)
            return False
        key = digest(row.address)
        if key in self._seen:
            summary.counts["duplicate"] += 1
        elif self._journal is not None and key in self._journal.done:
            summary.counts["before"] += 1
        elif (
            self._journal is not None
            and key in self._journal.uncertain
            and not self._plan.resend_uncertain
        ):
            summary.refuse(
                UNCERTAIN, [row.address], "an earlier run never heard the answer; see --resend-uncertain"
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
                header, body = self._plan.template.render(envelope[0].fields)
            except MergeError as exc:
                raise LocalError(f"line {envelope[0].number} of the list: {exc}") from exc
            while pending:
                if session is None or not session.usable:
                    session = await self._connect()
                if session is None:
                    self.summary.refuse("unsent", pending, self.summary.failure)
                    break
                pending = await self._send(session, pending, header, body)
            self._progress(len(envelope))
        if session is not None:
            session.close()

    async def _connect(self) -> SmtpSession | None:
        plan = self._plan
        manner = SessionOptions(plan.ehlo, None, plan.tls, plan.timeouts, plan.credentials)
        target = Target(plan.relay.host, plan.ip, plan.relay.port)
        for attempt in range(CONNECT_TRIES):
            if self._stop:
                return None
            try:
                return await open_session(target, manner)
            except DestinationFailed as exc:
                self.summary.failure = exc.text
                if exc.code >= 500:
                    break
            await asyncio.sleep(min(2.0, 0.1 * 4**attempt))
        self._stop = True
        return None

    async def _send(
        self, session: SmtpSession, pending: list[str], header: bytes, body: bytes
    ) -> list[str]:
        """Submit one message; returns recipients to try again, because the session said nothing of them."""
        plan = self._plan
        addresses = pending[: session.recipients_max] if session.recipients_max else pending
        dotted = False

        async def before_dot() -> None:
            nonlocal dotted
            if self._journal is not None:
                await self._journal.sent(addresses)
            dotted = True

        before = before_dot()
        mail = Mail(
            plan.sender,
            addresses,
            header,
            body,
            len(header) + 2 + len(body),
            not (header.isascii() and body.isascii()),
            any(map(needs_smtputf8, [plan.sender, *addresses])),
        )
        try:
            result = await session.transact(mail, before)
        except SessionLost as exc:
            if dotted:  # written down as sent, though the dot itself never left
                await self._note(DEFERRED, addresses, str(exc))
            self.summary.failure = str(exc)
            self._losses += 1
            self._stop = self._stop or self._losses >= LOSSES_MAX
            return pending
        finally:
            before.close()
        self.summary.failure, self._losses = self._stopped, 0
        replies: dict[tuple[str, str], list[str]] = {}
        untried = pending[len(addresses) :]
        for address, answer in zip(addresses, result.answers, strict=True):
            if answer is None:
                untried.append(address)
            else:
                state = UNCERTAIN if result.uncertain and not answer[1].code else _state(answer[1])
                replies.setdefault((state, str(answer[1])), []).append(address)
        for (state, reply), of_them in replies.items():
            if state == ACCEPTED:
                self.summary.counts[ACCEPTED] += len(of_them)
            else:
                self.summary.refuse(state, of_them, reply)
            if state != UNCERTAIN:
                await self._note(state, of_them, reply)
        if untried and self._journal is not None:
            await self._note(DEFERRED, untried, "left for the next transaction")
        return untried

    async def _note(self, state: str, addresses: Sequence[str], reply: str) -> None:
        if self._journal is not None:
            await self._journal.answered(state, addresses, reply)


def _state(reply: Reply) -> str:
    if 200 <= reply.code < 300:
        return ACCEPTED
    return REFUSED if reply.permanent else DEFERRED
