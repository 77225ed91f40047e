"""Active messages: those being accepted or delivered, with their envelope and recipient count.

Whether a recipient is the last of its message is decided from this count and not from the store, where
two settles before one commit would both see the other's recipient (decision 7). The count is made when it
is first needed and kept while the message is leased; recently accepted messages stay within a limit of
bytes, which saves reading them back. Of those that do not the count remains until their first lease: to make it again costs
three ranges.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Mark, Meta, Note, read_mark, read_meta, read_note
from zonemta_py.queue.submitter_queues import QueuedRecipient
from zonemta_py.storage.interface import Store, View

OVERHEAD_BYTES = 600  # of one entry, without its header and body
EVICT_LOOK = 16  # old entries examined to make room for one
COUNTS_MAX = 200_000  # of messages that are not in memory, 180 bytes each
UNCOUNTED = 1 << 40  # ``remaining`` of a message whose recipients cannot all be read

log = logging.getLogger(__name__)


class ActiveMessage:
    """A message in memory.

    ``remaining`` counts the recipients that no decision has settled; ``leases`` keep the entry;
    ``body`` is the whole body or None; ``notes`` are the failures for the report at the end.
    """

    __slots__ = ("body", "id", "leases", "mark", "meta", "notes", "remaining")

    def __init__(
        self,
        message: str,
        meta: Meta,
        mark: Mark,
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


def read_message(view: View, message: str) -> tuple[Meta, Mark]:
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
    """How many recipients a message still has, and the failures noted; UNCOUNTED when damaged.

    Then the readable recipients are delivered, and only a repair ends the message.
    """
    try:
        notes = list(notes_of(view, message))
        return sum(1 for _ in recipients_of(view, message, zones)), notes
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
