"""Kannader's storage functions as a view of the queue: one message and one recipient is one item.

Content is SMTP-encoded here (dots doubled, ``CRLF . CRLF`` at the end) and raw in the queue. A function
succeeds, or raises QueueUnavailable and leaves the handle valid, so that the caller can try again; ``None``
means that the item is gone or held by another caller. An ``InflightMail`` is a lease with an epoch: the
holder of a stale one can neither finish nor cancel the lease of another.

Use it on a queue without delivery of its own, before or instead of ``Queue.recover``: items that an earlier
boot left in flight or partly removed are listed, and the caller decides.

Source: kannader, smtp-queue/src/lib.rs (trait Storage).
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from zonemta_py.core import clock
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.queue import transitions
from zonemta_py.queue.accept import NewMessage, NewRecipient, compose
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    FORMAT,
    Origin,
    RecipientRecord,
    read_inflight,
    read_meta,
    read_recipient_record,
)
from zonemta_py.queue.messages import read_body, read_message
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.headers import HeaderSplitter
from zonemta_py.smtp.transparency import DotDecoder, DotEncoder

# ---- The items of ``queue.kannader``, and how they map to the queue's records.


@dataclass(frozen=True, slots=True)
class MailMetadata:
    """``from_`` is None for the null sender; ``zone``: Kannader leaves such data to its user."""

    from_: str | None
    to: str
    zone: str = "default"


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """The times of the next and of the last attempt, with time zone."""

    at: datetime
    last_attempt: datetime | None = None

    def last_interval(self) -> timedelta | None:
        """The time from the last attempt to the next."""
        return self.at - self.last_attempt if self.last_attempt else None


@dataclass(frozen=True, slots=True)
class QueuedMail:
    """A queued item. ``id`` never changes."""

    id: str
    schedule: ScheduleInfo
    zone: str
    address: str


@dataclass(frozen=True, slots=True)
class InflightMail:
    """A lease. ``epoch`` (boot, number) identifies the lease among those of the same item."""

    id: str
    zone: str
    address: str
    epoch: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PendingCleanupMail:
    """An ended item; its content may still be on disk."""

    id: str


@dataclass(frozen=True, slots=True)
class Damaged:
    """An item that cannot be read."""

    error: Exception
    id: str | None


def id_of(message: str, index: int) -> str:
    return f"{message}.{index}"


def recipient_at(key: bytes, record: RecipientRecord) -> QueuedRecipient:
    zone, message, address = keys.parse_recipient(key)
    return QueuedRecipient(key, zone, message, address, record)


def schedule_of(message: str, record: RecipientRecord) -> ScheduleInfo:
    at_ms = record.due_ms or keys.created_ms(message)
    return ScheduleInfo(clock.utc(at_ms), clock.utc(record.last_ms) if record.last_ms else None)


def to_ms(time: datetime | None) -> int:
    """Unix ms; 0 for no time."""
    return round(time.timestamp() * 1000) if time else 0


# ---- Writes encoded content into the queue, for ``queue.kannader``.

_HERE = Origin("", "", "", "", "")


class Enqueuer:
    """The content of one message, and its destinations at ``commit``."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._writer = queue.open_message()
        self._decoder = DotDecoder()
        self._splitter = HeaderSplitter()

    async def write(self, data: bytes) -> None:
        """Append encoded content. Raises QueueUnavailable."""
        body = self._splitter.feed(self._decoder.feed(data))
        await self._write(body)

    async def _write(self, body: bytes) -> None:
        if body:
            written = self._writer.write(body)
            if written is not None:
                await written

    async def commit(
        self, destinations: Sequence[tuple[MailMetadata, ScheduleInfo]]
    ) -> list[QueuedMail]:
        """Enqueue one item for each destination, in order, all or none. The content must have ended.

        Raises ValueError, QueueUnavailable.
        """
        if not self._decoder.done:
            raise ValueError("the content does not end with CRLF . CRLF")
        await self._write(self._splitter.finish())
        senders = {metadata.from_ for metadata, _ in destinations}
        if len(senders) != 1 or len({(m.to, m.zone) for m, _ in destinations}) != len(destinations):
            raise ValueError("one content has one sender, and each destination occurs once")
        new = NewMessage(
            sender=senders.pop() or "",
            header=self._splitter.header,
            recipients=[NewRecipient(m.to, domain_of(m.to), m.zone) for m, _ in destinations],
            origin=_HERE,
        )
        message, now_ms = self._writer.id, clock.now_ms()
        last = self._writer.last
        made = compose(message, new, self._writer.mark(now_ms), [last] if last else [])
        batch = WriteBatch()
        for recipient, (_, schedule) in zip(made.recipients, destinations, strict=True):
            due_ms = max(1, to_ms(schedule.at))
            recipient.key = keys.deferred_key(recipient.zone, message, recipient.address)
            recipient.record = recipient.record._replace(
                due_ms=due_ms, last_ms=to_ms(schedule.last_attempt)
            )
        transitions.accept(batch, made, transitions.due_keys_of(made.recipients), now_ms)
        await self._queue.commits.submit(batch)
        return [
            QueuedMail(id_of(message, index), schedule, metadata.zone, metadata.to)
            for index, (metadata, schedule) in enumerate(destinations)
        ]

    async def abort(self) -> None:
        """Remove what was written."""
        batch = self._queue.abort(self._writer)
        if batch is not None:
            await batch


