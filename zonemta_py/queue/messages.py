"""Active messages: those being accepted or delivered, with their envelope, recipient count and body.

States of a message here::

    accepted, or read by its first lease ─▶ leased ─▶ kept without a lease, within the limit of bytes ─▶ evicted ─▶ read again …
                                               └──▶ forgotten, when it has no recipient left

Invariants:

- Whether a recipient is the last of its message is decided from ``remaining`` and not from the store, where two settles before one
  commit would both see the other's recipient (decision 7).
- There is one ``ActiveMessage`` for a message, and it is kept while the message is leased.
- Of evicted messages the count remains until their first lease: to make it again costs three ranges of the store.
- A message whose recipients cannot all be read has UNCOUNTED of them: they are delivered, and only a repair ends it.
- Bodies are in chunks of 64 KiB, of which few wait for the disk (WRITES_AHEAD). A damaged body is never read to its end: its last
  chunk is returned only when size and checksum of all are right (``BodyCheck``).

Callers: ``Queue`` for leases, ``Acceptor`` for new messages; ``MessageWriter`` is given to those that receive one; agents and reports
read by ``Bodies``.

Example: two workers have leases of a message with two recipients. Each settle subtracts one; the second finds 0, and its batch
removes the message.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import Protocol

from zonemta_py.core.clock import now_ms
from zonemta_py.core.codec import crc32, pack
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueUnavailable, QueueUnreadable
from zonemta_py.queue.commit import CommitFuture, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.keys import CHUNK_BYTES, CHUNKS_MAX, chunk_key, open_key
from zonemta_py.queue.format.records import (
    FORMAT,
    BodyRecord,
    EnvelopeRecord,
    Note,
    Open,
    read_mark,
    read_meta,
    read_note,
)
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.storage.interface import Store, View

log = logging.getLogger(__name__)


OVERHEAD_BYTES = 600  # of one entry, without its header and body
EVICT_LOOK = 16  # old entries examined to make room for one
COUNTS_MAX = 200_000  # of messages that are not in memory, 180 bytes each
UNCOUNTED = 1 << 40  # ``remaining`` of a message whose recipients cannot all be read


class ActiveMessage:
    """A message in memory.

    ``remaining`` counts the recipients that no decision has settled; ``leases`` keep the entry;
    ``body`` is the whole body or None; ``notes`` are the failures for the report at the end.
    """

    __slots__ = ("body", "id", "leases", "mark", "meta", "notes", "remaining")

    def __init__(
        self,
        message: str,
        meta: EnvelopeRecord,
        mark: BodyRecord,
        body: bytes | None,
        remaining: int,
        notes: Iterable[Note] = (),
    ) -> None:
        self.id = message
        self.meta = meta
        self.mark = mark
        self.body = body
        self.remaining = remaining
        self.notes = list(notes)
        self.leases = 0

    @property
    def size_bytes(self) -> int:
        """The memory that this entry takes, roughly."""
        return OVERHEAD_BYTES + len(self.meta.header) + (len(self.body) if self.body is not None else 0)


class ActiveMessages:
    """Entries by message id, oldest first, of ``limit_bytes`` in all unless leases keep more."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._entries: OrderedDict[str, ActiveMessage] = OrderedDict()
        self._size_bytes = 0
        # Of the recipients of evicted messages without notes. To count them again takes three ranges of the store, which may be
        # full of tombstones: of mail that was deferred and is due again, all of ``deferred/`` behind it.
        self._counts: dict[str, int] = {}

    def add(self, entry: ActiveMessage) -> None:
        """Keep ``entry`` if the limit allows or it is leased; old entries without leases make room."""
        self._entries[entry.id] = entry
        self._size_bytes += entry.size_bytes
        if self._size_bytes > self._limit:
            self._evict(entry)

    def _evict(self, newest: ActiveMessage) -> None:
        for oldest in list(islice(self._entries.values(), EVICT_LOOK)):
            if self._size_bytes <= self._limit:
                return
            if oldest.leases:
                self._entries.move_to_end(oldest.id)
            elif oldest is not newest:
                self._forget(oldest)
        if self._size_bytes > self._limit and not newest.leases:
            self._forget(newest)

    def _forget(self, entry: ActiveMessage) -> None:
        if self._entries.get(entry.id) is entry:
            del self._entries[entry.id]
            self._size_bytes -= entry.size_bytes
            is_known = 0 < entry.remaining < UNCOUNTED and not entry.notes
            if is_known and len(self._counts) < COUNTS_MAX:
                self._counts[entry.id] = entry.remaining

    def acquire(self, store: Store, message: str) -> ActiveMessage:
        """The entry of ``message``, which is read if there is none, with one lease more. Raises QueueCorrupt."""
        entry = self._entries.get(message)
        if entry is None:
            entry = self._read(store, message)
            entry.leases = 1
            self.add(entry)
        else:
            entry.leases += 1
        return entry

    def _read(self, store: Store, message: str) -> ActiveMessage:
        remaining = self._counts.pop(message, 0)
        if remaining:
            return ActiveMessage(message, *read_message(store, message), None, remaining)
        with store.frozen() as view:  # one moment: a wake between two reads would be counted nowhere
            meta, mark = read_message(view, message)
            remaining, notes = count_remaining(view, message, meta.zones)
        return ActiveMessage(message, meta, mark, None, remaining, notes)

    def set_body(self, entry: ActiveMessage, body: bytes) -> None:
        """Keep the body of ``entry`` in memory while it is leased; two leases may have read it."""
        if entry.body is not None:
            return
        if self._entries.get(entry.id) is entry:
            self._size_bytes += len(body)
        entry.body = body

    def release(self, entry: ActiveMessage) -> None:
        """A lease of ``entry`` has ended and its commit is on disk."""
        entry.leases -= 1
        if entry.leases == 0 and (entry.remaining == 0 or self._size_bytes > self._limit):
            self._forget(entry)


