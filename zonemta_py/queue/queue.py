"""The queue: its verbs, and the only way to change it.

    open_message · accept · abort · lease · start · settle · release

An operator's changes are in ``upkeep.operator``.

``settle`` carries the outcomes of one transaction (delivered, deferred, bounced, expired) in one batch,
because they are one transition (decision 4). Verbs are plain ``def``; the future they return is done when
the batch is on disk. All that must survive a crash is in the store.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from zonemta_py.core import clock
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueUnavailable
from zonemta_py.core.logs import RepeatedLines
from zonemta_py.core.model import OutcomeKind, PoolKey
from zonemta_py.core.runtime import BackgroundTasks
from zonemta_py.events.schema import Event, Rejected, first_seq
from zonemta_py.queue import transitions
from zonemta_py.queue.accept import Acceptor, NewMessage, compose
from zonemta_py.queue.census import Census, CensusScan, zones_on_disk, zones_to_scan
from zonemta_py.queue.commit import CommitFuture, DoneCallback, GroupCommit, WriteBatch
from zonemta_py.queue.deferral import Deferral
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.keys import MessageIds, last_id_before
from zonemta_py.queue.format.records import FORMAT, Inflight, Note, RecipientRecord, starts
from zonemta_py.queue.messages import ActiveMessage, ActiveMessages, Bodies, Lease, MessageWriter, Upload
from zonemta_py.queue.outcome import (
    NO_EFFECTS,
    AcceptedMessage,
    Outcome,
    SettleEffects,
    classify_outcomes,
)
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.queue.ready.windows import DestinationOf, OnReady, ReadyWindows, ignore_ready
from zonemta_py.queue.submitters.domains import Verifications
from zonemta_py.queue.submitters.keys import SubmissionKeys
from zonemta_py.queue.submitters.limits import IntakeLimiter, RecentLogins, WrongPasswords
from zonemta_py.queue.suspensions import Suspensions
from zonemta_py.queue.traffic import Traffic
from zonemta_py.queue.upkeep.cleanup import Cleanup
from zonemta_py.queue.upkeep.startup import (
    Identity,
    InterruptedDeliveries,
    recover,
    scan_again,
    scan_zone,
)
from zonemta_py.smtp.reply_class import NO_RULES
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)


# ---- What a queue is opened with.

LONGEST_DELAY_MS = 400 * 86_400_000


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """``window``: recipients per zone in memory. ``poison_after``: see ``InterruptedDeliveries``.

    ``longest_delay_ms``: see ``Deferral``.
    """

    sync: bool = True
    window: int = 100_000
    body_cache_bytes: int = 0
    poison_after: int = 3
    longest_delay_ms: int = LONGEST_DELAY_MS


class Reports(Protocol):
    """Composes the reports on failures that are not the outcome of a delivery."""

    def notes(self, active: ActiveMessage, outcomes: Sequence[Outcome]) -> Sequence[Note]:
        """The notes on ``outcomes`` that are to be reported, as NOTIFY of each recipient asks; empty for none."""

    async def prepare(self, queue: "Queue", active: ActiveMessage) -> None:
        """Prepare the report on the failures that were noted of ``active``, with turns of the loop if there are many.

        ``forget`` follows.
        """

    def forget(self, active: ActiveMessage) -> None:
        """Forget what ``prepare`` has made: the report is composed, or not needed."""

    def report(self, queue: "Queue", active: ActiveMessage, notes: Sequence[Note]) -> SettleEffects:
        """The effects (reports, events, digests) for the batch that ends ``active``, or removes ``notes``, at least one."""


# ---- Writing reports into batches: what settles recipients, or ends a message, accepts the reports on them.


class ReportWriter:
    """Adds reports to batches of ``queue``. ``reports`` None: it was opened without a composer."""

    def __init__(self, queue: "Queue", reports: Reports | None, acceptor: Acceptor) -> None:
        self._queue = queue
        self._reports = reports
        self._acceptor = acceptor

    @property
    def composer(self) -> Reports:
        """The composer of reports. Raises LocalError when the queue was opened without one."""
        if self._reports is None:
            raise LocalError("the queue was opened without a composer of reports")
        return self._reports

    async def prepare(self, active: ActiveMessage) -> None:
        """Prepare the report that ``add_report`` or ``end_message`` may add, if it is on many recipients; then ``forget``."""
        if self._reports is not None:
            await self._reports.prepare(self._queue, active)

    def forget(self, active: ActiveMessage) -> None:
        """Forget what was prepared."""
        if self._reports is not None:
            self._reports.forget(active)

    def add_effects(self, batch: WriteBatch, effects: SettleEffects) -> list[DoneCallback]:
        """Events, entries of digests and reports of ``effects``; returns the callbacks for the end of the batch."""
        for event in effects.events:
            batch.record(event)
        for key, entry in effects.digests:
            batch.put_record(key, entry)
        batch.put_latest(effects.puts)
        return self.accept(batch, effects.reports)

    def accept(self, batch: WriteBatch, reports: Sequence[AcceptedMessage]) -> list[DoneCallback]:
        """Accept ``reports`` by ``batch``; returns the callbacks for its end."""
        return [self._acceptor.add(batch, report) for report in reports]

    def add_report(
        self, batch: WriteBatch, active: ActiveMessage, notes: Sequence[Note]
    ) -> list[DoneCallback]:
        """Accept the report on ``notes``, if there are any, and remove them, by ``batch``.

        Returns the callbacks for the end of the batch. Raises LocalError.
        """
        if not notes:
            return []
        callbacks = self.add_effects(batch, self.composer.report(self._queue, active, notes))
        for note in notes:
            batch.delete(keys.bounce_key(active.id, note.recipient_index))
        return callbacks

    def end_message(self, batch: WriteBatch, active: ActiveMessage) -> list[DoneCallback]:
        """End ``active`` by ``batch`` without a settle; failures that were noted are reported.

        Returns the callbacks for the end of the batch. Raises LocalError.
        """
        callbacks = self.add_report(batch, active, active.notes)
        transitions.last(batch, active.id, active.mark.chunks, ())
        return callbacks


MESSAGE_OVERHEAD_BYTES = 1024  # of a message on disk, without header and body


def removed_count(outcomes: Sequence[Outcome]) -> int:
    """How many recipients leave the message by ``outcomes``."""
    count = 0
    for outcome in outcomes:
        count += outcome.kind is not OutcomeKind.DEFERRED
    return count


# ---- Messages whose header asks in vain: for a zone that there is not, or by a field that cannot be used. A log line says so.


class UnusableFields:
    """Counts the messages for unknown zones since the start; one line a minute for each zone or defect, and submitter."""

    def __init__(self) -> None:
        self.unknown_zones = 0
        self._lines = RepeatedLines(log)

    def add(self, new: NewMessage) -> None:
        """A message is being accepted."""
        if not new.unknown_zone and not new.ignored:
            return
        who = new.origin.owner or "a program"
        for defect in new.ignored:
            line = f"a field of a message of {who} is ignored: {defect}"
            self._lines.write((defect, who), logging.WARNING, partial(str, line))
        if not new.unknown_zone:
            return
        self.unknown_zones += 1
        zones = ", ".join(sorted({to.zone for to in new.recipients}))
        text = f"there is no zone '{new.unknown_zone}', which the header of a message of {who} names: it goes to {zones}"
        self._lines.write((new.unknown_zone, who), logging.WARNING, lambda: text)

    def close(self) -> None:
        """Write what was counted."""
        self._lines.flush()


# ---- queue

REJECTED = b'"event":"rejected"'


class Queue:
    """An open queue, after ``begin_boot``, which says its ``identity``; ``recover`` and ``begin`` follow, in a running loop."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        options: QueueOptions,
        destination_of: DestinationOf,
        *,
        reports: Reports | None = None,
        on_ready: OnReady = ignore_ready,
        now: Callable[[], int] = clock.now_ms,
    ) -> None:
        self.store = store
        self.node = identity.node
        self.boot = identity.boot
        self.classifier = NO_RULES
        self.poison_after = options.poison_after
        self._stopped = identity.stopped
        self._is_recovered = self._is_stopping = False
        self.now = now
        self.ids = MessageIds(identity.node, identity.last_id)
        self._newest_before = identity.last_id
        self.census = Census(identity.last_id or last_id_before(now()), destination_of)
        self.traffic = Traffic()
        self.unusable_fields = UnusableFields()
        self.commits = GroupCommit(
            store, self.ids, identity.node, first_seq(identity.boot), self.census, sync=options.sync
        )
        self.windows = ReadyWindows(store, self.commits, options.window, destination_of, on_ready)
        self.deferral = Deferral(store, self.commits, self.windows, now, options.longest_delay_ms)
        self.cleanup = Cleanup(store, self.commits)
        self.submission_keys = SubmissionKeys(store, self.commits, now)
        self._active = ActiveMessages(options.body_cache_bytes)
        self.bodies = Bodies(store, self._active)
        self._acceptor = Acceptor(
            self.windows, self.deferral, self._active, self.submission_keys, self.traffic, now
        )
        self.suspended = Suspensions(store, self.commits, now)
        self.verified = Verifications(store, self.commits, now)
        self.limits = IntakeLimiter(store, self.commits, now)
        self.wrong_passwords, self.recent_logins = WrongPasswords(), RecentLogins()
        self.reporting = ReportWriter(self, reports, self._acceptor)
        self.uploads: WeakValueDictionary[str, Upload] = WeakValueDictionary()
        self._accepting: set[str] = set()  # messages of several chunks whose batch is not yet on disk
        self._transactions = 0
        self.background = BackgroundTasks()

    async def recover(self, *, was_killed: bool = True) -> None:
        """Begin to write, and handle what the previous boot left behind. Before any other verb.

        ``was_killed``: false if the store has failed while this process used it. For that no message is to blame, nor for
        what a stop in order has interrupted.
        """
        self.commits.start()
        excused = self._stopped if was_killed else self.boot
        interrupted = InterruptedDeliveries(self.store, self.poison_after, self.now(), excused)
        await recover(self.store, self.commits, self.cleanup, interrupted)
        self._is_recovered = True

    async def begin(self) -> None:
        """Start the background tasks: timers, removal, sweep, start-up scan."""
        self.background.start(self.deferral.run(), "deferral")
        self.background.start(self.deferral.keep_rescuing(), "rescue")
        self.background.start(self.cleanup.run(), "cleanup")
        self.background.start(self.cleanup.keep_moving(), "moves")
        self.background.start(self.submission_keys.run(), "submissions")
        self.background.start(self.limits.run(), "limits")
        self.background.start(CensusScan(self.store, self.commits, self.census).run(), "census")
        self.background.start(self.cleanup.keep_sweeping(self.is_open, self.now), "sweep")
        again = scan_again(self.store, self.commits, self.windows, self.deferral, self.ids)
        self.background.start(again, "rereading")
        for zone in zones_to_scan(self.store):
            self.background.start(
                scan_zone(self.store, self.commits, self.windows, zone, self._newest_before),
                f"scan-{zone}",
            )

    @property
    def scanning(self) -> int:
        """The number of zones whose start-up scan has not ended."""
        return self.background.running("scan-")

    @property
    def counting(self) -> bool:
        """True if the census has not yet counted all recipients of earlier boots."""
        return self.background.running("census") > 0

    @property
    def failure(self) -> QueueUnavailable | None:
        """Why nothing can be written any more, or None."""
        return self.commits.failure

    # ---- intake

    def open_message(self) -> MessageWriter:
        """A writer for a body; ``accept`` or ``abort`` ends it."""
        return MessageWriter(self.ids.next(self.now()), self.boot, self.commits, self.uploads)

    def accept(self, upload: Upload, new: NewMessage) -> CommitFuture:
        """Take responsibility for a message: once the future is done, all of it is on disk.

        Its chunks were submitted before, and nothing is written after a failed write.
        """
        batch = WriteBatch()
        space = self.store.space()
        is_full = space is not None and space.free <= 0
        if upload.abandoned or is_full:
            if new.key is not None:
                self.submission_keys.release(new.key.digest)
            if is_full:
                self.abort(upload)
            what = "the store is full" if is_full else "its chunks are not complete"
            batch.future.finish(QueueUnavailable(f"{upload.id}: {what}"))
            return batch.future
        if upload.chunks:
            self._accepting.add(upload.id)
            batch.future.add_done_callback(lambda _: self._accepting.discard(upload.id))
        last = upload.last
        accepted = compose(upload.id, new, upload.mark(self.now()), [last] if last else [])
        batch.future.add_done_callback(self._acceptor.add(batch, accepted))
        self.unusable_fields.add(new)
        return self.commits.submit(batch)

    def set_zones(self, zones: frozenset[str]) -> None:
        """Accept mail for other zones, to which it was routed before they were removed, into the zone ``default``."""
        self._acceptor.zones = zones

    def zones_with_mail(self) -> set[str]:
        """The zones that have recipients, or will have: what they are accepted with is being written."""
        return zones_on_disk(self.store) | {z for z, n in self._acceptor.zones_entered.items() if n}

    def is_open(self, message: str) -> bool:
        """True if a body of several chunks is being received, or accepted."""
        return message in self.uploads or message in self._accepting

    def abort(self, upload: Upload) -> CommitFuture | None:
        """Discard a body that was not accepted: remove its chunks. None when it has none on disk.

        If that cannot be written, the sweep of the next boot finds them.
        """
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
        """Write an event that belongs to no accepted message."""
        if isinstance(event, Rejected):
            self.traffic.rejected[event.command, event.code] += event.count
        batch = WriteBatch()
        batch.record(event)
        self.commits.submit(batch)

    def record_encoded(self, event: bytes) -> None:
        """As ``record``, for an event that another process has encoded."""
        if event.startswith(REJECTED):
            refused = from_json(b"{" + event + b"}")
            self.traffic.rejected[refused["command"], refused["code"]] += refused["count"]
        batch = WriteBatch()
        batch.events.append(event)
        self.commits.submit(batch)

    # ---- delivery

    def lease(
        self, zone: str, destination: str, limit: int, pool_key: PoolKey | None = None
    ) -> Lease | None:
        """Up to ``limit`` recipients of the oldest message at ``destination`` that leaves from ``pool_key`` (None: any), or None.

        Raises QueueCorrupt for a message that cannot be read; its recipients stay on disk, and are offered again by the next
        start, or by ``scan_again``.
        """
        window = self.windows.zone(zone)
        self.windows.refill(zone, destination)
        recipients = window.take(destination, limit, pool_key)
        # The window may hold withdrawn ones only.
        if not recipients and window.refills.may_refill(destination):
            self.windows.refill(zone, destination)
            recipients = window.take(destination, limit, pool_key)
        self.windows.feed(zone)
        if not recipients:
            return None
        try:
            active = self.acquire_message(recipients[0].message)
        except QueueCorrupt:
            window.forget([each.key for each in recipients])
            raise
        return Lease(active, zone, destination, recipients)

    def acquire_message(self, message: str) -> ActiveMessage:
        """The entry of ``message`` with one lease more. Raises QueueCorrupt."""
        return self._active.acquire(self.store, message)

    def release_message(self, active: ActiveMessage) -> None:
        """A lease of ``active`` has ended and its commit is on disk."""
        self._active.release(active)

    def start(self, lease: Lease) -> CommitFuture:
        """A transaction begins; the future must be done before the final dot is sent."""
        lease.number = self.next_transaction()
        batch = WriteBatch()
        transitions.start(batch, lease.active.id, lease.number, lease.recipients, self.boot, self.now())
        return self.commits.submit(batch)

    def next_transaction(self) -> int:
        """A number unique among the transactions of this boot."""
        self._transactions += 1
        return self._transactions

    def narrow(self, lease: Lease, limit: int) -> None:
        """Release all but the first ``limit`` recipients of a lease that was not started."""
        released = lease.recipients[limit:]
        del lease.recipients[limit:]
        self.windows.zone(lease.zone).put_back(lease.destination, released)

    def release(self, lease: Lease) -> CommitFuture:
        """Nothing was attempted: the recipients go back to the front."""
        return self.settle(lease, ())

    def settle(
        self,
        lease: Lease,
        outcomes: Sequence[Outcome],
        effects: SettleEffects = NO_EFFECTS,
        now_ms: int | None = None,
    ) -> CommitFuture:
        """End a transaction. Leased recipients without an outcome go back to the front.

        The ``effects`` are in the same batch: a report is accepted, or a note written, with the removal
        of the recipients that it is about. ``now_ms``: the time of the events, if that is known.
        """
        active = lease.active
        now_ms = self.now() if now_ms is None else now_ms
        batch = WriteBatch()
        outcomes = classify_outcomes(self.classifier, outcomes)
        if outcomes:
            transitions.settle(
                batch, active.meta, lease.number, outcomes, effects.failure_report, now_ms
            )
        elif lease.number is not None:
            batch.delete(keys.inflight_key(active.id, lease.number))
        if effects.warned:
            active.meta = transitions.warn(batch, active.id, active.meta)
        if self.is_last(active, outcomes):
            active.remaining = 0
            transitions.last(batch, active.id, active.mark.chunks, active.notes)
        else:
            active.remaining -= removed_count(outcomes)
            active.notes += effects.notes
            for note in effects.notes:
                transitions.note(batch, active.id, note)
        accepted = self.reporting.add_effects(batch, effects) if effects is not NO_EFFECTS else ()
        if len(outcomes) < len(lease.recipients):
            settled = {outcome.recipient.key for outcome in outcomes}
            untried = [recipient for recipient in lease.recipients if recipient.key not in settled]
            self.windows.zone(lease.zone).put_back(lease.destination, untried)
        due_keys = transitions.due_keys(outcomes)
        for due in due_keys:
            self.deferral.expect(due)
        batch.future.add_done_callback(partial(self._settled, lease, outcomes, due_keys))
        for callback in accepted:
            batch.future.add_done_callback(callback)
        return self.commits.submit(batch)

    def _settled(
        self,
        lease: Lease,
        outcomes: Sequence[Outcome],
        due_keys: Iterable[bytes],
        failure: QueueUnavailable | None,
    ) -> None:
        if failure is not None:
            return  # the lease stays: the next boot finds everything as it was
        self.windows.zone(lease.zone).forget([outcome.recipient.key for outcome in outcomes])
        if outcomes:
            meta = lease.active.meta
            age_s = (self.now() - starts(meta, lease.active.id)) / 1000
            tenant = meta.origin.tenant
            self.traffic.settled(lease.zone, lease.destination, tenant, outcomes, max(0.0, age_s))
        for due in due_keys:
            self.deferral.written(due)
        self.message_written(lease.active)
        self.release_message(lease.active)

    def interrupt(self, lease: Lease) -> CommitFuture:
        """End ``lease``, whose sender process ended in the middle of it, as a crash ends all leases."""
        message, now_ms = lease.active.id, self.now()
        assert lease.number is not None
        batch = WriteBatch()
        indexes = tuple(recipient.record.recipient_index for recipient in lease.recipients)
        attempt = lease.recipients[0].record.attempts + 1
        inflight = Inflight(
            version=FORMAT, boot=self.boot, zone=lease.zone, indexes=indexes, attempt=attempt, since_ms=now_ms,
        )  # fmt: skip
        excused = self.boot if self._is_stopping else self._stopped
        interrupted = InterruptedDeliveries(self.store, self.poison_after, now_ms, excused)
        remaining = interrupted.add(batch, message, inflight)
        batch.delete(keys.inflight_key(message, lease.number))
        due_keys = {keys.due_key(r.due_ms, lease.zone, message) for r in remaining.values() if r.due_ms}
        for due in due_keys:
            self.deferral.expect(due)
        batch.future.add_done_callback(partial(self._interrupted, lease, remaining, due_keys))
        return self.commits.submit(batch)

    def _interrupted(
        self,
        lease: Lease,
        remaining: Mapping[bytes, RecipientRecord],
        due_keys: Set[bytes],
        failure: QueueUnavailable | None,
    ) -> None:
        if failure is not None:
            return  # the lease stays: the next boot finds everything as it was
        window, message = self.windows.zone(lease.zone), lease.active.id
        ready = []
        for recipient in lease.recipients:
            record = remaining.get(recipient.key)
            if record is None:
                window.forget([recipient.key])
            else:
                ready.append(
                    QueuedRecipient(recipient.key, lease.zone, message, recipient.address, record)
                )
        if ready:
            window.put_back(lease.destination, ready)
            self.windows.on_ready(lease.zone, lease.destination, False)
        for due in due_keys:
            self.deferral.written(due)
        self.release_message(lease.active)

    @staticmethod
    def is_last(active: ActiveMessage, outcomes: Sequence[Outcome]) -> bool:
        """True if the message has no recipient after ``outcomes``."""
        removed = removed_count(outcomes)
        assert removed <= active.remaining
        return removed == active.remaining

    def message_written(self, active: ActiveMessage) -> None:
        """A batch about ``active`` is on disk: if it was the last, clean up after the message."""
        if active.remaining == 0:
            cleanup, mark = self.cleanup, active.mark
            if mark.chunks > 1:
                cleanup.add(active.id)  # the store counts the chunks
            size_bytes = mark.size if mark.chunks == 1 else 0
            cleanup.removed(size_bytes + len(active.meta.header) + MESSAGE_OVERHEAD_BYTES)

    def begin_stop(self) -> None:
        """This process ends in order: what it interrupts from now on does not count, nor what ``close`` leaves."""
        self._is_stopping = True

    async def close(self) -> None:
        """Stop the background tasks, write the waiting batches, close the store."""
        await self.background.stop()
        if self._is_stopping and self._is_recovered and self.failure is None:
            batch = WriteBatch()
            batch.put(keys.META_STOPPED, str(self.boot).encode())
            with suppress(QueueUnavailable):
                await self.commits.submit(batch)
        self.unusable_fields.close()
        await self.commits.close()
        await self.cleanup.close()
        if self.store.is_remote():
            await asyncio.to_thread(self.store.close)
        else:
            self.store.close()
