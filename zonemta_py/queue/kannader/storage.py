"""Kannader's storage contract as a view over the queue: one mail and one recipient is one item.

Content is SMTP-encoded here (dots doubled, ``CRLF . CRLF`` at the end) and raw below. Every function
succeeds, or raises QueueUnavailable with the handle as good as before, so the caller may try again;
``None`` means the item has vanished: somebody else took it, or it is gone. An ``InflightMail`` is a
lease with an epoch: a stale holder can neither finish nor cancel somebody else's.

Use it on a queue whose own delivery does not run, before or instead of ``Queue.recover``: what an
earlier life left in flight or half removed is listed, and the caller decides.

Source: kannader, smtp-queue/src/lib.rs (trait Storage).
"""

from collections.abc import AsyncIterator
from dataclasses import replace

from zonemta_py.core import clock
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.queue import transitions
from zonemta_py.queue.active import read_message
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.chunks import read_body
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, Waiting, read_inflight, read_meta, read_waiting
from zonemta_py.queue.kannader.enqueue import Enqueuer
from zonemta_py.queue.kannader.items import (
    Damaged,
    InflightMail,
    MailMetadata,
    PendingCleanupMail,
    QueuedMail,
    ScheduleInfo,
    id_of,
    recipient_at,
    schedule_of,
    to_ms,
)
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.transitions import Outcome
from zonemta_py.smtp.transparency import DotEncoder

_SENT = Attempt("dot", 250, "2.0.0", "sent by the holder of the lease")

__all__ = [
    "Damaged", "Enqueuer", "InflightMail", "MailMetadata", "PendingCleanupMail", "QueuedMail", "ScheduleInfo", "Storage",
]  # fmt: skip