class Lease:
    """Recipients of one message at one destination, held by one worker until settled or released."""

    __slots__ = ("active", "destination", "number", "recipients", "zone")

    def __init__(
        self, active: ActiveMessage, zone: str, destination: str, recipients: list[QueuedRecipient]
    ) -> None:
        self.active = active
        self.zone = zone
        self.destination = destination
        self.recipients = recipients
        self.number: int | None = None  # of the transaction, once started


def read_message(view: View, message: str) -> tuple[EnvelopeRecord, BodyRecord]:
    """The envelope and the marker of a message. Raises QueueCorrupt when one is missing."""
    meta = view.get(keys.meta_key(message))
    mark = view.get(keys.mark_key(message))
    if meta is None or mark is None:
        raise QueueCorrupt(f"{message}: recipients without a message")
    return read_meta(meta), read_mark(mark)


def notes_of(view: View, message: str) -> Iterator[Note]:
    """The failures noted for the report at the message's end. Raises QueueCorrupt."""
    prefix = keys.bounce_prefix(message)
    for _, value in view.scan(prefix, keys.end_of(prefix)):
        yield read_note(value)


def count_remaining(view: View, message: str, zones: Sequence[str]) -> tuple[int, list[Note]]:
    """How many recipients a message still has, and the failures noted; UNCOUNTED when damaged. Raises QueueUnreadable.

    Of a damaged one the readable recipients are delivered, and only a repair ends it.
    """
    try:
        notes = list(notes_of(view, message))
        return sum(1 for _ in recipients_of(view, message, zones)), notes
    except QueueUnreadable:
        raise
    except QueueCorrupt as exc:
        log.critical("%s will not be removed at its end, repair the queue: %s", message, exc)
        return UNCOUNTED, []


def recipient_keys(
    view: View, active: ActiveMessage, spaces: Sequence[bytes] = (keys.WAITING, keys.DEFERRED)
) -> Iterator[bytes]:
    """Keys of the recipients a message still has, of the first of ``spaces`` first.

    No range is read behind the last of them: the store would go through all tombstones there. While another lease may
    have settled some whose keys are still there, their number is not known.
    """
    left = active.remaining if active.leases == 1 else UNCOUNTED
    for space in spaces:
        for zone in active.meta.zones:
            prefix = keys.zone_prefix(space, zone, active.id)
            for key in view.keys(prefix, keys.end_of(prefix)) if left > 0 else ():
                yield key
                left -= 1
                if left <= 0:
                    return


