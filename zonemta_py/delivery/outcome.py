"""From an attempt to the outcome of each recipient, and what a report says of it.

Pure: the time and the random part of a delay are arguments.
"""

from collections.abc import Sequence
from typing import NamedTuple

from zonemta_py.config.zones import Retry
from zonemta_py.core.codec import replace
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.egress.rules import RecipientAction
from zonemta_py.queue.format.keys import HELD_MS
from zonemta_py.queue.format.records import FORMAT, EnvelopeRecord, Note, RecipientRecord, starts
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.schedule.retry import (
    RetryContext,
    RetryPolicy,
    next_attempt,
    priority_of,
    warning_is_due,
)
from zonemta_py.smtp.address import DOUBLE_BOUNCE
from zonemta_py.smtp.headers import field_value, scan
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.reply_class import ReplyClass, subject
from zonemta_py.smtp.reports.dsn import wants_delay, wants_failure, wants_success
from zonemta_py.smtp.verdict import NO_ADDRESS, Phase, ReplySubject, Verdict, verdict

LAPSED_STATUS = "5.4.7"  # RFC 3463: delivery time expired
NO_ADDRESS_MS = 86_400_000  # after a day, DNS will not be corrected for this message


class RetryRules(NamedTuple):
    """The ``retry`` settings of a zone, and the policy made from them. ``defers``: permanent refusals are tried again."""

    settings: Retry
    policy: RetryPolicy
    defers: bool = False


def decide_outcome(
    meta: EnvelopeRecord,
    priority: str,
    recipient: QueuedRecipient,
    attempt: Attempt,
    rules: RetryRules,
    now_ms: int,
    spread: float,
) -> Outcome:
    """The outcome of ``attempt`` for ``recipient``; ``spread`` (0 to 1) scales the jitter of the delay.

    A temporary failure after which the policy names no further attempt expires the recipient; one that a
    function gives up before its time fails for the reason of its last attempt.
    """
    meaning = verdict_of(attempt)
    if meaning is Verdict.DELIVERED:
        return Outcome(recipient, OutcomeKind.DELIVERED, attempt)
    if meaning is Verdict.FAILED and not rules.defers:
        return Outcome(recipient, OutcomeKind.BOUNCED, attempt)
    born_ms = starts(meta, recipient.message)
    if has_no_address(attempt) and born_ms <= now_ms - NO_ADDRESS_MS:
        text = f"{attempt.text}, not within a day"
        return Outcome(recipient, OutcomeKind.BOUNCED, replace(attempt, status="5.1.2", text=text))
    context = RetryContext(
        created_ms=born_ms,
        attempts=recipient.record.attempts + 1,
        now_ms=now_ms,
        end_ms=born_ms + int(rules.settings.give_up_after * 1000),
        zone=recipient.zone,
        sender=meta.sender,
        recipient=recipient.address,
        priority=priority,
        code=attempt.code,
        status=attempt.status,
        reply=attempt.text,
    )
    due_ms = next_attempt(rules.policy, context, spread * rules.settings.jitter / 100)
    if due_ms is None:
        policy = rules.settings.policy
        by_function = policy == "backoff" or (policy == "function" and now_ms < context.end_ms)
        return Outcome(recipient, OutcomeKind.BOUNCED if by_function else OutcomeKind.EXPIRED, attempt)
    if meta.options.expires_ms:  # at that time the message lapses, see ``before_attempt``
        due_ms = min(due_ms, max(meta.options.expires_ms, now_ms + 1))
    if meta.options.notify_ms > now_ms:
        due_ms = min(due_ms, meta.options.notify_ms)
    return Outcome(recipient, OutcomeKind.DEFERRED, attempt, due_ms)


def apply_action(outcome: Outcome, action: RecipientAction) -> Outcome:
    """``outcome`` as the rules of shaping want it."""
    kind = outcome.kind
    if action.holds and kind in (OutcomeKind.DEFERRED, OutcomeKind.BOUNCED):
        return replace(outcome, kind=OutcomeKind.DEFERRED, due_ms=HELD_MS, held_by=action.rule)
    if kind is not OutcomeKind.DEFERRED:
        return outcome
    if action.bounces:
        return replace(outcome, kind=OutcomeKind.BOUNCED, due_ms=0)
    return outcome if action.is_counted else replace(outcome, counted=False)


def unsent_attempt(last: str, reason: str, reply_class: str, provider: str) -> Attempt:
    """The attempt of a recipient to which nothing may be sent for ``reason``: with its ``last`` reply, of ``reply_class``, if it has one."""
    if not last:
        return Attempt("", 0, "4.3.0", reason, reply_class=ReplyClass.EXPIRED, provider=provider)
    text = f"{reason}; last: {last}"
    return Attempt("", 0, "4.3.0", text, reply_class=reply_class, provider=provider)