# ---- storage

_SENT = Attempt("dot", 250, "2.0.0", "sent by the holder of the lease")

__all__ = [
    "Damaged", "Enqueuer", "InflightMail", "MailMetadata", "PendingCleanupMail", "QueuedMail", "ScheduleInfo", "Storage",
]  # fmt: skip


class Storage:
    """The eleven functions, on ``queue``, whose group commit has been started."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._store = queue.store
        self._busy: set[str] = set()  # a transition of these items is being written
        self._flying: dict[str, tuple[int, int]] = {}
        self._clean: set[str] = set()  # ended, and not yet cleaned up
        for key, value in self._store.scan(keys.INFLIGHT, keys.end_of(keys.INFLIGHT)):
            record, number = read_inflight(value), int(key.rpartition(b"/")[2])
            for index in record.indexes:
                self._flying[id_of(keys.owner_of(key), index)] = (record.boot, number)

    # ---- listing

    async def list_queue(self) -> AsyncIterator[QueuedMail | Damaged]:
        """All queued items that are not in flight."""
        for space in (keys.WAITING, keys.DEFERRED):
            for key, value in self._store.scan(space, keys.end_of(space)):
                zone, message, address = keys.parse_recipient(key)
                try:
                    record = read_recipient_record(value)
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
        """All leases, also those of an earlier boot."""
        for mail, epoch in list(self._flying.items()):
            found = self._find(mail)
            if found is not None:
                zone, _, address = keys.parse_recipient(found[0])
                yield InflightMail(mail, zone, address, epoch)

    async def find_pending_cleanup(self) -> AsyncIterator[PendingCleanupMail]:
        """All items that ended and were not cleaned up, also those of an earlier boot."""
        on_disk = {keys.owner_of(k) for k in self._store.keys(keys.CLEANUP, keys.end_of(keys.CLEANUP))}
        named = {mail.partition(".")[0] for mail in self._clean}
        for mail in sorted(self._clean | {id_of(message, 0) for message in on_disk - named}):
            yield PendingCleanupMail(mail)

    # ---- enqueue

    def enqueue(self) -> Enqueuer:
        """A writer for encoded content; nothing is visible until its ``commit``."""
        return Enqueuer(self._queue)

    # ---- transitions

    async def reschedule(self, mail: QueuedMail, schedule: ScheduleInfo) -> QueuedMail | None:
        """Change the schedule of a queued item; returns the changed item."""
        found = self._take(mail.id)
        if found is None:
            return None
        key, record = found
        batch = WriteBatch()
        now = record._replace(
            version=FORMAT, due_ms=max(1, to_ms(schedule.at)), last_ms=to_ms(schedule.last_attempt)
        )
        message = keys.parse_recipient(key)[1]
        batch.delete(key)
        if record.due_ms:
            self._delete_unused_due_key(batch, key, record)
        batch.put_record(keys.deferred_key(mail.zone, message, mail.address), now)
        transitions.move(batch, mail.zone, message, record, now)
        due = keys.due_key(now.due_ms, mail.zone, message)
        batch.put(due, b"")
        self._queue.deferral.expect(due)  # it must not be deleted before it is written
        try:
            await self._write(mail.id, batch)
        finally:
            self._queue.deferral.written(due)
        return replace(mail, schedule=schedule)

    async def send_start(self, mail: QueuedMail) -> InflightMail | None:
        """Lease a queued item."""
        found = self._take(mail.id)
        if found is None:
            return None
        key, record = found
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
        """Envelope and encoded content; may be called again. Raises QueueCorrupt."""
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
        """The item was sent."""
        found = self._leased(mail)
        if found is None:
            return None
        key, record = found
        message, batch = keys.parse_recipient(key)[1], WriteBatch()
        meta, _ = read_message(self._store, message)
        outcome = Outcome(recipient_at(key, record), OutcomeKind.DELIVERED, _SENT)
        transitions.settle(batch, meta, None, [outcome], "", clock.now_ms())
        batch.delete(keys.inflight_key(message, mail.epoch[1]))
        return await self._done(mail.id, batch, key, record)

    async def send_cancel(self, mail: InflightMail) -> QueuedMail | None:
        """Release the lease; the schedule is unchanged."""
        found = self._leased(mail)
        if found is None:
            return None
        key, record = found
        message, batch = keys.parse_recipient(key)[1], WriteBatch()
        batch.delete(keys.inflight_key(message, mail.epoch[1]))
        await self._write(mail.id, batch)
        self._flying.pop(mail.id, None)
        return QueuedMail(mail.id, schedule_of(message, record), mail.zone, mail.address)

    async def drop(self, mail: QueuedMail) -> PendingCleanupMail | None:
        """Remove a queued item without sending it."""
        found = self._take(mail.id)
        if found is None:
            return None
        key, record = found
        batch = WriteBatch()
        meta, _ = read_message(self._store, keys.parse_recipient(key)[1])
        transitions.delete(batch, meta, key, record, clock.now_ms())
        return await self._done(mail.id, batch, key, record)

    async def cleanup(self, mail: PendingCleanupMail) -> bool:
        """Clean up an ended item; with the last item of a message, its content. False: already gone."""
        message = mail.id.partition(".")[0]
        here = mail.id in self._clean
        self._clean.discard(mail.id)
        if self._store.get(keys.cleanup_key(message)) is None:
            return here
        others = any(other.partition(".")[0] == message for other in self._clean)
        if not others:
            await self._queue.cleanup.remove_chunks(message)
        return True

    # ---- internal

    def _find(self, mail: str) -> tuple[bytes, RecipientRecord] | None:
        """The key and the record of a recipient."""
        message, _, index = mail.partition(".")
        value = self._store.get(keys.meta_key(message))
        for zone in read_meta(value).zones if value else ():
            for space in (keys.WAITING, keys.DEFERRED):
                prefix = keys.zone_prefix(space, zone, message)
                for key, data in self._store.scan(prefix, keys.end_of(prefix)):
                    record = read_recipient_record(data)
                    if record.recipient_index == int(index):
                        return key, record
        return None

    def _take(self, mail: str) -> tuple[bytes, RecipientRecord] | None:
        """A queued item without a transition under way; it is reserved until ``_write`` ends."""
        if mail in self._busy or mail in self._flying:
            return None
        found = self._find(mail)
        if found is not None:
            self._busy.add(mail)
        return found

    def _leased(self, mail: InflightMail) -> tuple[bytes, RecipientRecord] | None:
        """The item of a lease that is still valid; it is reserved until ``_write`` ends."""
        if mail.id in self._busy or self._flying.get(mail.id) != mail.epoch:
            return None
        found = self._find(mail.id)
        if found is not None:
            self._busy.add(mail.id)
        return found

    def _delete_unused_due_key(self, batch: WriteBatch, key: bytes, record: RecipientRecord) -> None:
        zone, message, _ = keys.parse_recipient(key)
        self._queue.deferral.delete_unused_due_keys(batch, zone, message, {record.due_ms}, {key})

    async def _write(self, mail: str, batch: WriteBatch) -> None:
        try:
            await self._queue.commits.submit(batch)
        finally:
            self._busy.discard(mail)

    async def _done(
        self, mail: str, batch: WriteBatch, key: bytes, record: RecipientRecord
    ) -> PendingCleanupMail:
        message = keys.parse_recipient(key)[1]
        if record.due_ms:
            self._delete_unused_due_key(batch, key, record)
        active = self._queue.acquire_message(message)
        active.remaining -= 1
        if active.remaining == 0:
            # As if it had several chunks: ``cleanup`` removes the content, also after a crash.
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
