"""From an attempt to an outcome, and from outcomes to the notes of a report."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.values import Percent, Seconds
from zonemta_py.config.zones import Retry
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.delivery.outcome import (
    RetryRules,
    decide_outcome,
    delayed_note,
    is_expired,
    report_notes,
    requested_priority,
    verdict_of,
)
from zonemta_py.delivery.send_check import before_attempt
from zonemta_py.queue.format.keys import HELD_MS, waiting_key
from zonemta_py.queue.format.records import (
    FORMAT,
    DeliveryOptions,
    EnvelopeRecord,
    Origin,
    new_recipient_record,
)
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.queue.transitions import deferred
from zonemta_py.schedule.retry import RetryContext, make_policy
from zonemta_py.smtp.reports.dsn import DELAY, FAILURE, NEVER, SUCCESS, UNSET
from zonemta_py.smtp.verdict import Phase, Verdict

ACCEPTED_MS = 1_800_000_000_000
MESSAGE = f"{ACCEPTED_MS:012x}000000abcdef"
HOUR_MS = 3_600_000
RETRY = Retry(
    delays=(Seconds(60), Seconds(600)),
    jitter=Percent(10),
    give_up_after=Seconds(3600),
    warn_after=Seconds(1800),
)
RULES = RetryRules(RETRY, make_policy(RETRY))
META = EnvelopeRecord(
    FORMAT, "s@sender.example", b"", ("default",), False, False, "", Origin("", "", "", "", "")
)

DELIVERED = Attempt("dot", 250, "2.0.0", "ok", mx="mx.example")
REFUSED = Attempt("rcpt", 550, "5.1.1", "no such user", mx="mx.example")
GREYLISTED = Attempt("rcpt", 451, "4.7.1", "later", mx="mx.example")
NO_SESSION = Attempt("connect", 0, "4.4.1", "connection timed out")


def recipient(attempts: int = 0, notify: int = UNSET, index: int = 0) -> QueuedRecipient:
    key = waiting_key("default", MESSAGE, "r@a.example")
    record = new_recipient_record(index, "a.example", "", notify, "rfc822;r@a.example")
    return QueuedRecipient(key, "default", MESSAGE, "r@a.example", record._replace(attempts=attempts))


def decide(attempt: Attempt, now_ms: int = ACCEPTED_MS, spread: float = 0, attempts: int = 0) -> Outcome:
    return decide_outcome(META, "normal", recipient(attempts), attempt, RULES, now_ms, spread)


# ---- what an attempt means


@pytest.mark.parametrize(
    ("phase", "code", "status", "verdict"),
    [
        ("dot", 250, "2.0.0", Verdict.DELIVERED),
        ("dot", 251, "", Verdict.DELIVERED),
        ("rcpt", 250, "2.1.5", Verdict.DEFERRED),  # only the final dot delivers
        ("dot", 451, "4.3.0", Verdict.DEFERRED),
        ("dot", 550, "5.7.1", Verdict.FAILED),
        ("mail", 421, "4.7.0", Verdict.DEFERRED),
        ("rcpt", 550, "5.1.1", Verdict.FAILED),
        ("rcpt", 552, "", Verdict.DEFERRED),  # RFC 5321 section 4.5.3.1.10
        ("rcpt", 552, "5.2.2", Verdict.FAILED),
        ("dot", 552, "", Verdict.FAILED),
        ("connect", 554, "5.7.1", Verdict.DEFERRED),  # another source or another day may help
        ("connect", 521, "", Verdict.FAILED),  # RFC 7504
        ("connect", 0, "4.4.1", Verdict.DEFERRED),
        ("connect", 0, "5.1.2", Verdict.FAILED),
        ("mail", 0, "5.6.7", Verdict.FAILED),
        ("data", 0, "4.4.2", Verdict.DEFERRED),
        ("data", 0, "", Verdict.DEFERRED),
    ],
)
def test_verdicts(phase: str, code: int, status: str, verdict: Verdict) -> None:
    assert verdict_of(Attempt(phase, code, status, "text")) is verdict


def test_delivered_and_bounced_have_no_due_time() -> None:
    for attempt, kind in ((DELIVERED, OutcomeKind.DELIVERED), (REFUSED, OutcomeKind.BOUNCED)):
        outcome = decide(attempt, attempts=7)
        assert (outcome.kind, outcome.due_ms, outcome.attempt) == (kind, 0, attempt)


# ---- the ladder


def test_the_ladder_by_attempts() -> None:
    """The first, second, … delay after the first, second, … failure; the last one repeats."""
    delays_s = [(decide(GREYLISTED, attempts=n).due_ms - ACCEPTED_MS) / 1000 for n in range(4)]
    assert delays_s == [60, 600, 600, 600]


@pytest.mark.parametrize(("spread", "delay_s"), [(0.0, 60), (0.5, 63), (1.0, 66)])
def test_the_jitter_is_a_share_of_the_delay(spread: float, delay_s: int) -> None:
    assert decide(GREYLISTED, spread=spread).due_ms == ACCEPTED_MS + delay_s * 1000


def test_the_last_attempt_falls_on_the_end() -> None:
    late_ms = ACCEPTED_MS + HOUR_MS - 30_000
    outcome = decide(GREYLISTED, late_ms, spread=1.0, attempts=5)
    assert (outcome.kind, outcome.due_ms) == (OutcomeKind.DEFERRED, ACCEPTED_MS + HOUR_MS)


@pytest.mark.parametrize("attempt", [GREYLISTED, NO_SESSION])
def test_a_failure_at_the_end_expires(attempt: Attempt) -> None:
    outcome = decide(attempt, ACCEPTED_MS + HOUR_MS)
    assert (outcome.kind, outcome.due_ms) == (OutcomeKind.EXPIRED, 0)


def test_the_age_counts_from_the_first_acceptance() -> None:
    """A message that goes on under another id is as old as its mail."""
    meta = META._replace(born_ms=ACCEPTED_MS - HOUR_MS)
    outcome = decide_outcome(meta, "normal", recipient(), GREYLISTED, RULES, ACCEPTED_MS, 0)
    assert outcome.kind is OutcomeKind.EXPIRED


def test_a_policy_may_give_up() -> None:
    rules = RetryRules(RETRY, lambda context: None)
    outcome = decide_outcome(META, "normal", recipient(), GREYLISTED, rules, ACCEPTED_MS, 0)
    assert outcome.kind is OutcomeKind.EXPIRED


@pytest.mark.parametrize(
    ("policy", "now_ms", "kind"),
    [
        ("function", ACCEPTED_MS, OutcomeKind.BOUNCED), ("function", ACCEPTED_MS + HOUR_MS, OutcomeKind.EXPIRED),
        ("backoff", ACCEPTED_MS + HOUR_MS, OutcomeKind.BOUNCED), ("quadratic", ACCEPTED_MS, OutcomeKind.EXPIRED),
    ],
)  # fmt: skip
def test_the_reason_when_a_function_gives_up(policy: str, now_ms: int, kind: OutcomeKind) -> None:
    """Not that the message is too old, unless it is: the reply of the server."""
    rules = RetryRules(replace(RETRY, policy=policy), lambda context: None)
    outcome = decide_outcome(META, "normal", recipient(), GREYLISTED, rules, now_ms, 0)
    assert outcome.kind is kind
    [note] = report_notes(META, [outcome], RETRY, now_ms)
    assert (note.expired, note.status, note.text) == (kind is OutcomeKind.EXPIRED, "4.7.1", "later")


def test_what_a_policy_sees() -> None:
    seen: list[RetryContext] = []

    def policy(context: RetryContext) -> float:
        seen.append(context)
        return ACCEPTED_MS + 5000.0

    rules = RetryRules(RETRY, policy)
    outcome = decide_outcome(META, "urgent", recipient(2), GREYLISTED, rules, ACCEPTED_MS, 0)
    assert outcome.due_ms == ACCEPTED_MS + 5000
    [context] = seen
    assert (context.attempts, context.priority, context.recipient) == (3, "urgent", "r@a.example")
    assert (context.code, context.status, context.reply) == (451, "4.7.1", "later")
    assert (context.created_ms, context.end_ms) == (ACCEPTED_MS, ACCEPTED_MS + HOUR_MS)


# ---- what the submitter asked for


def asked(**options: Any) -> EnvelopeRecord:
    return META._replace(options=DeliveryOptions(**options))


def test_a_message_that_expires_is_not_tried_again_after_that() -> None:
    meta = asked(expires_ms=ACCEPTED_MS + 30_000)
    outcome = decide_outcome(meta, "normal", recipient(), GREYLISTED, RULES, ACCEPTED_MS, 0)
    assert (outcome.kind, outcome.due_ms) == (OutcomeKind.DEFERRED, ACCEPTED_MS + 30_000)
    late = decide_outcome(meta, "normal", recipient(), GREYLISTED, RULES, ACCEPTED_MS + 30_000, 0)
    assert (late.kind, late.due_ms) == (OutcomeKind.DEFERRED, ACCEPTED_MS + 30_001)  # it lapses then
    for final in (DELIVERED, REFUSED):
        outcome = decide_outcome(meta, "normal", recipient(), final, RULES, ACCEPTED_MS + 30_000, 0)
        assert outcome.kind in (OutcomeKind.DELIVERED, OutcomeKind.BOUNCED)


def test_giving_up_counts_from_the_time_before_which_it_is_not_sent() -> None:
    meta, begins_ms = asked(not_before_ms=ACCEPTED_MS + 10 * HOUR_MS), ACCEPTED_MS + 10 * HOUR_MS
    outcome = decide_outcome(meta, "normal", recipient(), GREYLISTED, RULES, begins_ms, 0)
    assert (outcome.kind, outcome.due_ms) == (OutcomeKind.DEFERRED, begins_ms + 60_000)
    end = decide_outcome(meta, "normal", recipient(), GREYLISTED, RULES, begins_ms + HOUR_MS, 0)
    assert end.kind is OutcomeKind.EXPIRED


def test_what_may_not_be_sent_now() -> None:
    """Too early after an operator's release; too late."""
    meta = asked(not_before_ms=ACCEPTED_MS + 10, expires_ms=ACCEPTED_MS + 20)
    [early] = before_attempt(meta, [recipient()], ACCEPTED_MS + 9)
    assert (early.kind, early.due_ms) == (OutcomeKind.DEFERRED, ACCEPTED_MS + 10)
    assert deferred(early, ACCEPTED_MS).attempts == 0
    assert before_attempt(meta, [recipient()], ACCEPTED_MS + 10) == []
    tried = recipient(2)
    tried.record = tried.record._replace(text="later")
    [late] = before_attempt(meta, [tried], ACCEPTED_MS + 20)
    assert (late.kind, late.attempt.status) == (OutcomeKind.LAPSED, "5.4.7")
    assert late.attempt.text.endswith("last: later")
    [note] = report_notes(meta, [late], RETRY, ACCEPTED_MS + 20)
    assert note.attempts == 2


