"""What ends a transaction: one batch with all that follows from its outcomes (decision 4)."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue import transitions
from zonemta_py.queue.active import ActiveMessage, Lease
from zonemta_py.queue.batch import CommitFuture, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import starts
from zonemta_py.queue.outcome import Outcome, SettleEffects, classify_outcomes

if TYPE_CHECKING:
    from zonemta_py.queue.queue import Queue

MESSAGE_OVERHEAD_BYTES = 1024  # of a message on disk, without header and body


class Settlement:
    """The part of ``queue`` that settles leases."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue

    def settle(
        self, lease: Lease, outcomes: Sequence[Outcome], effects: SettleEffects, now_ms: int | None
    ) -> CommitFuture:
        """See ``Queue.settle``."""
        queue, active = self._queue, lease.active
        now_ms = queue.now() if now_ms is None else now_ms
        batch = WriteBatch()
        outcomes = classify_outcomes(queue.classifier, outcomes)
        if outcomes:
            transitions.settle(
                batch, active.meta, lease.number, outcomes, effects.failure_report, now_ms
            )
        elif lease.number is not None:
            batch.delete(keys.inflight_key(active.id, lease.number))
        if effects.warned:
            active.meta = transitions.warn(batch, active.id, active.meta)
        if queue.is_last(active, outcomes):
            active.remaining = 0
            transitions.last(batch, active.id, active.mark.chunks, active.notes)
        else:
            active.remaining -= removed_count(outcomes)
            active.notes += effects.notes
            for note in effects.notes:
                transitions.note(batch, active.id, note)
        accepted = queue.reporting.add_effects(batch, effects)
        settled = {outcome.recipient.key for outcome in outcomes}
        untried = [recipient for recipient in lease.recipients if recipient.key not in settled]
        if untried:
            queue.windows.zone(lease.zone).put_back(lease.destination, untried)
        for due in transitions.due_keys(outcomes):
            queue.deferral.expect(due)
        batch.future.add_done_callback(partial(self._on_disk, lease, outcomes))
        for callback in accepted:
            batch.future.add_done_callback(callback)
        return queue.commits.submit(batch)

    def _on_disk(
        self, lease: Lease, outcomes: Sequence[Outcome], failure: QueueUnavailable | None
    ) -> None:
        if failure is not None:
            return  # the lease stays: the next boot finds everything as it was
        queue = self._queue
        queue.windows.zone(lease.zone).forget(outcome.recipient.key for outcome in outcomes)
        if outcomes:
            meta = lease.active.meta
            age_s = (queue.now() - starts(meta, lease.active.id)) / 1000
            tenant = meta.origin.tenant
            queue.traffic.settled(lease.zone, lease.destination, tenant, outcomes, max(0.0, age_s))
        for due in transitions.due_keys(outcomes):
            queue.deferral.written(due)
        self.message_written(lease.active)
        queue.release_message(lease.active)

    def message_written(self, active: ActiveMessage) -> None:
        """See ``Queue.message_written``."""
        if active.remaining == 0:
            cleanup, mark = self._queue.cleanup, active.mark
            if mark.chunks > 1:
                cleanup.add(active.id)  # the store counts the chunks
            size_bytes = mark.size if mark.chunks == 1 else 0
            cleanup.removed(size_bytes + len(active.meta.header) + MESSAGE_OVERHEAD_BYTES)


def removed_count(outcomes: Sequence[Outcome]) -> int:
    """How many recipients leave the message by ``outcomes``."""
    return sum(1 for outcome in outcomes if outcome.kind is not OutcomeKind.DEFERRED)
