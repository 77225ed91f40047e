"""Messages being worked on: their envelope, a small body, and how many recipients remain.

"Is this the last recipient?" is answered here and not from the database, where two settles before
one commit would both be told no (decision 7). The count of a message is made when it is first
needed and kept as long as the message is leased; recently accepted ones stay within a byte limit,
which saves reading them back.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from zonemta_py.queue.records import Mark, Meta, Note

OVERHEAD_BYTES = 600  # of one entry, beside its header and body
EVICT_LOOK = 16  # old entries looked at to make room for one


class LiveMessage:
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


class LiveMessages:
    """The entries by id, oldest first, within ``limit_bytes`` unless leases pin more."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._entries: OrderedDict[str, LiveMessage] = OrderedDict()
        self._bytes = 0

    def get(self, message: str) -> LiveMessage | None:
        """The entry of ``message``, if there is one."""
        return self._entries.get(message)

    def add(self, entry: LiveMessage) -> None:
        """Keep ``entry`` if the limit allows or leases pin it; old ones without leases make room."""
        self._entries[entry.id] = entry
        self._bytes += entry.cost
        if self._bytes > self._limit:
            self._shrink(entry)

    def _shrink(self, newest: LiveMessage) -> None:
        for oldest in list(islice(self._entries.values(), EVICT_LOOK)):
            if self._bytes <= self._limit:
                return
            if oldest.leases:
                self._entries.move_to_end(oldest.id)
            elif oldest is not newest:
                self._forget(oldest)
        if self._bytes > self._limit and not newest.leases:
            self._forget(newest)

    def _forget(self, entry: LiveMessage) -> None:
        if self._entries.get(entry.id) is entry:
            del self._entries[entry.id]
            self._bytes -= entry.cost

    def unpin(self, entry: LiveMessage) -> None:
        """A lease of ``entry`` has ended and its commit is on disk."""
        entry.leases -= 1
        if entry.leases == 0 and (entry.remaining == 0 or self._bytes > self._limit):
            self._forget(entry)