@pytest.mark.parametrize(
    ("silent", "notify", "count"), [(False, UNSET, 1), (True, UNSET, 0), (False, NEVER, 0)]
)
def test_the_report_of_a_message_that_expired(silent: bool, notify: int, count: int) -> None:
    meta = asked(expires_ms=1, silent=silent)
    outcomes = before_attempt(meta, [recipient(notify=notify)], ACCEPTED_MS)
    notes = report_notes(meta, outcomes, RETRY, ACCEPTED_MS)
    assert [(note.action, note.status) for note in notes] == [("failed", "5.4.7")] * count


def test_a_delay_is_reported_when_the_sender_asked_for_it() -> None:
    """BY with mode N (RFC 2852): an attempt is made then, and if it fails the sender hears of the delay."""
    meta = asked(notify_ms=ACCEPTED_MS + 20_000)
    first = decide_outcome(meta, "normal", recipient(), GREYLISTED, RULES, ACCEPTED_MS, 0)
    assert first.due_ms == ACCEPTED_MS + 20_000
    assert report_notes(meta, [first], RETRY, ACCEPTED_MS) == []
    second = decide_outcome(meta, "normal", recipient(), GREYLISTED, RULES, first.due_ms, 0)
    [note] = report_notes(meta, [second], RETRY, first.due_ms)
    assert (note.action, second.due_ms) == ("delayed", first.due_ms + 60_000)


