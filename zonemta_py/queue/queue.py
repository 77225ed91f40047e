"""The queue: its verbs, and no other door to it.

    open_message · accept · lease · start · settle · release · delete · flush · check

``settle`` carries the outcomes of one transaction (delivered, deferred, bounced, expired) in one
batch, because they are one transition (decision 4). Decisions are plain ``def``; the returned
future says when the batch is on disk. In memory there is nothing that a crash may not take.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial

from zonemta_py import clock
from zonemta_py.errors import LocalError
from zonemta_py.events.schema import Event
from zonemta_py.model import Fate
from zonemta_py.queue import keys, transitions
from zonemta_py.queue.chunks import MessageWriter, read_body
from zonemta_py.queue.cleanup import Cleanup
from zonemta_py.queue.commit import Batch, GroupCommit
from zonemta_py.queue.compose import NewMessage, compose
from zonemta_py.queue.deferral import Deferral
from zonemta_py.queue.ids import MessageIds
from zonemta_py.queue.live import LiveMessage, LiveMessages
from zonemta_py.queue.messages import read_message, recipients_of
from zonemta_py.queue.ready import Recipient
from zonemta_py.queue.records import (
    FORMAT,
    Mark,
    read_waiting,
)
from zonemta_py.queue.recovery import identify, recover
from zonemta_py.queue.scan import scan_zone, zones_on_disk
from zonemta_py.queue.store import Store
from zonemta_py.queue.transitions import Outcome, Submission
from zonemta_py.queue.windows import DestinationOf, Placement, Windows

log = logging.getLogger(__name__)


class Lease:
    """Recipients of one message at one destination, in one worker's hands; a crash gives them back."""

    __slots__ = ("destination", "live", "number", "recipients", "zone")

    def __init__(
        self, live: LiveMessage, zone: str, destination: str, recipients: list[Recipient]
    ) -> None:
        self.live = live
        self.zone = zone
        self.destination = destination
        self.recipients = recipients
        self.number: int | None = None  # of the transaction, once started


