"""What an operator's commands do with each recipient: remove it, return it to the sender, hold it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.queue import transitions
from zonemta_py.queue.active import ActiveMessage
from zonemta_py.queue.batch import DoneCallback, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Note, RecipientRecord
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.submitter_queues import QueuedRecipient
from zonemta_py.smtp.classification import ReplyClass

if TYPE_CHECKING:
    from zonemta_py.queue.queue import Queue


Selected = str | Sequence[bytes] | None  # of a message: an address, keys of recipients, or all


def is_selected(recipient: bytes, selected: Selected) -> bool:
    """Whether the recipient with this key is one of ``selected``."""
    if selected is None:
        return True
    if isinstance(selected, str):
        return keys.parse_recipient(recipient)[2] == selected
    return recipient in selected


@dataclass(slots=True)
class Withdrawal:
    """Recipients of one message that neither a worker nor a timer takes until ``batch`` is on disk.

    ``deferred``: key to due time (ms). ``due_keys``: what ``batch`` writes for the timer. ``busy``: how many
    are in a transaction and were left alone. ``callbacks`` for the end of the batch.
    """

    active: ActiveMessage
    batch: WriteBatch = field(default_factory=WriteBatch)
    waiting: list[bytes] = field(default_factory=list)
    deferred: dict[bytes, int] = field(default_factory=dict)
    due_keys: list[bytes] = field(default_factory=list)
    callbacks: list[DoneCallback] = field(default_factory=list)
    busy: int = 0

    @property
    def count(self) -> int:
        """How many recipients are withdrawn."""
        return len(self.waiting) + len(self.deferred)


class Change(ABC):
    """What a command does."""

    def skips(self, record: RecipientRecord) -> bool:
        """Whether a recipient stays as it is."""
        return False

    @abstractmethod
    def write(self, withdrawal: Withdrawal, key: bytes, record: RecipientRecord) -> None:
        """Write the transition of one recipient into the batch."""

    def finish(self, withdrawal: Withdrawal) -> None:
        """Write what follows from all steps; not called when the message has ended. Raises LocalError."""
        return


class Deletion(Change):
    """Recipients are removed without a report."""

    def __init__(self, queue: "Queue") -> None:
        self._now_ms = queue.now()

    def write(self, withdrawal: Withdrawal, key: bytes, record: RecipientRecord) -> None:
        """Remove one."""
        active = withdrawal.active
        transitions.delete(withdrawal.batch, active.meta, key, record, self._now_ms)
        active.remaining -= 1


class Return(Change):
    """Recipients fail, and the sender gets a report: one on all of them, with the last step."""

    def __init__(self, queue: "Queue", reason: str) -> None:
        self._queue = queue
        self._now_ms = queue.now()
        self._attempt = Attempt("operator", 0, "5.0.0", reason, reply_class=ReplyClass.OTHER)
        self._notes: list[Note] = []

    def write(self, withdrawal: Withdrawal, key: bytes, record: RecipientRecord) -> None:
        """End one as bounced, and note it for the report."""
        active, batch = withdrawal.active, withdrawal.batch
        zone, message, address = keys.parse_recipient(key)
        recipient = QueuedRecipient(key, zone, message, address, record)
        outcome = Outcome(recipient, OutcomeKind.BOUNCED, self._attempt)
        transitions.settle(batch, active.meta, None, [outcome], "", self._now_ms)
        for note in self._queue.reporting.composer.notes(active, [outcome]):
            transitions.note(batch, message, note)
            active.notes.append(note)
            self._notes.append(note)
        active.remaining -= 1

    def finish(self, withdrawal: Withdrawal) -> None:
        """Report now: other recipients of the message may wait for days."""
        active = withdrawal.active
        own = {note.recipient_index for note in self._notes}
        # A report on earlier failures of the message may have had some of them between two steps.
        notes = [note for note in active.notes if note.recipient_index in own]
        if notes:
            withdrawal.callbacks += self._queue.reporting.add_report(withdrawal.batch, active, notes)
        active.notes = [note for note in active.notes if note.recipient_index not in own]


class Hold(Change):
    """Recipients stay, unsent, until they are released. ``suspension``: the name of that for which they are held.

    ``by``: see ``RecipientRecord.held_by``.
    """

    def __init__(self, queue: "Queue", reason: str, suspension: str = "", by: str = "") -> None:
        self._now_ms = queue.now()
        self._suspended = queue.suspended
        self._reason = reason
        self._suspension = suspension
        self._by = by

    def skips(self, record: RecipientRecord) -> bool:
        """Those that are held already, and all when the suspension has ended meanwhile."""
        is_over = bool(self._suspension) and self._suspension not in self._suspended
        return is_over or record.due_ms == keys.HELD_MS

    def write(self, withdrawal: Withdrawal, key: bytes, record: RecipientRecord) -> None:
        """Hold one."""
        batch, meta = withdrawal.batch, withdrawal.active.meta
        transitions.hold(batch, meta, key, record, self._reason, self._now_ms, self._by)
        zone, message, address = keys.parse_recipient(key)
        if self._suspension:
            held = keys.held_key(self._suspension, keys.deferred_key(zone, message, address))
            withdrawal.batch.put(held, b"")
        due = keys.due_key(keys.HELD_MS, zone, message)
        if due not in withdrawal.due_keys:
            withdrawal.due_keys.append(due)