ATTEMPTS = st.builds(
    Attempt,
    st.sampled_from([str(phase) for phase in Phase]),
    st.sampled_from([0, 220, 250, 354, 421, 450, 452, 500, 550, 552, 554]),
    st.sampled_from(["", "2.0.0", "4.4.1", "4.7.1", "5.1.1", "5.6.7"]),
    st.just("text"),
)


@given(ATTEMPTS, st.integers(0, 2 * HOUR_MS), st.floats(0, 1), st.integers(0, 50))
def test_any_attempt_has_one_outcome(attempt: Attempt, age_ms: int, spread: float, before: int) -> None:
    """Deferred until later but not past the end; otherwise final, without a due time."""
    now_ms = ACCEPTED_MS + age_ms
    outcome = decide(attempt, now_ms, spread, before)
    assert outcome.attempt is attempt
    assert outcome.kind is not OutcomeKind.REQUEUED
    if outcome.kind is OutcomeKind.DEFERRED:
        assert now_ms < outcome.due_ms <= ACCEPTED_MS + HOUR_MS
    else:
        assert outcome.due_ms == 0
    assert (outcome.kind is OutcomeKind.EXPIRED) == (
        verdict_of(attempt) is Verdict.DEFERRED and age_ms >= HOUR_MS
    )


# ---- the priority of a message


