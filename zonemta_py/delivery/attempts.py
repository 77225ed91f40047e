"""From the replies to a transaction to the attempts of its recipients.

``RequestProgress`` keeps the answers of a request over the sessions that it uses. States of a recipient in it::

    unserved ─▶ answered, by a reply that is about it
        └──▶ unserved     the peer closed the session, or refused it for now: the next session may serve it

Invariants:

- ``unserved`` has indexes of the request, in order; ``part`` and ``add`` use the same ones, so answers and recipients agree.
- Recipients with the same answer share one ``Attempt``: a message to thousands makes few objects.
- A recipient that one host may have accepted (``uncertain``) stays uncertain, whatever another host says of it.
- A recipient without an attempt (None) is sent to in another transaction: it was beyond a limit of recipients.
- A failure to open a session is about the destination: ``no_session`` gives the same attempt to every recipient.

Callers: ``SmtpAgent`` makes a progress for each request; ``Worker`` calls ``without_limited``, which finds the number of recipients
that a peer takes, and ``of_others``; the log lines of ``zone_workers`` have ``reason_of``.

Example: of 100 recipients the peer takes 50, and its replies to the others have the class ``too_many_recipients``.
``without_limited`` leaves those out, and returns 50 as the limit.

Source: RFC 5321 sections 4.5.3.1.10 (too many recipients) and 5.1 (the next host).
"""

from collections.abc import Sequence

from zonemta_py.core import clock
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.endpoints import Candidates, Endpoint
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult
from zonemta_py.smtp.reply import Reply, printable
from zonemta_py.smtp.reply_class import SAID, ReplyClass
from zonemta_py.smtp.verdict import Phase, is_closed, is_unserved
from zonemta_py.transports.connect import SessionRefused
from zonemta_py.transports.session import DsnOptions, SmtpSession, TransactionResult


def attempts_of(
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
                # By LMTP some may have a reply of their own when the peer leaves.
                uncertain=result.uncertain and phase is Phase.DOT and not reply.code,
                dsn=session.offers("dsn"),
                final=session.delivers,
                lost_tls=session.lost_tls,
            )
        attempts.append(by_answer[answer])
    return attempts


def no_session(
    request: DeliveryRequest,
    exc: DestinationFailed,
    began_s: float,
    *,
    has_idle: bool = False,
    tried: bool,
) -> DeliveryResult:
    """A temporary failure for every recipient, whatever the peer's status, unless ``exc`` is permanent.

    ``tried``: a connection was made.

    A peer that refused the session has the code and the text of its reply in the attempt.
    """
    duration_ms = _since_ms(began_s)
    if isinstance(exc, SessionRefused) and exc.reply.code >= 400:
        reply = exc.reply
        attempt = Attempt(
            phase=Phase.CONNECT.value,
            code=reply.code,
            status=reply.status,
            text=reply.text,
            mx=exc.host,
            mx_ip=exc.ip,
            source_ip=exc.source,
            duration_ms=duration_ms,
        )
    else:
        status = exc.status if exc.permanent else _temporary(exc.status)
        text = printable(exc.text)
        attempt = Attempt(Phase.CONNECT.value, 0, status, text, duration_ms=duration_ms)
    attempts = [attempt] * len(request.recipients)
    return DeliveryResult(attempts, attempt, exc.permanent, has_idle, tried=tried)


def reason_of(failure: Attempt) -> str:
    """A failure to open a session, with the peer and its reply if it gave one."""
    if not failure.code:
        return failure.text
    peer = f"{failure.mx}[{failure.mx_ip}]{SAID}" if failure.mx_ip else ""
    return f"{peer}{Reply(failure.code, failure.status, failure.text)}"


def of_others(failure: Attempt) -> Attempt:
    """A failure to open a session, for mail that was not tried: no server said anything of it."""
    if not failure.code:
        return failure
    return Attempt(failure.phase, 0, _temporary(failure.status or "4.4.0"), reason_of(failure))