class Queue:
    """An open queue. Make it with ``open_queue``; call ``begin`` once a loop runs."""

    def __init__(
        self,
        store: Store,
        *,
        sync: bool,
        window: int,
        body_cache_bytes: int,
        destination_of: DestinationOf,
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
        self._now = now
        self._ids = MessageIds(identity.node, identity.last_id)
        self._newest_before = identity.last_id
        first_seq = (identity.boot << 40) + 1  # grows for ever without being stored
        self.commits = GroupCommit(store, self._ids, identity.node, first_seq, sync=sync)
        self.windows = Windows(store, self.commits, window, destination_of)
        self.deferral = Deferral(store, self.commits, self.windows, now)
        self.cleanup = Cleanup(store, self.commits)
        self._live = LiveMessages(body_cache_bytes)
        self._transactions = 0
        self._tasks: list[asyncio.Task[object]] = []

    async def recover(self) -> None:
        """Start to write, and deal with what the last life left. Before anything else."""
        self.commits.start()
        await recover(self.store, self.commits, self.cleanup, self._now())

    async def begin(self) -> None:
        """Wake, clean and scan in the background."""
        self._spawn(self.deferral.run(), "deferral")
        self._spawn(self.cleanup.run(), "cleanup")
        for zone in zones_on_disk(self.store):
            self._spawn(
                scan_zone(self.store, self.commits, self.windows, zone, self._newest_before),
                f"scan-{zone}",
            )

    def _spawn(self, work: Coroutine[object, object, object], name: str) -> None:
        task: asyncio.Task[object] = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("the queue's %s stopped: %s", task.get_name(), task.exception())

    # ---- intake

    def open_message(self) -> MessageWriter:
        """A writer for a body; ``accept`` or ``abort`` ends it."""
        return MessageWriter(self._ids.next(self._now()), self.boot, self.commits)

    async def accept(self, writer: MessageWriter, new: NewMessage) -> None:
        """Take responsibility: when this returns, the message is on disk. Raises QueueUnavailable."""
        await writer.written()
        last = writer.last
        tail = [last] if last else []
        # Shielded: a client that hangs up now must not tear a batch from what happens after it.
        await asyncio.shield(self._accept(compose(writer.id, new, writer.mark(self._now()), tail)))

    def _accept(self, submission: Submission) -> asyncio.Future[None]:
        batch = Batch()
        placement = self._plan_accept(batch, submission)
        future = self.commits.submit(batch)
        future.add_done_callback(partial(self._accepted, [submission], placement))
        return future

    def _plan_accept(self, batch: Batch, submission: Submission) -> Placement:
        placement = self.windows.plan(submission.recipients)
        spills = [(zone, destination) for zone, destination, _ in placement.spills]
        transitions.accept(batch, submission, spills, self._now())
        return placement

    def _accepted(
        self, submissions: list[Submission], placement: Placement, done: asyncio.Future[None]
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            self.windows.abandon(placement)
            return
        for new in submissions:
            body = b"".join(new.tail) if new.mark.chunks <= 1 else None
            self._live.add(LiveMessage(new.message, new.meta, new.mark, body, len(new.recipients)))
        self.windows.place(placement)

    def compose_report(self, message: str, new: NewMessage, body: bytes) -> Submission:
        """A message made here, to be accepted in the batch of the settle that causes it."""
        size = keys.CHUNK_BYTES
        tail = [body[at : at + size] for at in range(0, len(body), size)]
        mark = Mark(FORMAT, self._now(), len(body), len(tail), zlib.crc32(body))
        return compose(message, new, mark, tail)

    def new_id(self) -> str:
        """A message id, for a report."""
        return self._ids.next(self._now())

    async def abort(self, writer: MessageWriter) -> None:
        """The body will not be finished; its chunks go."""
        if writer.chunks:
            await writer.written()
            batch = Batch()
            batch.delete(keys.open_key(writer.id))
            batch.put(keys.cleanup_key(writer.id), b"")
            await self.commits.submit(batch)
            self.cleanup.add(writer.id)

    def record(self, event: Event) -> None:
        """Put a fact that belongs to no accepted message into the ledger."""
        batch = Batch()
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
        window.note_starved(destination)
        self.windows.feed(zone)
        if not recipients:
            return None
        return Lease(self._pin(recipients[0].message), zone, destination, recipients)

    def _pin(self, message: str) -> LiveMessage:
        """The live entry of ``message``, with one lease more."""
        live = self._live.get(message)
        if live is not None:
            live.leases += 1
            return live
        with self.store.frozen() as view:  # a wake committed between two reads would be counted nowhere
            meta, mark = read_message(view, message)
            remaining = sum(1 for _ in recipients_of(view, message, meta.zones))
        live = LiveMessage(message, meta, mark, None, remaining)
        live.leases = 1
        self._live.add(live)
        return live

    def start(self, lease: Lease) -> asyncio.Future[None]:
        """A transaction begins; the future must be done before the final dot goes out."""
        self._transactions += 1
        lease.number = self._transactions
        batch = Batch()
        transitions.start(batch, lease.live.id, lease.number, lease.recipients, self.boot, self._now())
        return self.commits.submit(batch)

    def body(self, live: LiveMessage) -> Iterator[bytes]:
        """The body in chunks. Raises QueueCorrupt before a damaged one is complete."""
        if live.body is not None:
            return iter((live.body,)) if live.body else iter(())
        return read_body(self.store, live.id, live.mark)

    def settle(
        self, lease: Lease, outcomes: Sequence[Outcome], report: Submission | None = None
    ) -> asyncio.Future[None]:
        """End a transaction. Leased recipients without an outcome go back to the front.

        ``report`` is accepted in the same batch as the removal of the recipients it is about.
        """
        live, now_ms = lease.live, self._now()
        batch = Batch()
        report_id = report.message if report else ""
        if outcomes:
            transitions.settle(batch, live.meta, lease.number, outcomes, report_id, now_ms)
        elif lease.number is not None:
            batch.delete(keys.inflight_key(live.id, lease.number))
        live.remaining -= sum(1 for outcome in outcomes if outcome.fate is not Fate.DEFERRED)
        assert live.remaining >= 0
        if live.remaining == 0:
            transitions.last(batch, live.id, live.mark.chunks)
        placement = self._plan_accept(batch, report) if report else Placement()
        settled = {outcome.recipient.key for outcome in outcomes}
        untried = [recipient for recipient in lease.recipients if recipient.key not in settled]
        if untried:
            self.windows.zone(lease.zone).give_back(lease.destination, untried)
        for due in _due_keys(outcomes):
            self.deferral.expect(due)
        future = self.commits.submit(batch)
        future.add_done_callback(partial(self._settled, lease, outcomes, report, placement))
        return future

    def _settled(
        self,
        lease: Lease,
        outcomes: Sequence[Outcome],
        report: Submission | None,
        placement: Placement,
        done: asyncio.Future[None],
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            return  # the lease stays: the next life of the queue finds everything as it was
        live = lease.live
        self.windows.zone(lease.zone).forget(outcome.recipient.key for outcome in outcomes)
        for due in _due_keys(outcomes):
            self.deferral.arrived(due)
        self._gone(live)
        self._live.unpin(live)
        if report is not None:
            self._accepted([report], placement, done)

    def _gone(self, live: LiveMessage) -> None:
        if live.remaining == 0:
            if live.mark.chunks > 1:
                self.cleanup.add(live.id)
            self.cleanup.removed(live.mark.size + len(live.meta.header) + 1024)

    def release(self, lease: Lease) -> asyncio.Future[None]:
        """Nothing was attempted: the recipients go back to the front."""
        return self.settle(lease, ())

    # ---- operator

    async def delete(self, message: str, address: str | None = None) -> tuple[int, int]:
        """Remove a message's recipients, or one; returns (removed, left because in flight)."""
        if self.store.get(keys.meta_key(message)) is None:
            return 0, 0
        live = self._pin(message)
        batch, busy = Batch(), 0
        waiting: list[bytes] = []
        deferred: dict[bytes, int] = {}  # key: due ms
        with self.store.frozen() as view:
            found_now = list(recipients_of(view, message, live.meta.zones))
        for key, value in found_now:
            zone, _, found = keys.parse_recipient(key)
            if address is not None and found != address:
                continue
            record = read_waiting(value)
            if key.startswith(keys.DEFERRED) and key not in self.deferral.moving:
                deferred[key] = record.due_ms
            elif key.startswith(keys.WAITING) and self.windows.zone(zone).withdraw(key):
                waiting.append(key)
            else:
                busy += 1
                continue
            transitions.delete(batch, live.meta, key, record, self._now())
        self.deferral.retire(batch, deferred)
        self.deferral.moving.update(deferred)
        live.remaining -= len(waiting) + len(deferred)
        if live.remaining == 0:
            transitions.last(batch, message, live.mark.chunks)
        await asyncio.shield(self._deleted(live, batch, waiting, deferred))
        return len(waiting) + len(deferred), busy

    async def _deleted(
        self, live: LiveMessage, batch: Batch, waiting: list[bytes], deferred: Iterable[bytes]
    ) -> None:
        if batch.ops:
            await self.commits.submit(batch)
            self._gone(live)
        self._live.unpin(live)
        self.deferral.moving.difference_update(deferred)
        for key in waiting:
            self.windows.zone(keys.parse_recipient(key)[0]).forget([key])

    async def close(self) -> None:
        """Stop the background work, write what waits, close the database."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.commits.close()
        await self.cleanup.close()
        self.store.close()


def _due_keys(outcomes: Sequence[Outcome]) -> set[bytes]:
    """The ``due/`` keys that settling ``outcomes`` writes."""
    return {
        keys.due_key(outcome.due_ms, outcome.recipient.zone, outcome.recipient.message)
        for outcome in outcomes
        if outcome.fate is Fate.DEFERRED
    }