@pytest.mark.parametrize(
    ("header", "policy", "priority"),
    [
        (b"Priority: urgent\r\n", "priority", "urgent"),
        (b"Subject: x\r\npriority:  Non-Urgent \r\n", "function", "nonurgent"),
        (b"Priority: loud\r\n", "priority", "normal"),
        (b"Subject: x\r\n", "priority", "normal"),
        (b"Priority: urgent\r\n", "ladder", "normal"),  # the policy does not use it
    ],
)
def test_priority(header: bytes, policy: str, priority: str) -> None:
    assert requested_priority(META._replace(header=header), policy) == priority
    asked = META._replace(header=header, options=DeliveryOptions(priority="urgent"))
    assert requested_priority(asked, policy) == ("normal" if policy == "ladder" else "urgent")


# ---- notes of a report


def actions(
    kind: OutcomeKind,
    notify: int,
    attempt: Attempt = GREYLISTED,
    age_ms: int = HOUR_MS,
    warned: bool = False,
) -> list[str]:
    outcome = Outcome(recipient(notify=notify), kind, attempt)
    meta = META._replace(warned=warned)
    return [note.action for note in report_notes(meta, [outcome], RETRY, ACCEPTED_MS + age_ms)]


@pytest.mark.parametrize("kind", [OutcomeKind.BOUNCED, OutcomeKind.EXPIRED])
def test_a_failure_is_reported_unless_notify_excludes_it(kind: OutcomeKind) -> None:
    for notify in (UNSET, FAILURE, FAILURE | SUCCESS, FAILURE | DELAY):
        assert actions(kind, notify) == ["failed"]
    for notify in (NEVER, SUCCESS, DELAY, SUCCESS | DELAY):
        assert actions(kind, notify) == []


@pytest.mark.parametrize("kind", [OutcomeKind.DEFERRED, OutcomeKind.REQUEUED])
def test_a_delay_is_reported_once_and_late(kind: OutcomeKind) -> None:
    for notify in (UNSET, DELAY, DELAY | FAILURE):
        assert actions(kind, notify) == ["delayed"]
    for notify in (NEVER, FAILURE, SUCCESS):
        assert actions(kind, notify) == []
    assert actions(kind, UNSET, age_ms=HOUR_MS // 2) == ["delayed"]
    assert actions(kind, UNSET, age_ms=HOUR_MS // 2 - 1) == []
    assert actions(kind, UNSET, warned=True) == []


def test_a_success_is_reported_on_request() -> None:
    kind = OutcomeKind.DELIVERED
    assert actions(kind, SUCCESS, DELIVERED) == ["relayed"]
    assert actions(kind, SUCCESS, Attempt("dot", 250, "", "ok", final=True)) == ["delivered"]
    assert actions(kind, SUCCESS, Attempt("dot", 250, "", "ok", dsn=True)) == [], "the peer reports it"
    for notify in (UNSET, NEVER, FAILURE | DELAY):
        assert actions(kind, notify, DELIVERED) == []


def test_what_a_note_says() -> None:
    outcome = Outcome(recipient(attempts=2, index=5), OutcomeKind.EXPIRED, NO_SESSION)
    [note] = report_notes(META, [outcome], RETRY, ACCEPTED_MS + 1)
    assert note.recipient == "r@a.example"
    assert note.orcpt == "rfc822;r@a.example"
    assert (note.action, note.expired, note.attempts) == ("failed", True, 3)
    assert (note.phase, note.code, note.status, note.text) == ("connect", 0, "4.4.1", NO_SESSION.text)
    assert note.mx == "", "no server answered"
    [refused] = report_notes(
        META, [Outcome(recipient(), OutcomeKind.BOUNCED, REFUSED)], RETRY, ACCEPTED_MS
    )
    assert (refused.expired, refused.mx) == (False, "mx.example")


def test_a_delayed_note_of_another_recipient() -> None:
    record = new_recipient_record(3, "a.example", "")
    assert delayed_note("default", "r@a.example", record) is None, "not attempted yet"
    deferred = record._replace(
        attempts=2, due_ms=ACCEPTED_MS, last_ms=7, code=451, status="4.7.1", text="later"
    )
    note = delayed_note("default", "r@a.example", deferred)
    assert note is not None
    assert (note.action, note.attempts, note.time_ms, note.code) == ("delayed", 2, 7, 451)
    assert delayed_note("default", "r@a.example", deferred._replace(due_ms=0)) is None
    assert delayed_note("default", "r@a.example", deferred._replace(notify=NEVER)) is None
    assert delayed_note("default", "r@a.example", deferred._replace(due_ms=HELD_MS)) is not None


@given(st.integers(0, 10**12), st.integers(0, 10**9))
def test_expiry_by_age(created_ms: int, age_ms: int) -> None:
    """A message expires when it is as old as ``give_up_after``."""
    assert is_expired(created_ms, created_ms + age_ms, age_ms / 1000 + 1) is False
    assert is_expired(created_ms, created_ms + age_ms, age_ms // 1000) is True
