"""From the replies to a transaction to the attempts of its recipients."""

from collections.abc import Sequence

from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.endpoints import Candidates, Endpoint
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult
from zonemta_py.smtp.classification import ReplyClass
from zonemta_py.smtp.classify import Phase
from zonemta_py.smtp.reply import Reply, printable
from zonemta_py.smtp.reply_text import SAID
from zonemta_py.transports.connect import SessionRefused
from zonemta_py.transports.pipelining import SmtpSession, TransactionResult


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
    """Whether a server refused an attempt for the number of its recipients."""
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
