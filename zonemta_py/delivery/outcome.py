"""From what a peer said to what becomes of each recipient. Pure: time and chance are arguments."""

from collections.abc import Sequence

from zonemta_py.config.schema import Retry
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.queue.format.records import FORMAT, Meta, Note, Waiting, born
from zonemta_py.queue.submitter_queues import Recipient
from zonemta_py.queue.transitions import Outcome
from zonemta_py.schedule.retry import Policy, RetryContext, next_attempt, priority_of, warning_is_due
from zonemta_py.smtp.classify import Phase, Verdict, verdict
from zonemta_py.smtp.dsn_params import wants_delay, wants_failure, wants_success
from zonemta_py.smtp.headers import field_value, scan
from zonemta_py.smtp.reply import Reply


def decide(
    meta: Meta,
    urgency: str,
    recipient: Recipient,
    attempt: Attempt,
    retry: Retry,
    policy: Policy,
    now_ms: int,
    spread: float,
) -> Outcome:
    """The outcome of ``attempt`` for ``recipient``. ``spread`` (0 to 1) is its part of the jitter.

    A temporary failure for which ``policy`` knows no later time expires.
    """
    judged = judge(attempt)
    if judged is Verdict.DELIVERED:
        return Outcome(recipient, OutcomeKind.DELIVERED, attempt)
    if judged is Verdict.FAILED:
        return Outcome(recipient, OutcomeKind.BOUNCED, attempt)
    born_ms = born(meta, recipient.message)
    context = RetryContext(
        created_ms=born_ms,
        attempts=recipient.record.attempts + 1,
        now_ms=now_ms,
        end_ms=born_ms + int(retry.give_up_after * 1000),
        zone=recipient.zone,
        sender=meta.sender,
        recipient=recipient.address,
        priority=urgency,
        code=attempt.code,
        status=attempt.status,
        reply=attempt.text,
    )
    due_ms = next_attempt(policy, context, spread * retry.jitter / 100)
    if due_ms is None:
        return Outcome(recipient, OutcomeKind.EXPIRED, attempt)
    return Outcome(recipient, OutcomeKind.DEFERRED, attempt, due_ms)


def judge(attempt: Attempt) -> Verdict:
    """What the attempt means: a server's reply by its code, our own finding by its status."""
    if attempt.code:
        return verdict(Reply(attempt.code, attempt.status, attempt.text), Phase(attempt.phase))
    return Verdict.FAILED if attempt.status.startswith("5") else Verdict.DEFERRED


def priority(header: bytes, policy: str) -> str:
    """The priority a message's header asks for, looked up only for a retry policy that asks."""
    if policy in ("priority", "function"):
        for field in scan(header)[0]:
            if field.name == b"priority":
                return priority_of(field_value(header, field))
    return "normal"


def notes(meta: Meta, outcomes: Sequence[Outcome], retry: Retry, now_ms: int) -> list[Note]:
    """What the sender is to hear of ``outcomes``, by NOTIFY (RFC 3461 section 4.1) and once per delay.

    A success that the peer took over to report (it offers DSN) is not ours to tell.
    """
    found = []
    for outcome in outcomes:
        action = _action(meta, outcome, retry, now_ms)
        if action:
            found.append(_note(outcome, action, now_ms))
    return found


def _action(meta: Meta, outcome: Outcome, retry: Retry, now_ms: int) -> str:
    notify = outcome.recipient.record.notify
    if outcome.kind is OutcomeKind.DELIVERED:
        success = "delivered" if outcome.attempt.final else "relayed"
        return success if wants_success(notify) and not outcome.attempt.dsn else ""
    if outcome.kind not in (OutcomeKind.DEFERRED, OutcomeKind.REQUEUED):
        return "failed" if wants_failure(notify) else ""
    due = not meta.warned and warning_is_due(retry, born(meta, outcome.recipient.message), now_ms)
    return "delayed" if due and wants_delay(notify) else ""


def _note(outcome: Outcome, action: str, now_ms: int) -> Note:
    recipient, attempt = outcome.recipient, outcome.attempt
    return Note(
        FORMAT, recipient.zone, recipient.record.number, recipient.address, recipient.record.orcpt,
        action, outcome.kind is OutcomeKind.EXPIRED, recipient.record.attempts + 1, now_ms,
        attempt.phase, attempt.code, attempt.status, attempt.text, attempt.mx if attempt.code else "",
    )  # fmt: skip


def delayed_note(zone: str, address: str, record: Waiting) -> Note | None:
    """What a warning says of another recipient that waits; None when it is not delayed or not to be told."""
    if not record.attempts or not record.due_ms or not wants_delay(record.notify):
        return None
    return Note(
        FORMAT, zone, record.number, address, record.orcpt, "delayed", False, record.attempts,
        record.last_ms, "", record.code, record.status, record.text, "",
    )  # fmt: skip
