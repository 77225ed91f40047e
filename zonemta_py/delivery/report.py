"""The report that goes to the envelope sender in the same batch as what it reports.

A report is sent from the null sender, and never about a message that has none.
"""

from collections.abc import Sequence

from zonemta_py import clock
from zonemta_py.config.schema import Retry
from zonemta_py.errors import QueueCorrupt
from zonemta_py.model import Attempt, Fate
from zonemta_py.queue.compose import NewMessage
from zonemta_py.queue.keys import created_ms
from zonemta_py.queue.live import LiveMessage
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.records import Origin
from zonemta_py.queue.transitions import Outcome, Submission
from zonemta_py.routing import Router
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.dsn import Failure, status_report

RETURN_MAX = 65_536  # octets of a message that a report returns whole; of a larger one, the header

_HERE = Origin("", "", "", "", "")


def compose(
    queue: Queue,
    router: Router,
    hostname: str,
    live: LiveMessage,
    outcomes: Sequence[Outcome],
    retry: Retry,
) -> Submission | None:
    """A report about ``outcomes`` (all reportable), or None when nobody is to be told."""
    sender = live.meta.sender
    if not sender or not outcomes:
        return None
    now_ms = clock.now_ms()
    report_id = queue.new_id()
    report = status_report(
        hostname=hostname,
        message_id=live.id,
        report_id=report_id,
        sender=sender,
        arrival_date=clock.mail_date(created_ms(live.id)),
        date=clock.mail_date(now_ms),
        failures=[_failure(outcome, retry, live.id, now_ms) for outcome in outcomes],
        original_header=_header(live.meta.header),
        original_body=_original(queue, live),
    )
    domain = domain_of(sender)
    new = NewMessage(
        sender="",
        header=report.header,
        recipients=[(sender, domain, router.route(domain, "", "", {}))],
        origin=_HERE,
        message_id=f"<{report_id}@{hostname}>",
        eight_bit=not (report.body.isascii() and report.header.isascii()),
        smtputf8=not sender.isascii(),
        report_for=live.id,
    )
    return queue.compose_report(report_id, new, report.body)


def _header(block: bytes) -> bytes:
    """The header block, cut at a line end when it is longer than a report should be."""
    if len(block) <= RETURN_MAX:
        return block
    return block[: block.rfind(b"\r\n", 0, RETURN_MAX) + 2]


def _original(queue: Queue, live: LiveMessage) -> bytes | None:
    if live.mark.size + len(live.meta.header) > RETURN_MAX:
        return None
    try:
        return b"".join(queue.body(live))
    except QueueCorrupt:
        return None  # the report matters more than what it returns


def _failure(outcome: Outcome, retry: Retry, message: str, now_ms: int) -> Failure:
    attempt, failed = outcome.attempt, outcome.fate is not Fate.DEFERRED
    status = attempt.status or f"{5 if failed else 4}.0.0"
    if outcome.fate is Fate.EXPIRED:
        status = "4.4.7"
    until_ms = created_ms(message) + int(retry.give_up_after * 1000)
    return Failure(
        action="failed" if failed else "delayed",
        recipient=outcome.recipient.address,
        status=status,
        explanation=_explain(outcome),
        diagnostic=_diagnostic(attempt),
        remote_mta=attempt.mx if attempt.code else "",
        last_attempt=clock.mail_date(now_ms),
        retry_until="" if failed else clock.mail_date(until_ms),
    )


def _explain(outcome: Outcome) -> str:
    attempt = outcome.attempt
    if outcome.fate is Fate.EXPIRED:
        attempts = outcome.recipient.record.attempts + 1
        return f"It was attempted {attempts} times until its time was over. Last: {attempt.text}"
    if attempt.code:
        return f"The receiving server answered in the step '{attempt.phase}'."
    return attempt.text


def _diagnostic(attempt: Attempt) -> str:
    if not attempt.code:
        return ""
    return " ".join(part for part in (str(attempt.code), attempt.status, attempt.text) if part)
