"""An operator's commands on one message: delete, return, hold, release, while deliveries run.

States of a recipient during a command::

    waiting or deferred ─▶ withdrawn: neither a worker nor a timer takes it ─▶ changed, when its batch is on disk
          │                    └──▶ as it was, when nothing could be written into the batch
          └──▶ busy: in a transaction, left alone and counted, for the reply of the peer is not known yet

Invariants:

- A message of many recipients is changed in steps of STEP, so that nothing else waits. What moves between two steps is found at its
  present place.
- What a step removes, and whether the message ends by it, is decided and submitted in one turn of the loop: a settle in between
  would decide on the same last recipient.
- Returned recipients are reported once, with the last step; deleted ones are not reported.
- ``due/`` and ``spill/`` keys that lead to no recipient any more are deleted with the last step (``_Removed``).
- What is held for a suspension is listed under its name, in the batch that holds it. ``hold`` takes it off the list, so that it stays
  held when the suspension ends.

Callers: the operations in ``admin.mail``, and ``HeldMail`` for suspensions.

Example: ``deleted, busy = await Operator(queue).delete(message, "b@b.example")`` is ``(0, 1)`` while that recipient is being sent to.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.events.schema import Released
from zonemta_py.queue import transitions
from zonemta_py.queue.commit import CommitFuture, DoneCallback, WriteBatch
from zonemta_py.queue.deferral import readable
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, Note, RecipientRecord
from zonemta_py.queue.messages import ActiveMessage, recipient_keys
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.queue.ready.window import ReadyWindow
from zonemta_py.queue.transitions import event_fields
from zonemta_py.smtp.reply_class import ReplyClass
from zonemta_py.storage.interface import Store

# ---- What an operator's commands do with each recipient: remove it, return it to the sender, hold it.

Selected = str | Sequence[bytes] | None  # of a message: an address, keys of recipients, or all


def is_selected(recipient: bytes, selected: Selected) -> bool:
    """True if the recipient with this key is one of ``selected``."""
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
    """The change that a command makes."""

    def skips(self, record: RecipientRecord) -> bool:
        """True if a recipient stays as it is."""
        return False

    @abstractmethod
    def write(self, withdrawal: Withdrawal, key: bytes, record: RecipientRecord) -> None:
        """Write the transition of one recipient into the batch."""

    def finish(self, withdrawal: Withdrawal) -> None:
        """Write what follows from all steps; not called when the message has ended. Raises LocalError."""
        return


class Deletion(Change):
    """Recipients are removed without a report."""

    def __init__(self, queue: Queue) -> None:
        self._now_ms = queue.now()

    def write(self, withdrawal: Withdrawal, key: bytes, record: RecipientRecord) -> None:
        active = withdrawal.active
        transitions.delete(withdrawal.batch, active.meta, key, record, self._now_ms)
        active.remaining -= 1


class Return(Change):
    """Recipients fail, and the sender gets a report: one on all of them, with the last step."""

    def __init__(self, queue: Queue, reason: str) -> None:
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

    def __init__(self, queue: Queue, reason: str, suspension: str = "", by: str = "") -> None:
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
        batch, meta = withdrawal.batch, withdrawal.active.meta
        transitions.hold(batch, meta, key, record, self._reason, self._now_ms, self._by)
        zone, message, address = keys.parse_recipient(key)
        if self._suspension:
            held = keys.held_key(self._suspension, keys.deferred_key(zone, message, address))
            withdrawal.batch.put(held, b"")
        due = keys.due_key(keys.HELD_MS, zone, message)
        if due not in withdrawal.due_keys:
            withdrawal.due_keys.append(due)


# ---- The list of what is held for suspensions (``HeldMail``): a command on the mail itself comes before it.


def suspensions_with_mail(store: Store) -> Iterator[str]:
    """The suspensions for which recipients are listed as held."""
    start = keys.META_HELD
    while key := next(store.keys(start, keys.end_of(keys.META_HELD)), None):
        name, _ = keys.parse_held(key)
        yield name
        start = keys.end_of(keys.held_prefix(name))


def suspension_of(store: Store, recipient: bytes) -> str:
    """The name of the suspension for which a recipient is held, by its DEFERRED key; empty for none.

    It may be over: what is held for it is released by the running relay, or at the next start.
    """
    names = suspensions_with_mail(store)
    return next((each for each in names if store.get(keys.held_key(each, recipient)) is not None), "")


async def keep_held(queue: Queue, message: str, zones: Iterable[str], selected: Selected) -> set[bytes]:
    """Let recipients stay held when the suspensions end for which they are; returns their keys."""
    store, batch, kept = queue.store, WriteBatch(), set[bytes]()
    for name in suspensions_with_mail(store):
        for zone in zones:
            prefix = keys.held_key(name, keys.deferred_key(zone, message, ""))
            for key in store.keys(prefix, keys.end_of(prefix)):
                recipient = keys.parse_held(key)[1]
                if is_selected(recipient, selected):
                    batch.delete(key)
                    kept.add(recipient)
    if kept:
        await queue.commits.submit(batch)
    return {recipient for recipient in kept if store.get(recipient) is not None}


# ---- The commands.

STEP = 250  # recipients in one turn of the loop and one batch

_Step = list[tuple[bytes, RecipientRecord]]


class _Removed:
    """Places that recipients have left: their ``due/`` and ``spill/`` keys may lead to no recipient any more."""

    def __init__(self, queue: Queue, active: ActiveMessage) -> None:
        self._queue = queue
        self._message = active.id
        self._others = active.remaining  # recipients that have not left theirs
        self._times: dict[str, set[int]] = {}  # by zone
        self._destinations: set[tuple[str, str]] = set()

    def add(self, waiting: Iterable[bytes], deferred: Mapping[bytes, int]) -> None:
        """These keys are removed; ``deferred`` with their due times."""
        waiting = list(waiting)
        self._others -= len(waiting) + len(deferred)
        self._destinations.update(self._queue.windows.destination_of_key(key) for key in waiting)
        for key, due_ms in deferred.items():
            self._times.setdefault(keys.parse_recipient(key)[0], set()).add(due_ms)

    def delete_unused(self, batch: WriteBatch, removed: Container[bytes]) -> None:
        """Delete what leads to no recipient. ``removed``: the keys that ``batch`` removes."""
        queue = self._queue
        queue.windows.delete_unused_spills(batch, self._message, self._destinations, removed)
        for zone, times in self._times.items():
            if self._others:
                queue.deferral.delete_unused_due_keys(batch, zone, self._message, times, removed)
            else:  # the range of a message without recipients ends at the next one, behind all tombstones
                queue.deferral.delete_due_keys(batch, zone, self._message, times)


class Operator:
    """The operator's verbs of ``queue``, for some recipients of a message, or all. Each raises QueueUnavailable, QueueCorrupt."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def delete(self, message: str, selected: Selected = None) -> tuple[int, int]:
        """Remove recipients; returns (removed, left because in flight)."""
        return await self._change(message, selected, Deletion(self._queue))

    async def bounce(
        self, message: str, selected: Selected = None, reason: str = "returned by the operator"
    ) -> tuple[int, int]:
        """Return recipients to the sender as failed; returns (returned, left because in flight)."""
        return await self._change(message, selected, Return(self._queue, reason))

    async def hold(self, message: str, selected: Selected = None, by: str = "") -> tuple[int, int]:
        """Hold recipients; returns (held, left because in flight). ``by``: a tenant, empty for the operator.

        Those that are held for a suspension stay held when that ends, and count. What a tenant holds, the operator takes over.
        """
        if not self._exists(message):
            return 0, 0
        active = self._queue.acquire_message(message)
        try:
            kept = await keep_held(self._queue, message, active.meta.zones, selected)
            taken = await self._take_over(active, selected, kept, by)
        finally:
            self._queue.release_message(active)
        held, busy = await self._change(
            message, selected, Hold(self._queue, transitions.holder(by), by=by)
        )
        return held + len(kept) + taken, busy

    async def _take_over(
        self, active: ActiveMessage, selected: Selected, kept: Container[bytes], by: str
    ) -> int:
        """Hold for ``by`` what is held already: ``kept`` of a suspension, and for the operator what a tenant holds.

        Returns how many of these.
        """
        queue, taken, now_ms = self._queue, 0, self._queue.now()
        for step, _ in self._steps(active, selected, (keys.DEFERRED,)):
            batch = WriteBatch()
            for key, record in step:
                is_of_tenant = bool(record.held_by) and not by
                if record.due_ms != keys.HELD_MS or key in queue.deferral.moving:
                    continue
                if is_of_tenant or (key in kept and record.held_by != by):
                    transitions.hold_for_other(batch, active.meta, key, record, by, now_ms)
                    taken += is_of_tenant
            if batch.ops:
                await queue.commits.submit(batch)
        return taken

    async def hold_for(
        self, suspension: str, message: str, waiting: Sequence[bytes] | None, reason: str
    ) -> int:
        """Hold recipients of a message, by their keys, or all, until ``suspension`` ends (``HeldMail``); returns how many."""
        return (await self._change(message, waiting, Hold(self._queue, reason, suspension)))[0]

    async def release(
        self, message: str, selected: Selected = None, suspension: str = "", by: str = ""
    ) -> int:
        """Make held recipients of a message ready now; returns how many.

        ``suspension``: those that are listed as held for it, as long as it is not suspended again. ``by``: those that this
        tenant holds.
        """
        queue, now_ms, count = self._queue, self._queue.now(), 0
        if not self._exists(message):
            return 0
        active = queue.acquire_message(message)
        try:
            gone = _Removed(queue, active)
            for step, is_last in self._steps(active, selected, (keys.DEFERRED, keys.WAITING)):
                if suspension and suspension in queue.suspended:
                    break
                batch, woken, held = WriteBatch(), list[QueuedRecipient](), dict[bytes, int]()
                for key, record in step:
                    if key in queue.deferral.moving:
                        continue
                    if suspension:
                        listed = keys.held_key(suspension, key)
                        if queue.store.get(listed) is None:  # an operator holds it
                            continue
                        batch.delete(listed)
                    if record.due_ms != keys.HELD_MS or (by and record.held_by != by):
                        continue
                    zone, _, found = keys.parse_recipient(key)
                    fresh = record._replace(uncertain=0)
                    woken.append(transitions.wake(batch, zone, message, found, fresh))
                    held[key] = record.due_ms
                    batch.record(Released(**event_fields(active.meta, key, record, now_ms)))
                if woken and selected is None and not by and active.meta.options.quarantined:
                    options = active.meta.options._replace(quarantined=False)
                    active.meta = active.meta._replace(version=FORMAT, options=options)
                    batch.put_record(keys.meta_key(message), active.meta)
                gone.add((), held)
                if is_last:
                    gone.delete_unused(batch, held)
                if batch.ops:
                    await queue.deferral.commit(batch, woken)
                count += len(woken)
        finally:
            queue.release_message(active)
        return count

    def _exists(self, message: str) -> bool:
        return self._queue.store.get(keys.meta_key(message)) is not None

    def _steps(
        self,
        active: ActiveMessage,
        selected: Selected,
        spaces: Sequence[bytes] = (keys.WAITING, keys.DEFERRED),
    ) -> Iterator[tuple[_Step, bool]]:
        """Recipients of a message by key, STEP at a time, and whether they are the last. ``spaces``: where to look first.

        Between two steps the loop may turn: what has moved since is found at its present place.
        """
        store, zones = self._queue.store, active.meta.zones
        if selected is None:
            with store.frozen() as view:
                found = list(recipient_keys(view, active, spaces))
        elif not isinstance(selected, str):
            found = list(selected)
        else:
            places = [
                place(zone, active.id, selected)
                for zone in zones
                for place in (keys.waiting_key, keys.deferred_key)
            ]
            found = [key for key in places if store.get(key) is not None]
        for at in range(0, max(1, len(found)), STEP):
            step = [self._present(key) for key in found[at : at + STEP]]
            yield [each for each in step if each is not None], at + STEP >= len(found)

    def _present(self, key: bytes) -> tuple[bytes, RecipientRecord] | None:
        """The recipient that was at ``key``, at its present key; None when it is settled or damaged."""
        value = self._queue.store.get(key)
        if value is None:
            place = keys.deferred_key if key.startswith(keys.WAITING) else keys.waiting_key
            key = place(*keys.parse_recipient(key))
            value = self._queue.store.get(key)
        record = readable(key, value) if value is not None else None
        return (key, record) if record is not None else None

    async def _change(self, message: str, selected: Selected, change: Change) -> tuple[int, int]:
        """Take matching recipients out of window and timer, and ``change`` them."""
        if not self._exists(message):
            return 0, 0
        queue, changed, busy = self._queue, 0, 0
        active = queue.acquire_message(message)
        try:
            gone = _Removed(queue, active)
            for found, is_last in self._steps(active, selected):
                withdrawal = self._withdraw(active.id, found, change, gone, is_last=is_last)
                await self._submit(withdrawal)
                changed, busy = changed + withdrawal.count, busy + withdrawal.busy
                await queue.reporting.prepare(active)  # the last step reports
        finally:
            queue.reporting.forget(active)
            queue.release_message(active)
        return changed, busy

    def _withdraw(
        self, message: str, step: _Step, change: Change, gone: _Removed, *, is_last: bool
    ) -> Withdrawal:
        """Take recipients out of window and timer, and write their ``change`` and what follows from it."""
        queue = self._queue
        active = queue.acquire_message(message)
        withdrawal, remaining, notes = Withdrawal(active), active.remaining, list(active.notes)
        try:
            for key, record in step:
                if change.skips(record):
                    continue
                if key.startswith(keys.DEFERRED) and key not in queue.deferral.moving:
                    withdrawal.deferred[key] = record.due_ms
                elif key.startswith(keys.WAITING) and self._window_of(key).withdraw(key):
                    withdrawal.waiting.append(key)
                else:
                    withdrawal.busy += 1
                    continue
                change.write(withdrawal, key, record)
            gone.add(withdrawal.waiting, withdrawal.deferred)
            if is_last:
                gone.delete_unused(withdrawal.batch, {*withdrawal.waiting, *withdrawal.deferred})
            if active.remaining == 0 < remaining:
                withdrawal.callbacks += queue.reporting.end_message(withdrawal.batch, active)
            elif is_last and active.remaining:
                change.finish(withdrawal)
        except BaseException:
            active.remaining, active.notes = remaining, notes
            self._restore(withdrawal)
            raise
        queue.deferral.moving.update(withdrawal.deferred)
        return withdrawal

    def _window_of(self, key: bytes) -> ReadyWindow:
        return self._queue.windows.zone(keys.parse_recipient(key)[0])

    def _restore(self, withdrawal: Withdrawal) -> None:
        """Nothing was written: the recipients stay as they were."""
        for key in withdrawal.waiting:
            self._window_of(key).restore(key)
        self._queue.release_message(withdrawal.active)

    def _submit(self, withdrawal: Withdrawal) -> CommitFuture:
        """Write the batch of ``withdrawal``."""
        queue, batch = self._queue, withdrawal.batch
        if not batch.ops:
            self._restore(withdrawal)
            batch.future.finish()
            return batch.future
        for due in withdrawal.due_keys:
            queue.deferral.expect(due)
        for callback in withdrawal.callbacks:
            batch.future.add_done_callback(callback)
        batch.future.add_done_callback(partial(self._written, withdrawal))
        return queue.commits.submit(batch)

    def _written(self, withdrawal: Withdrawal, failure: QueueUnavailable | None) -> None:
        if failure is not None:
            return  # the next boot finds everything as it was
        queue = self._queue
        queue.message_written(withdrawal.active)
        queue.release_message(withdrawal.active)
        queue.deferral.moving.difference_update(withdrawal.deferred)
        for key in withdrawal.waiting:
            self._window_of(key).forget([key])
        for due in withdrawal.due_keys:
            queue.deferral.written(due)
