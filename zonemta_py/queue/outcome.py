"""The arguments of the transitions of a message: outcomes of recipients, a message to accept, other effects."""

from collections.abc import Mapping, Sequence

from zonemta_py.core.codec import Struct, replace
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.events.schema import Event
from zonemta_py.queue.format.records import BodyRecord, DigestEntry, EnvelopeRecord, Note
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.queue.submitters.keys import KeyUse
from zonemta_py.smtp.reply_class import ReplyClassifier


class Outcome(Struct, frozen=True):
    """The outcome of one leased recipient.

    ``due_ms`` (unix ms) only for DEFERRED; ``again``, the new (message, recipient index), only for
    REQUEUED. ``attempted``: False for a recipient that nothing was sent to, because of what its submitter
    asked for, or of a limit. ``counted``: False for an attempt that does not bring the retry ladder forward.
    ``held_by``: the rule of shaping that holds it, until it is released.
    """

    recipient: QueuedRecipient
    kind: OutcomeKind
    attempt: Attempt
    due_ms: int = 0
    again: tuple[str, int] = ("", 0)
    attempted: bool = True
    counted: bool = True
    held_by: str = ""


def classify_attempts(
    classifier: ReplyClassifier,
    attempts: Sequence[Attempt | None],
    provider: str = "",
    sender: str = "",
) -> Sequence[Attempt | None]:
    """``attempts`` of mail of ``sender`` at ``provider``, with the classes of those that are no success; what recipients share stays shared."""
    if not provider:
        for each in attempts:
            if each is not None and not each.reply_class and each.code // 100 != 2:
                break
        else:
            return attempts
    found: dict[int, Attempt] = {}
    for each in attempts:
        if each is not None and id(each) not in found:
            about = _classified(classifier, each, sender)
            found[id(each)] = replace(about, provider=provider) if provider else about
    return [None if each is None else found[id(each)] for each in attempts]


def _classified(classifier: ReplyClassifier, attempt: Attempt, sender: str) -> Attempt:
    if attempt.reply_class or attempt.code // 100 == 2:
        return attempt
    found = classifier.classify(attempt.phase, attempt.code, attempt.status, attempt.text, sender)
    return replace(attempt, reply_class=found)


def classify_outcomes(classifier: ReplyClassifier, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """``outcomes`` with the classes of their attempts."""
    attempts = [each.attempt for each in outcomes]
    known = classify_attempts(classifier, attempts)
    if known is attempts:
        return outcomes
    return [
        replace(each, attempt=attempt) for each, attempt in zip(outcomes, known, strict=True) if attempt
    ]


class AcceptedMessage(Struct, frozen=True):
    """The records of a message to be accepted; ``tail`` are its last chunks, not yet written.

    A recipient whose record has a due time is accepted as deferred, under a ``deferred/`` key.
    ``message_id`` is the header field, for the event. ``key``: what the message puts under its
    submission key. ``hold``: why its recipients are held; empty when they are not. ``submission``, ``ignored``: see the event.
    ``moved_from``: the zones that are gone, for which recipients were accepted, by recipient index.
    """

    message: str
    meta: EnvelopeRecord
    mark: BodyRecord
    tail: Sequence[bytes]
    recipients: Sequence[QueuedRecipient]
    message_id: str
    key: KeyUse | None = None
    hold: str = ""
    submission: str = ""
    moved_from: Mapping[int, str] = {}
    ignored: tuple[str, ...] = ()


class SettleEffects(Struct, frozen=True):
    """The other effects of a settle, written in its batch.

    ``reports`` are accepted, ``notes`` kept for a later report on their message, ``events`` recorded, ``digests``
    written under their keys; ``warned``: a warning of delay is among the reports, and no other will follow.
    ``failure_report``: the id of the report on the failed recipients, or empty. ``puts``: other keys and values, of
    which only the last in a group is written; an empty value deletes.
    """

    reports: Sequence[AcceptedMessage] = ()
    failure_report: str = ""
    notes: Sequence[Note] = ()
    events: Sequence[Event] = ()
    warned: bool = False
    digests: Sequence[tuple[bytes, DigestEntry]] = ()
    puts: Sequence[tuple[bytes, bytes]] = ()


NO_EFFECTS = SettleEffects()