def verdict_of(attempt: Attempt) -> Verdict:
    """The meaning of an attempt: by the server's reply and its class, or by the status of a local error."""
    code, status = attempt.code, attempt.status
    if code:
        phase = Phase(attempt.phase)
        about = ReplySubject.MAILBOX
        if code >= 500:
            lost_tls = attempt.lost_tls
            about = subject(phase, code, status, attempt.reply_class, lost_tls=lost_tls)
        return verdict(Reply(code, status, attempt.text), phase, about)
    return Verdict.FAILED if attempt.status.startswith("5") else Verdict.DEFERRED


def is_expired(created_ms: int, now_ms: int, give_up_after_s: float) -> bool:
    """True if a message accepted at ``created_ms`` is not retried any more."""
    return created_ms <= now_ms - int(give_up_after_s * 1000)


def is_given_up(meta: EnvelopeRecord, message: str, retry: Retry, now_ms: int) -> bool:
    """True if a message is not tried any more; a function of ``backoff`` decides with each attempt only."""
    return retry.policy != "backoff" and is_expired(starts(meta, message), now_ms, retry.give_up_after)


def has_no_address(attempt: Attempt) -> bool:
    """True if the domain exists, and neither it nor one of its MX hosts has an address."""
    return attempt.code == 0 and attempt.status == NO_ADDRESS


def requested_priority(meta: EnvelopeRecord, policy: str) -> str:
    """urgent, normal or nonurgent: what the submitter asked for, else by the ``Priority`` field.

    "normal" for a policy that does not use it.
    """
    if policy in ("priority", "function"):
        if meta.options.priority:
            return meta.options.priority
        for field in scan(meta.header)[0]:
            if field.name == b"priority":
                return priority_of(field_value(meta.header, field))
    return "normal"


def report_notes(
    meta: EnvelopeRecord, outcomes: Sequence[Outcome], retry: Retry, now_ms: int
) -> list[Note]:
    """The notes for a report to the sender: by NOTIFY (RFC 3461 section 4.1), a delay once per message.

    A success at a peer that offers DSN is reported by that peer.
    """
    notes = []
    for outcome in outcomes:
        action = _action(meta, outcome, retry, now_ms)
        if action:
            notes.append(_note(outcome, action, now_ms))
    return notes


def _action(meta: EnvelopeRecord, outcome: Outcome, retry: Retry, now_ms: int) -> str:
    """The ``Action`` of RFC 3464; empty when there is nothing to report."""
    notify = outcome.recipient.record.notify
    if outcome.kind is OutcomeKind.DELIVERED:
        success = "delivered" if outcome.attempt.final else "relayed"
        return success if notify and wants_success(notify) and not outcome.attempt.dsn else ""
    if outcome.kind not in (OutcomeKind.DEFERRED, OutcomeKind.REQUEUED):
        silent = outcome.kind is OutcomeKind.LAPSED and meta.options.silent
        return "failed" if wants_failure(notify) and not silent else ""
    due = not meta.warned and delay_is_reported(meta, outcome.recipient.message, retry, now_ms)
    return "delayed" if due and wants_delay(notify) else ""


def has_reader(meta: EnvelopeRecord) -> bool:
    """True if a report of a delay can be sent: not about a report."""
    return meta.sender not in ("", DOUBLE_BOUNCE)


def delay_is_reported(meta: EnvelopeRecord, message: str, retry: Retry, now_ms: int) -> bool:
    """True if the sender's report of a delay is due: by the zone, or because the sender asked for it."""
    return 0 < meta.options.notify_ms <= now_ms or warning_is_due(retry, starts(meta, message), now_ms)


def _note(outcome: Outcome, action: str, now_ms: int) -> Note:
    recipient, attempt = outcome.recipient, outcome.attempt
    return Note(
        version=FORMAT, zone=recipient.zone, recipient_index=recipient.record.recipient_index, recipient=recipient.address,
        orcpt=recipient.record.orcpt, action=action, expired=outcome.kind is OutcomeKind.EXPIRED,
        attempts=recipient.record.attempts + outcome.attempted, time_ms=now_ms, phase=attempt.phase, code=attempt.code,
        status=attempt.status, text=attempt.text, mx=attempt.mx if attempt.code else "",
    )  # fmt: skip


def delayed_note(zone: str, address: str, record: RecipientRecord) -> Note | None:
    """The entry of a deferred recipient in a warning about another; None when it does not belong there."""
    if not record.attempts or not record.due_ms or not wants_delay(record.notify):
        return None
    return Note(
        version=FORMAT, zone=zone, recipient_index=record.recipient_index, recipient=address, orcpt=record.orcpt,
        action="delayed", expired=False, attempts=record.attempts, time_ms=record.last_ms, phase="", code=record.code,
        status=record.status, text=record.text, mx="",
    )  # fmt: skip
