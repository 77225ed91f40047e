"""The queue: its verbs, and no other door to it.

    open_message · accept · lease · start · settle · release · flush · check
    operator: delete · hold · release

``settle`` carries the outcomes of one transaction (delivered, deferred, bounced, expired) in one
batch, because they are one transition (decision 4). Decisions are plain ``def``; the returned
future says when the batch is on disk. In memory there is nothing that a crash may not take.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError, QueueUnavailable
from zonemta_py.core.model import OutcomeKind
from zonemta_py.core.tasks import Background
from zonemta_py.events.schema import Event
from zonemta_py.queue import transitions
from zonemta_py.queue.accept import MessageAcceptance, NewMessage, compose
from zonemta_py.queue.active import ActiveMessage, ActiveMessages, Lease, read_message, rest_of
from zonemta_py.queue.batch import CommitFuture, DoneCallback, GroupCommit, WriteBatch
from zonemta_py.queue.chunks import MessageWriter, Upload, read_body
from zonemta_py.queue.deferral import Deferral
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.ids import MessageIds
from zonemta_py.queue.format.records import Note
from zonemta_py.queue.idempotency import IdempotencyKeys
from zonemta_py.queue.spill import DestinationOf, OnReady, ReadyWindows, ignore_ready
from zonemta_py.queue.transitions import NO_EFFECTS, Outcome, SettleEffects
from zonemta_py.queue.upkeep.cleanup import Cleanup
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.queue.upkeep.recovery import identify, recover
from zonemta_py.queue.upkeep.startup_scan import scan_zone, zones_on_disk
from zonemta_py.storage.interface import Store


class Reports(Protocol):
    """Composes the report on noted failures when a message ends without a settle."""

    def report(self, queue: "Queue", active: ActiveMessage, notes: Sequence[Note]) -> SettleEffects:
        """What the batch that ends ``active`` has to cause."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """``window``: recipients per zone in memory. ``poison_after``: see ``InterruptedDeliveries``."""

    sync: bool = True
    window: int = 100_000
    body_cache_bytes: int = 0
    poison_after: int = 3


class Queue:
    """An open queue. Make it with ``open_queue``; call ``begin`` once a loop runs."""

    def __init__(
        self,
        store: Store,
        options: QueueOptions,
        destination_of: DestinationOf,
        *,
        reports: Reports | None = None,
        on_ready: OnReady = ignore_ready,
        now: Callable[[], int] = clock.now_ms,
    ) -> None:
        try:
            identity = identify(store)
        except LocalError:
            store.close()
            raise
        self.store = store
        self.node = identity.node
        self.boot = identity.boot
        self.poison_after = options.poison_after
        self.now = now
        self.ids = MessageIds(identity.node, identity.last_id)
        self._newest_before = identity.last_id
        first_seq = (identity.boot << 40) + 1  # grows for ever without being stored
        self.commits = GroupCommit(store, self.ids, identity.node, first_seq, sync=options.sync)
        self.windows = ReadyWindows(store, self.commits, options.window, destination_of, on_ready)
        self.deferral = Deferral(store, self.commits, self.windows, now)
        self.cleanup = Cleanup(store, self.commits)
        self.idempotency_keys = IdempotencyKeys(store, self.commits, now)
        self._live = ActiveMessages(options.body_cache_bytes)
        self.acceptance = MessageAcceptance(
            self.windows, self.deferral, self._live, self.idempotency_keys, now
        )
        self.operator = Operator(self)
        self._reports = reports
        self.uploads: WeakValueDictionary[str, Upload] = WeakValueDictionary()
        self._transactions = 0
        self.background = Background()

    async def recover(self) -> None:
        """Start to write, and deal with what the last life left. Before anything else."""
        self.commits.start()
        await recover(self.store, self.commits, self.cleanup, self.poison_after, self.now())

    async def begin(self) -> None:
        """Wake, clean and scan in the background."""
        self.background.start(self.deferral.run(), "deferral")
        self.background.start(self.cleanup.run(), "cleanup")
        self.background.start(self.idempotency_keys.run(), "submissions")
        self.background.start(self.cleanup.keep_sweeping(self.uploads, self.now), "sweep")
        for zone in zones_on_disk(self.store):
            self.background.start(
                scan_zone(self.store, self.commits, self.windows, zone, self._newest_before),
                f"scan-{zone}",
            )

    @property
    def scanning(self) -> int:
        """How many zones the start-up scan has still to go through."""
        return self.background.running("scan-")

    @property
    def failure(self) -> QueueUnavailable | None:
        """Why nothing can be written any more."""
        return self.commits.failure

    # ---- intake

    def open_message(self) -> MessageWriter:
        """A writer for a body; ``accept`` or ``abort`` ends it."""
        return MessageWriter(self.ids.next(self.now()), self.boot, self.commits, self.uploads)

    def accept(self, upload: Upload, new: NewMessage) -> CommitFuture:
        """Take responsibility: when the batch is on disk, so is the whole message.

        Its chunks went before it, and nothing is written behind a failed write.
        """
        batch = WriteBatch()
        if upload.abandoned:
            if new.key is not None:
                self.idempotency_keys.release(new.key[0])
            batch.future.set_exception(QueueUnavailable(f"{upload.id}: its chunks were swept"))
            return batch.future
        last = upload.last
        tail = [last] if last else []
        batch.future.add_done_callback(
            self.acceptance.plan(batch, compose(upload.id, new, upload.mark(self.now()), tail))
        )
        return self.commits.submit(batch)

    def abort(self, upload: Upload) -> CommitFuture | None:
        """The body will not be finished; its chunks go. If that cannot be written, the sweep finds them."""
        if not upload.chunks:
            return None
        batch = WriteBatch()
        batch.delete(keys.open_key(upload.id))
        batch.put(keys.cleanup_key(upload.id), b"")
        batch.future.add_done_callback(
            lambda failure: self.cleanup.add(upload.id) if failure is None else None
        )
        return self.commits.submit(batch)

    def record(self, event: Event) -> None:
        """Put a fact that belongs to no accepted message into the ledger."""
        batch = WriteBatch()
        batch.record(event)
        self.commits.submit(batch)

    # ---- delivery

    def lease(self, zone: str, destination: str, most: int) -> Lease | None:
        """Up to ``most`` recipients of the oldest message at ``destination``, or None.

        Raises QueueCorrupt for a message that cannot be read; its recipients stay where they are
        on disk and are not offered again in this life.
        """
        window = self.windows.zone(zone)
        self.windows.refill(zone, destination)
        recipients = window.take(destination, most)
        if not recipients and window.may_refill(destination):  # it was full of what an operator took out
            self.windows.refill(zone, destination)
            recipients = window.take(destination, most)
        window.note_starved(destination)
        self.windows.feed(zone)
        if not recipients:
            return None
        return Lease(self.acquire_message(recipients[0].message), zone, destination, recipients)

    def acquire_message(self, message: str) -> ActiveMessage:
        """The live entry of ``message``, with one lease more."""
        active = self._live.get(message)
        if active is not None:
            active.leases += 1
            return active
        with self.store.frozen() as view:  # a wake committed between two reads would be counted nowhere
            meta, mark = read_message(view, message)
            remaining, notes = rest_of(view, message, meta.zones)
        active = ActiveMessage(message, meta, mark, None, remaining, notes)
        active.leases = 1
        self._live.add(active)
        return active

    def release_message(self, active: ActiveMessage) -> None:
        """A lease of ``active`` has ended and its commit is on disk."""
        self._live.release_message(active)

    def start(self, lease: Lease) -> CommitFuture:
        """A transaction begins; the batch must be on disk before the final dot goes out."""
        lease.number = self.next_transaction()
        batch = WriteBatch()
        transitions.start(batch, lease.active.id, lease.number, lease.recipients, self.boot, self.now())
        return self.commits.submit(batch)

    def next_transaction(self) -> int:
        """A number that no other transaction of this boot has."""
        self._transactions += 1
        return self._transactions

    def body(self, active: ActiveMessage) -> Iterator[bytes]:
        """The body in chunks. Raises QueueCorrupt before a damaged one is complete."""
        if active.body is not None:
            return iter((active.body,)) if active.body else iter(())
        return read_body(self.store, active.id, active.mark)

    def settle(
        self, lease: Lease, outcomes: Sequence[Outcome], after: SettleEffects = NO_EFFECTS
    ) -> CommitFuture:
        """End a transaction. Leased recipients without an outcome go back to the front.

        What ``after`` names is in the same batch: a report is accepted or a note written with the
        removal of the recipients it is about.
        """
        active, now_ms = lease.active, self.now()
        batch = WriteBatch()
        if outcomes:
            transitions.settle(batch, active.meta, lease.number, outcomes, after.failure_report, now_ms)
        elif lease.number is not None:
            batch.delete(keys.inflight_key(active.id, lease.number))
        for fact in after.facts:
            batch.record(fact)
        if after.warned:
            active.meta = transitions.warn(batch, active.id, active.meta)
        if self.ends(active, outcomes):
            active.remaining = 0
            transitions.last(batch, active.id, active.mark.chunks, active.notes)
        else:
            active.remaining -= sum(
                1 for outcome in outcomes if outcome.kind is not OutcomeKind.DEFERRED
            )
            active.notes += after.notes
            for failure in after.notes:
                transitions.note(batch, active.id, failure)
        reports = [self.acceptance.plan(batch, report) for report in after.reports]
        settled = {outcome.recipient.key for outcome in outcomes}
        untried = [recipient for recipient in lease.recipients if recipient.key not in settled]
        if untried:
            self.windows.zone(lease.zone).give_back(lease.destination, untried)
        for due in transitions.due_keys(outcomes):
            self.deferral.expect(due)
        batch.future.add_done_callback(partial(self._settled, lease, outcomes))
        for then in reports:
            batch.future.add_done_callback(then)
        return self.commits.submit(batch)

    @staticmethod
    def ends(active: ActiveMessage, outcomes: Sequence[Outcome]) -> bool:
        """Whether nobody is left once these ``outcomes`` are settled."""
        gone = sum(1 for outcome in outcomes if outcome.kind is not OutcomeKind.DEFERRED)
        assert gone <= active.remaining
        return gone == active.remaining

    def _settled(
        self, lease: Lease, outcomes: Sequence[Outcome], failure: QueueUnavailable | None
    ) -> None:
        if failure is not None:
            return  # the lease stays: the next life of the queue finds everything as it was
        self.windows.zone(lease.zone).forget(outcome.recipient.key for outcome in outcomes)
        for due in transitions.due_keys(outcomes):
            self.deferral.arrived(due)
        self.gone(lease.active)
        self.release_message(lease.active)

    def gone(self, active: ActiveMessage) -> None:
        """A batch about ``active`` is on disk: if it was the last, its chunks and its room can go."""
        if active.remaining == 0:
            if active.mark.chunks > 1:
                self.cleanup.add(active.id)
            self.cleanup.removed(active.mark.size + len(active.meta.header) + 1024)

    def end(self, batch: WriteBatch, active: ActiveMessage) -> list[DoneCallback]:
        """The last recipient of ``active`` goes by ``batch`` without a settle; noted failures are reported.

        Returns what is to be called when the batch is on disk.
        """
        after = NO_EFFECTS
        if active.notes:
            if self._reports is None:
                raise LocalError(f"{active.id}: the queue was opened without a composer of reports")
            after = self._reports.report(self, active, active.notes)
        for fact in after.facts:
            batch.record(fact)
        transitions.last(batch, active.id, active.mark.chunks, active.notes)
        return [self.acceptance.plan(batch, report) for report in after.reports]

    def narrow(self, lease: Lease, most: int) -> None:
        """Give all but the first ``most`` recipients of a lease back. Before it is started."""
        back = lease.recipients[most:]
        del lease.recipients[most:]
        self.windows.zone(lease.zone).give_back(lease.destination, back)

    def release(self, lease: Lease) -> CommitFuture:
        """Nothing was attempted: the recipients go back to the front."""
        return self.settle(lease, ())

    async def close(self) -> None:
        """Stop the background work, write what waits, close the database."""
        await self.background.stop()
        await self.commits.close()
        await self.cleanup.close()
        if self.store.is_remote():
            await asyncio.to_thread(self.store.close)
        else:
            self.store.close()