def recipients_of(view: View, message: str, zones: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the recipients a message still has, waiting and deferred."""
    for zone in zones:
        for space in (keys.WAITING, keys.DEFERRED):
            prefix = keys.zone_prefix(space, zone, message)
            yield from view.scan(prefix, keys.end_of(prefix))


# ---- Bodies in 64 KiB values: written as they arrive, read back and compared with their checksum.
#
# A body of one chunk is written with its message. A longer one writes ``open/`` with its first chunk, so
# that the sweep after a crash finds all its chunks.

WRITES_AHEAD = 4  # chunks per message submitted and not yet written: bounds memory, keeps the disk busy


class Upload(Protocol):
    """A body being received, as the queue sees it.

    ``abandoned``: its chunks are not complete; it cannot be accepted any more.
    """

    @property
    def id(self) -> str:
        """The id of the message."""

    abandoned: bool

    @property
    def chunks(self) -> int:
        """The number of chunks that were submitted for writing."""

    @property
    def last(self) -> bytes:
        """The chunk for the accept batch; empty for an empty body."""

    def mark(self, created_ms: int) -> BodyRecord:
        """The marker of the finished body."""


class Commits(Protocol):
    """Writes batches in the order of their submission."""

    @property
    def failure(self) -> QueueUnavailable | None:
        """The error because of which nothing is written any more, or None."""

    def submit(self, batch: WriteBatch) -> CommitFuture:
        """Write ``batch`` after all before it; the future fails with QueueUnavailable."""


class MessageWriter:
    """Splits a body into chunks. ``last`` is left for the accept batch."""

    def __init__(
        self,
        message: str,
        boot: int,
        commits: Commits,
        register: MutableMapping[str, Upload],
    ) -> None:
        self.id = message
        self.abandoned = False
        self.chunks = 0
        self.size = 0
        self.crc = 0
        self._boot = boot
        self._commits = commits
        self._pieces: list[bytes] = []
        self._held = 0
        self._register = register  # writers with chunks on disk, for the sweep
        self._ahead: deque[CommitFuture] = deque()

    def write(self, data: bytes) -> CommitFuture | None:
        """Append ``data`` of any length; the future, if any, must be done before the next write.

        Raises QueueUnavailable, LocalError over 61 GiB.
        """
        size = len(data)
        self.size += size
        self.crc = crc32(data, self.crc)
        if self._held + size <= CHUNK_BYTES:
            self._pieces.append(data)
            self._held += size
            return None
        at = CHUNK_BYTES - self._held
        self._pieces.append(data[:at])
        self._put(b"".join(self._pieces))
        while size - at > CHUNK_BYTES:
            self._put(data[at : at + CHUNK_BYTES])
            at += CHUNK_BYTES
        self._pieces = [data[at:]]
        self._held = size - at
        wait_for = None
        while len(self._ahead) > WRITES_AHEAD:
            wait_for = self._ahead.popleft()  # batches are written in order
        return wait_for

    def _put(self, chunk: bytes) -> None:
        if self._commits.failure is not None:
            raise self._commits.failure
        self.chunks += 1
        if self.chunks >= CHUNKS_MAX:
            raise LocalError("the body has too many chunks")
        batch = WriteBatch()
        batch.kinds.append("chunk")
        batch.may_wait = True
        batch.put(chunk_key(self.id, self.chunks), chunk)
        if self.chunks == 1:
            self._register[self.id] = self
        if self.chunks % 1024 == 1:
            batch.put(open_key(self.id), pack(Open(FORMAT, self._boot, now_ms())))
        self._ahead.append(self._commits.submit(batch))

    @property
    def last(self) -> bytes:
        """The final chunk; empty for an empty body."""
        return b"".join(self._pieces)

    def mark(self, created_ms: int) -> BodyRecord:
        """The marker of the finished body."""
        chunks = self.chunks + (1 if self._held else 0)
        return BodyRecord(FORMAT, created_ms, self.size, chunks, self.crc)


class BodyCheck:
    """Compares the chunks of a body, in order, with its marker.

    The last chunk is compared before it is returned, so that a damaged body is never complete.
    """

    __slots__ = ("_crc", "_mark", "_message", "_number", "_size")

    def __init__(self, message: str, mark: BodyRecord) -> None:
        self._message = message
        self._mark = mark
        self._number = self._size = self._crc = 0

    def chunk(self, chunk: bytes | None) -> bytes:
        """The next chunk. Raises QueueCorrupt when it is missing, or the last and the sums differ."""
        mark, message = self._mark, self._message
        self._number += 1
        if chunk is None:
            raise QueueCorrupt(f"{message}: chunk {self._number} of {mark.chunks} is missing")
        self._crc = crc32(chunk, self._crc)
        self._size += len(chunk)
        if self._number == mark.chunks and (self._size, self._crc) != (mark.size, mark.crc):
            raise QueueCorrupt(f"{message}: the body is damaged (size {self._size} of {mark.size})")
        return chunk


def read_body(view: View, message: str, mark: BodyRecord) -> Iterator[bytes]:
    """The chunks of a body, in order. Raises QueueCorrupt before a damaged one is complete."""
    check = BodyCheck(message, mark)
    for number in range(1, mark.chunks + 1):
        yield check.chunk(view.get(chunk_key(message, number), checked=False))


# ---- Reading the bodies of active messages. No coroutine here blocks the event loop, also on a remote store.

SPOOL_MEMORY_BYTES = 1 << 20  # of one spooled body; the remainder is in a temporary file


class Bodies:
    """The bodies in ``store``, and those that ``active`` messages have in memory."""

    def __init__(self, store: Store, active: ActiveMessages) -> None:
        self._store = store
        self._active = active

    def read(self, message: ActiveMessage) -> Iterator[bytes]:
        """The body in chunks. Raises QueueCorrupt before a damaged one is complete.

        Blocks while chunks are read from a remote store: on the loop, ``prefetch`` first.
        """
        if message.body is not None:
            return iter((message.body,)) if message.body else iter(())
        return read_body(self._store, message.id, message.mark)

    async def stream(self, message: ActiveMessage) -> AsyncIterator[bytes]:
        """The body in chunks. Raises QueueCorrupt, see ``read``."""
        if not self._is_remote(message):
            for chunk in self.read(message):
                yield chunk
            return
        check = BodyCheck(message.id, message.mark)
        for number in range(1, message.mark.chunks + 1):
            yield check.chunk(await self._store.fetch_chunk(chunk_key(message.id, number)))

    def small(self, message: ActiveMessage) -> bytes | None:
        """The body if it is at most one chunk that is read without waiting, else None. Raises QueueCorrupt."""
        if message.body is None and (message.mark.chunks > 1 or self._store.is_remote()):
            return None
        return b"".join(self.read(message))

    async def prefetch(self, message: ActiveMessage, limit_bytes: int) -> None:
        """Read a remote body of at most ``limit_bytes``, so that ``read`` does not block. Raises QueueCorrupt."""
        if self._is_remote(message) and message.mark.size <= limit_bytes:
            body = b"".join([chunk async for chunk in self.stream(message)])
            self._active.set_body(message, body)

    @asynccontextmanager
    async def spooled(self, message: ActiveMessage) -> AsyncIterator[Callable[[], Iterator[bytes]]]:
        """A function that returns the body in chunks without waiting, each time from its first byte.

        A remote body is copied to a temporary file first. The chunks raise QueueCorrupt, see ``read``.
        """
        if not self._is_remote(message):
            yield lambda: self.read(message)
            return
        damage: list[QueueCorrupt] = []
        with SpooledTemporaryFile(SPOOL_MEMORY_BYTES) as copy:
            try:
                async for chunk in self.stream(message):
                    copy.write(chunk)
            except QueueCorrupt as exc:
                damage.append(exc)

            def chunks() -> Iterator[bytes]:
                copy.seek(0)
                while chunk := copy.read(CHUNK_BYTES):
                    yield chunk
                if damage:
                    raise damage[0]

            yield chunks

    def _is_remote(self, message: ActiveMessage) -> bool:
        return message.body is None and self._store.is_remote()
