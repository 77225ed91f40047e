"""From the replies to a transaction to the attempts of its recipients."""

from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.endpoints import Candidates, Endpoint
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult
from zonemta_py.smtp.classify import Phase
from zonemta_py.smtp.reply import Reply, printable
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
                uncertain=result.uncertain and phase is Phase.DOT,
                dsn=session.offers("dsn"),
                final=session.delivers,
            )
        attempts.append(by_answer[answer])
    return attempts


def no_session(
    request: DeliveryRequest, exc: DestinationFailed, began_s: float, *, has_idle: bool = False
) -> DeliveryResult:
    """A temporary failure for every recipient, whatever the peer's status, unless ``exc`` is permanent."""
    attempt = Attempt(
        phase=Phase.CONNECT.value,
        code=0,
        status=exc.status if exc.permanent or exc.status.startswith("4") else f"4{exc.status[1:]}",
        text=printable(exc.text),
        duration_ms=_since_ms(began_s),
    )
    return DeliveryResult([attempt] * len(request.recipients), attempt, exc.permanent, has_idle)


def all_unreachable(endpoints: Candidates) -> str:
    """Why no connection was attempted."""
    ips = ", ".join(dict.fromkeys(endpoint.ip for endpoint, _ in endpoints))
    return f"every address timed out lately and is not tried for a while: {ips}"


def _since_ms(began_s: float) -> int:
    return int((clock.monotonic_s() - began_s) * 1000)
