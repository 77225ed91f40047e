"""Messages being worked on: their envelope, a small body, and how many recipients remain.

"Is this the last recipient?" is answered here and not from the database, where two settles before
one commit would both be told no (decision 7). The count of a message is made when it is first
needed and kept as long as the message is leased; recently accepted ones stay within a byte limit,
which saves reading them back.

A lease: what a worker holds while it delivers.

Reading one message from the database, or from one moment of it.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Mark, Meta, Note, read_mark, read_meta, read_note
from zonemta_py.queue.submitter_queues import Recipient
from zonemta_py.storage.interface import View

OVERHEAD_BYTES = 600  # of one entry, beside its header and body
EVICT_LOOK = 16  # old entries looked at to make room for one


class ActiveMessage:
    """``remaining`` counts recipients not yet settled by a decision; ``leases`` pin the entry.

    ``body`` is the whole body when it is at hand, else None. ``notes`` are the failures that a
    report at the message's end will name.
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
    def cost(self) -> int:
        """Bytes this entry holds."""
        return OVERHEAD_BYTES + len(self.meta.header) + (len(self.body) if self.body is not None else 0)


class ActiveMessages:
    """The entries by id, oldest first, within ``limit_bytes`` unless leases pin more."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._entries: OrderedDict[str, ActiveMessage] = OrderedDict()
        self._bytes = 0

    def get(self, message: str) -> ActiveMessage | None:
        """The entry of ``message``, if there is one."""
        return self._entries.get(message)

    def add(self, entry: ActiveMessage) -> None:
        """Keep ``entry`` if the limit allows or leases pin it; old ones without leases make room."""
        self._entries[entry.id] = entry
        self._bytes += entry.cost
        if self._bytes > self._limit:
            self._shrink(entry)

    def _shrink(self, newest: ActiveMessage) -> None:
        for oldest in list(islice(self._entries.values(), EVICT_LOOK)):
            if self._bytes <= self._limit:
                return
            if oldest.leases:
                self._entries.move_to_end(oldest.id)
            elif oldest is not newest:
                self._forget(oldest)
        if self._bytes > self._limit and not newest.leases:
            self._forget(newest)

    def _forget(self, entry: ActiveMessage) -> None:
        if self._entries.get(entry.id) is entry:
            del self._entries[entry.id]
            self._bytes -= entry.cost

    def release_message(self, entry: ActiveMessage) -> None:
        """A lease of ``entry`` has ended and its commit is on disk."""
        entry.leases -= 1
        if entry.leases == 0 and (entry.remaining == 0 or self._bytes > self._limit):
            self._forget(entry)


class Lease:
    """Recipients of one message at one destination, in one worker's hands; a crash gives them back."""

    __slots__ = ("active", "destination", "number", "recipients", "zone")

    def __init__(
        self, active: ActiveMessage, zone: str, destination: str, recipients: list[Recipient]
    ) -> None:
        self.active = active
        self.zone = zone
        self.destination = destination
        self.recipients = recipients
        self.number: int | None = None  # of the transaction, once started


UNCOUNTED = 1 << 40

log = logging.getLogger(__name__)


def read_message(view: View, message: str) -> tuple[Meta, Mark]:
    """The markers of a message. Raises QueueCorrupt when it has none."""
    meta = view.get(keys.meta_key(message))
    mark = view.get(keys.mark_key(message))
    if meta is None or mark is None:
        raise QueueCorrupt(f"{message}: recipients without a message")
    return read_meta(meta), read_mark(mark)


def notes_of(view: View, message: str) -> Iterator[Note]:
    """The failures noted for a report at the message's end."""
    prefix = keys.bounce_prefix(message)
    for _, value in view.scan(prefix, keys.end_of(prefix)):
        yield read_note(value)


def rest_of(view: View, message: str, zones: Sequence[str]) -> tuple[int, list[Note]]:
    """How many recipients a message still has, and the failures noted; UNCOUNTED in the face of damage.

    Then those that can be read are delivered all the same, and a repair finds the message's end.
    """
    try:
        notes = list(notes_of(view, message))
        return sum(1 for _ in recipients_of(view, message, zones)), notes
    except QueueCorrupt as exc:
        log.critical("%s will not be removed at its end, repair the queue: %s", message, exc)
        return UNCOUNTED, []


def recipients_of(view: View, message: str, zones: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the recipients a message still has."""
    for zone in zones:
        for space in (keys.WAITING, keys.DEFERRED):
            prefix = keys.zone_prefix(space, zone, message)
            yield from view.scan(prefix, keys.end_of(prefix))
