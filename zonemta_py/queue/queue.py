"""The queue: its verbs, and the only way to change it.

    open_message · accept · abort · lease · start · settle · release

An operator's changes are in ``operator``.

``settle`` carries the outcomes of one transaction (delivered, deferred, bounced, expired) in one batch,
because they are one transition (decision 4). Verbs are plain ``def``; the future they return is done when
the batch is on disk. All that must survive a crash is in the store.
"""

import asyncio
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from zonemta_py.core import clock
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError, QueueUnavailable
from zonemta_py.core.model import PoolKey
from zonemta_py.core.tasks import BackgroundTasks
from zonemta_py.events.schema import Event, Rejected, first_seq
from zonemta_py.queue import transitions
from zonemta_py.queue.accept import Acceptor, NewMessage, compose
from zonemta_py.queue.active import ActiveMessage, ActiveMessages, Lease
from zonemta_py.queue.batch import CommitFuture, WriteBatch
from zonemta_py.queue.bodies import Bodies
from zonemta_py.queue.census import Census
from zonemta_py.queue.census_scan import CensusScan
from zonemta_py.queue.chunks import MessageWriter, Upload
from zonemta_py.queue.deferral import Deferral
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.ids import MessageIds, last_id_before
from zonemta_py.queue.group_commit import GroupCommit
from zonemta_py.queue.intake_limits import IntakeLimiter
from zonemta_py.queue.logins import RecentLogins, WrongPasswords
from zonemta_py.queue.options import QueueOptions, Reports
from zonemta_py.queue.outcome import NO_EFFECTS, Outcome, SettleEffects
from zonemta_py.queue.report_writer import ReportWriter
from zonemta_py.queue.settlement import Settlement, removed_count
from zonemta_py.queue.submission_keys import SubmissionKeys
from zonemta_py.queue.suspensions import Suspensions
from zonemta_py.queue.traffic import Traffic
from zonemta_py.queue.unusable_fields import UnusableFields
from zonemta_py.queue.upkeep.cleanup import Cleanup
from zonemta_py.queue.upkeep.held_mail import HeldMail
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.queue.upkeep.recovery import begin_boot, recover
from zonemta_py.queue.upkeep.startup_scan import scan_zone, zones_on_disk, zones_to_scan
from zonemta_py.queue.verifications import Verifications
from zonemta_py.queue.windows import DestinationOf, OnReady, ReadyWindows, ignore_ready
from zonemta_py.smtp.classification import NO_RULES
from zonemta_py.storage.interface import Store

REJECTED = b'"event":"rejected"'


class Queue:
    """An open queue. ``open_queue`` makes it; ``recover`` and ``begin`` follow, in a running loop."""

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
            identity = begin_boot(store, options.access, options.end_of_log, options.newest_in_log)
        except LocalError:
            store.close()
            raise
        self.store = store
        self.node = identity.node
        self.boot = identity.boot
        self.classifier = NO_RULES
        self.poison_after = options.poison_after
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
        self._settlement = Settlement(self)
        self.operator = Operator(self)
        self.held_mail = HeldMail(self)
        self.uploads: WeakValueDictionary[str, Upload] = WeakValueDictionary()
        self._accepting: set[str] = set()  # messages of several chunks whose batch is not yet on disk
        self._transactions = 0
        self.background = BackgroundTasks()

    async def recover(self) -> None:
        """Begin to write, and handle what the previous boot left behind. Before any other verb."""
        self.commits.start()
        await recover(self.store, self.commits, self.cleanup, self.poison_after, self.now())

    async def begin(self) -> None:
        """Start the background tasks: timers, removal, sweep, start-up scan."""
        self.background.start(self.deferral.run(), "deferral")
        self.background.start(self.deferral.keep_rescuing(), "rescue")
        self.background.start(self.cleanup.run(), "cleanup")
        self.background.start(self.cleanup.keep_moving(), "moves")
        self.background.start(self.submission_keys.run(), "submissions")
        self.background.start(self.limits.run(), "limits")
        self.background.start(self.held_mail.run(), "held mail")
        self.background.start(CensusScan(self.store, self.commits, self.census).run(), "census")
        self.background.start(self.cleanup.keep_sweeping(self.is_open, self.now), "sweep")
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
        """Whether the census has not yet counted all recipients of earlier boots."""
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
            batch.future.set_exception(QueueUnavailable(f"{upload.id}: {what}"))
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
        """Whether a body of several chunks is being received, or accepted."""
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

        Raises QueueCorrupt for a message that cannot be read; its recipients stay on disk and are not
        offered again before the next start.
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
        return Lease(self.acquire_message(recipients[0].message), zone, destination, recipients)

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
        return self._settlement.settle(lease, outcomes, effects, now_ms)

    @staticmethod
    def is_last(active: ActiveMessage, outcomes: Sequence[Outcome]) -> bool:
        """Whether the message has no recipient after ``outcomes``."""
        removed = removed_count(outcomes)
        assert removed <= active.remaining
        return removed == active.remaining

    def message_written(self, active: ActiveMessage) -> None:
        """A batch about ``active`` is on disk: if it was the last, clean up after the message."""
        self._settlement.message_written(active)

    async def close(self) -> None:
        """Stop the background tasks, write the waiting batches, close the store."""
        await self.background.stop()
        self.unusable_fields.close()
        await self.commits.close()
        await self.cleanup.close()
        if self.store.is_remote():
            await asyncio.to_thread(self.store.close)
        else:
            self.store.close()