def without_limited(attempts: Sequence[Attempt | None]) -> tuple[Sequence[Attempt | None], int]:
    """``attempts`` without those that were refused because the transaction has too many recipients, and how many it may have.

    0: nothing says so. What is left out is sent in another transaction. If the peer took none, half as many are tried, unless
    it refused them for now: that a server wants none at the moment is no limit.
    """
    tried = [each for each in attempts if each is not None]
    others = [each for each in tried if not _is_limit(each)]
    if len(others) == len(tried) or len(tried) == 1:
        return attempts, 0
    taken = sum(each.phase in _AFTER_RCPT for each in others)
    if not taken and all(each.code < 500 for each in tried):
        return attempts, 0
    left = [None if each is None or _is_limit(each) else each for each in attempts]
    return left, taken or max(1, len(tried) // 2)


_AFTER_RCPT = (Phase.DATA, Phase.DOT)


def _is_limit(attempt: Attempt) -> bool:
    """True if a server refused an attempt for the number of its recipients."""
    if attempt.reply_class != ReplyClass.TOO_MANY_RECIPIENTS or attempt.uncertain:
        return False
    return attempt.code >= 400 and attempt.phase != Phase.CONNECT


def _temporary(status: str) -> str:
    return f"4{status[1:]}"


def all_unreachable(endpoints: Candidates) -> str:
    """Why no connection was attempted."""
    ips = ", ".join(dict.fromkeys(endpoint.ip for endpoint, _ in endpoints))
    return f"every address timed out lately and is not tried for a while: {ips}"


def _since_ms(began_s: float) -> int:
    return int((clock.monotonic_s() - began_s) * 1000)


# ---- the progress of a request


class RequestProgress:
    """A request, and its answers so far. ``unserved``: the indexes of the recipients that the next session may serve."""

    def __init__(self, request: DeliveryRequest, began_s: float) -> None:
        self.request = request
        self.began_s = began_s
        self.sessions = 0
        self.opened = 0  # of the sessions: those that were new
        self.unserved = list(range(len(request.recipients)))
        self.recipients_max = 0  # of a transaction, once it is known
        self._attempts: list[Attempt | None] = [None] * len(request.recipients)
        self._answered = False  # a recipient has an answer that is about it
        self._uncertain: dict[int, Attempt] = {}  # those that a host may have without having said so

    def part(self, request: DeliveryRequest) -> DeliveryRequest:
        """``request``, a form of this one, for the recipients that are not served."""
        unserved = self.unserved
        if len(unserved) == len(request.recipients):
            return request
        dsn = request.dsn
        if dsn is not None:
            dsn = DsnOptions(dsn.mail, [dsn.rcpts[index] for index in unserved])
        return replace(request, recipients=[request.recipients[i] for i in unserved], dsn=dsn)

    def add(
        self,
        result: TransactionResult,
        endpoint: Endpoint,
        session: SmtpSession,
        *,
        refuses_session: bool = False,
    ) -> bool:
        """Take the answers to ``part``. Returns whether one of them says that the session is closed.

        ``refuses_session``: the answers are about the session, which serves no more mail.
        """
        self.sessions += 1
        self.recipients_max = session.recipients_max or 0
        indexes, self.unserved = self.unserved, []
        closed, unserved = refuses_session, False
        made = attempts_of(result, endpoint, session, self.began_s)
        known: Attempt | None = None
        for index in indexes[len(result.answers) :]:
            self._attempts[index] = None  # beyond the limit of recipients: not tried in this session
        for index, answer, attempt in zip(indexes, result.answers, made, strict=False):
            self._attempts[index] = attempt
            if answer is None:
                continue
            if attempt is not known:  # recipients with the same answer share an attempt
                known, unserved = attempt, refuses_session or is_unserved(*answer)
                closed = closed or is_closed(*answer)
            if unserved:
                self.unserved.append(index)
            else:
                self._answered = True
        if result.uncertain or self._uncertain:
            self._name_uncertain(indexes)
        return closed

    def _name_uncertain(self, indexes: list[int]) -> None:
        """Keep uncertain each recipient that one host may have, whatever another host says of it."""
        for index in indexes:
            before, now = self._uncertain.get(index), self._attempts[index]
            if before is not None:
                now = before if now is None else replace(now, uncertain=True)
                self._attempts[index] = now
            if now is not None and now.uncertain:
                self._uncertain[index] = now

    def without_session(self, *, was_stale: bool) -> DeliveryResult:
        """The end of the request when no further session is permitted now.

        ``was_stale``: the peer had closed the idle session; without any answer there was no attempt, and the mail waits.
        """
        if was_stale and not self._answered and not self._uncertain:
            return DeliveryResult([], not_permitted=True)
        return self.result()

    def result(self, failure: DestinationFailed | None = None) -> DeliveryResult:
        """The end of the request; ``failure``: no session could be opened after an idle one was closed."""
        if failure is not None and not self._answered and not self._uncertain:
            return no_session(self.request, failure, self.began_s, tried=True)
        last = self._attempts[-1]
        if self._answered or last is None or last.code not in (0, 421):
            return DeliveryResult(
                self._attempts, recipients_max=self.recipients_max, sessions=self.opened
            )
        refused = last.code == 421 and last.phase != Phase.DOT
        return DeliveryResult(self._attempts, last, refuses_sessions=refused, sessions=self.opened)