class Storage:
    """The eleven functions, on ``queue``, whose group commit has been started."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._store = queue.store
        self._busy: set[str] = set()  # a transition of these ids is on its way to disk
        self._flying: dict[str, tuple[int, int]] = {}
        self._clean: set[str] = set()  # done with, and not yet cleaned up
        for key, value in self._store.scan(keys.INFLIGHT, keys.end_of(keys.INFLIGHT)):
            record, number = read_inflight(value), int(key.rpartition(b"/")[2])
            for index in record.indexes:
                self._flying[id_of(keys.owner_of(key), index)] = (record.boot, number)

    # ---- what is there

    async def list_queue(self) -> AsyncIterator[QueuedMail | Damaged]:
        """Everything that waits and is not in flight."""
        for space in (keys.WAITING, keys.DEFERRED):
            for key, value in self._store.scan(space, keys.end_of(space)):
                zone, message, address = keys.parse_recipient(key)
                try:
                    record = read_waiting(value)
                except QueueCorrupt as exc:
                    yield Damaged(exc, f"{message} {address}")
                    continue
                if id_of(message, record.recipient_index) not in self._flying:
                    yield QueuedMail(
                        id_of(message, record.recipient_index),
                        schedule_of(message, record),
                        zone,
                        address,
                    )

    async def find_inflight(self) -> AsyncIterator[InflightMail]:
        """Every lease, those of an earlier life included."""
        for mail, epoch in list(self._flying.items()):
            place = self._place(mail)
            if place is not None:
                zone, _, address = keys.parse_recipient(place[0])
                yield InflightMail(mail, zone, address, epoch)

    async def find_pending_cleanup(self) -> AsyncIterator[PendingCleanupMail]:
        """Everything that is done with and not cleaned up, an earlier life's included."""
        on_disk = {keys.owner_of(k) for k in self._store.keys(keys.CLEANUP, keys.end_of(keys.CLEANUP))}
        named = {mail.partition(".")[0] for mail in self._clean}
        for mail in sorted(self._clean | {id_of(message, 0) for message in on_disk - named}):
            yield PendingCleanupMail(mail)

    # ---- in

    def enqueue(self) -> Enqueuer:
        """Takes encoded content; nothing is visible until its ``commit``."""
        return Enqueuer(self._queue)

    # ---- transitions

    async def reschedule(self, mail: QueuedMail, schedule: ScheduleInfo) -> QueuedMail | None:
        """Another time for a mail that waits; returns it with its new schedule."""
        place = self._take(mail.id)
        if place is None:
            return None
        key, record = place
        batch = WriteBatch()
        now = record._replace(
            version=FORMAT, due_ms=max(1, to_ms(schedule.at)), last_ms=to_ms(schedule.last_attempt)
        )
        message = keys.parse_recipient(key)[1]
        batch.delete(key)
        if record.due_ms:
            self._queue.deferral.delete_unused_due_keys(batch, {key: record.due_ms})
        batch.put(keys.deferred_key(mail.zone, message, mail.address), pack(now))
        due = keys.due_key(now.due_ms, mail.zone, message)
        batch.put(due, b"")
        self._queue.deferral.expect(due)  # nobody may retire it before it is there
        try:
            await self._write(mail.id, batch)
        finally:
            self._queue.deferral.written(due)
        return replace(mail, schedule=schedule)

    async def send_start(self, mail: QueuedMail) -> InflightMail | None:
        """Lease a mail that waits."""
        place = self._take(mail.id)
        if place is None:
            return None
        key, record = place
        number, batch = self._queue.next_transaction(), WriteBatch()
        transitions.start(
            batch,
            keys.parse_recipient(key)[1],
            number,
            [recipient_at(key, record)],
            self._queue.boot,
            clock.now_ms(),
        )
        await self._write(mail.id, batch)
        self._flying[mail.id] = epoch = (self._queue.boot, number)
        return InflightMail(mail.id, mail.zone, mail.address, epoch)

    async def read_inflight(self, mail: InflightMail) -> tuple[MailMetadata, AsyncIterator[bytes]]:
        """Envelope and encoded content; may be repeated. Raises QueueCorrupt when it cannot be read."""
        message = mail.id.partition(".")[0]
        meta, mark = read_message(self._store, message)

        async def content() -> AsyncIterator[bytes]:
            encoder = DotEncoder()
            yield encoder.feed(meta.header + b"\r\n")
            for chunk in read_body(self._store, message, mark):
                yield encoder.feed(chunk)
            yield encoder.finish()

        return MailMetadata(meta.sender or None, mail.address, mail.zone), content()

    async def send_done(self, mail: InflightMail) -> PendingCleanupMail | None:
        """The mail was sent."""
        place = self._leased(mail)
        if place is None:
            return None
        key, record = place
        message, batch = keys.parse_recipient(key)[1], WriteBatch()
        meta, _ = read_message(self._store, message)
        outcome = Outcome(recipient_at(key, record), OutcomeKind.DELIVERED, _SENT)
        transitions.settle(batch, meta, None, [outcome], "", clock.now_ms())
        batch.delete(keys.inflight_key(message, mail.epoch[1]))
        return await self._done(mail.id, batch, key, record)

    async def send_cancel(self, mail: InflightMail) -> QueuedMail | None:
        """Give the lease back; the schedule is what it was."""
        place = self._leased(mail)
        if place is None:
            return None
        key, record = place
        message, batch = keys.parse_recipient(key)[1], WriteBatch()
        batch.delete(keys.inflight_key(message, mail.epoch[1]))
        await self._write(mail.id, batch)
        self._flying.pop(mail.id, None)
        return QueuedMail(mail.id, schedule_of(message, record), mail.zone, mail.address)

    async def drop(self, mail: QueuedMail) -> PendingCleanupMail | None:
        """Give a mail up without sending it."""
        place = self._take(mail.id)
        if place is None:
            return None
        key, record = place
        batch = WriteBatch()
        meta, _ = read_message(self._store, keys.parse_recipient(key)[1])
        transitions.delete(batch, meta, key, record, clock.now_ms())
        return await self._done(mail.id, batch, key, record)

    async def cleanup(self, mail: PendingCleanupMail) -> bool:
        """Remove what is left; with the last mail of a message its content. False: already gone."""
        message = mail.id.partition(".")[0]
        here = mail.id in self._clean
        self._clean.discard(mail.id)
        if self._store.get(keys.cleanup_key(message)) is None:
            return here
        others = any(other.partition(".")[0] == message for other in self._clean)
        if not others:
            await self._queue.cleanup.remove_chunks(message)
        return True

    # ---- inside

    def _place(self, mail: str) -> tuple[bytes, Waiting] | None:
        """Where a recipient is, and its record."""
        message, _, index = mail.partition(".")
        value = self._store.get(keys.meta_key(message))
        for zone in read_meta(value).zones if value else ():
            for space in (keys.WAITING, keys.DEFERRED):
                prefix = keys.zone_prefix(space, zone, message)
                for key, data in self._store.scan(prefix, keys.end_of(prefix)):
                    record = read_waiting(data)
                    if record.recipient_index == int(index):
                        return key, record
        return None

    def _take(self, mail: str) -> tuple[bytes, Waiting] | None:
        """A mail that waits and that nobody is at; it is ours until ``_write`` is over."""
        if mail in self._busy or mail in self._flying:
            return None
        place = self._place(mail)
        if place is not None:
            self._busy.add(mail)
        return place

    def _leased(self, mail: InflightMail) -> tuple[bytes, Waiting] | None:
        """A mail whose lease is ``mail``'s own."""
        if mail.id in self._busy or self._flying.get(mail.id) != mail.epoch:
            return None
        place = self._place(mail.id)
        if place is not None:
            self._busy.add(mail.id)
        return place

    async def _write(self, mail: str, batch: WriteBatch) -> None:
        try:
            await self._queue.commits.submit(batch)
        finally:
            self._busy.discard(mail)

    async def _done(
        self, mail: str, batch: WriteBatch, key: bytes, record: Waiting
    ) -> PendingCleanupMail:
        message = keys.parse_recipient(key)[1]
        if record.due_ms:
            self._queue.deferral.delete_unused_due_keys(batch, {key: record.due_ms})
        active = self._queue.acquire_message(message)
        active.remaining -= 1
        if active.remaining == 0:
            # Two chunks or not: what is left is for ``cleanup`` to remove, also after a crash.
            transitions.last(batch, message, max(active.mark.chunks, 2), active.notes)
        try:
            await self._write(mail, batch)
        except BaseException:
            active.remaining += 1
            raise
        finally:
            self._queue.release_message(active)
        self._flying.pop(mail, None)
        self._clean.add(mail)
        return PendingCleanupMail(mail)
