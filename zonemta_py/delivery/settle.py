"""From what a peer said to what becomes of each recipient. Pure: time and chance are arguments."""

from collections.abc import Sequence
from random import Random

from zonemta_py.config.schema import Retry
from zonemta_py.model import Attempt, Fate
from zonemta_py.queue.keys import created_ms
from zonemta_py.queue.ready import Recipient
from zonemta_py.queue.records import Meta
from zonemta_py.queue.transitions import Outcome
from zonemta_py.schedule.retry import next_due_ms, warning_is_due
from zonemta_py.smtp.classify import Phase, Verdict, verdict
from zonemta_py.smtp.reply import Reply


def decide(
    meta: Meta, recipient: Recipient, attempt: Attempt, retry: Retry, now_ms: int, rng: Random
) -> Outcome:
    """The outcome of ``attempt`` for ``recipient``.

    A deferral past ``give_up_after`` expires. One past ``warn_after`` warns the sender, once, and
    never about a report.
    """
    judged = judge(attempt)
    if judged is Verdict.DELIVERED:
        return Outcome(recipient, Fate.DELIVERED, attempt)
    if judged is Verdict.FAILED:
        return Outcome(recipient, Fate.BOUNCED, attempt)
    born_ms = created_ms(recipient.message)
    due_ms = next_due_ms(retry, recipient.record.attempts + 1, born_ms, now_ms, rng.random())
    if due_ms is None:
        return Outcome(recipient, Fate.EXPIRED, attempt)
    warned = bool(meta.sender) and not recipient.record.warned and warning_is_due(retry, born_ms, now_ms)
    return Outcome(recipient, Fate.DEFERRED, attempt, due_ms, warned)


def judge(attempt: Attempt) -> Verdict:
    """What the attempt means: a server's reply by its code, our own finding by its status."""
    if attempt.code:
        return verdict(Reply(attempt.code, attempt.status, attempt.text), Phase(attempt.phase))
    return Verdict.FAILED if attempt.status.startswith("5") else Verdict.DEFERRED


def reportable(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those of ``outcomes`` that the sender hears of."""
    return [o for o in outcomes if o.warned or o.fate in (Fate.BOUNCED, Fate.EXPIRED)]
