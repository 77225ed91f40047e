"""The interface of a store: keys in byte order, and batches that are written completely or not at all.

A store knows nothing of mail but the layout of the keys: every transition of the queue is one batch
(decision 21). Reads are called on the event loop and return at once, with one exception: the chunks of
bodies, which a remote store keeps on its server. ``write``, ``compact`` and ``close`` block and belong
in a thread.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, NamedTuple, Protocol

Op = tuple[bytes, bytes | None]  # a key and its value, or None to remove it

# The key of an operation, without value, for a store that ``is_sparse``: write some chunks to another place.
MOVE_CHUNKS = b"segment/move"

# Why a store on this machine writes no more: its files would be where no later opening finds them.
GONE = "deleted or replaced while it was in use: the mail that was queued in it is lost, unless it is put back"


class Access(Enum):
    """The permissions of an opening of the store.

    Only ``CREATE`` makes a new store, and only where nothing is. ``READ`` changes nothing on disk. ``OLDER``
    opens a queue that is older than its event log, ``REPAIR`` also one whose format is missing.
    """

    CREATE = "create"
    EXISTING = "existing"
    READ = "read"
    OLDER = "older"
    REPAIR = "repair"


class View(Protocol):
    """Read access. Keys are ordered by their bytes."""

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        """Return the value of ``key``, or None. Raises QueueCorrupt when it cannot be read, QueueUnreadable if that may change.

        With ``checked`` false the store skips its own checksum: the caller compares another one.
        Blocks for a chunk of a remote store; see ``Store.fetch_chunk``.
        """

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values from ``start`` (inclusive) to ``stop`` (exclusive). Raises QueueCorrupt.

        A batch that is written meanwhile may be seen or not; ``frozen`` gives a consistent view.
        """

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys that ``scan`` would yield. Raises QueueCorrupt."""


class Space(NamedTuple):
    """Bytes that a store can still take, and in all; ``free`` is negative when it has more than it should."""

    free: int
    total: int


class Store(View, Protocol):
    """An open store. Opening raises QueueLocked when another process has it open."""

    @property
    def failed_reads(self) -> int:
        """How many looks at keys the disk has refused since the opening; those at bodies do not count."""

    def frozen(self) -> AbstractContextManager[View]:
        """A consistent view, for reads that must agree. Writes may wait until it is closed."""

    async def fetch_chunk(self, key: bytes) -> bytes | None:
        """Return the value of a chunk's key, or None, without blocking the calling loop.

        Its checksum is not compared (``checked`` is false). Raises QueueCorrupt when it cannot be read.
        """

    def batch(self, ops: Iterable[Op], *, sync: bool) -> Any:
        """Build a batch for ``write``. With ``sync`` it is on disk when ``write`` returns.

        A batch of nothing but chunks may be read, and be on disk, only after the next one that has other
        operations, or none at all.
        """

    def write(self, batch: Any) -> None:
        """Write all of ``batch`` or nothing. Raises QueueUnavailable, also for every later batch."""

    def compact(self) -> None:
        """Free the disk space of removed keys, where the store has not done so."""

    def size_bytes(self) -> int:
        """Return the approximate size of the store."""

    def is_behind(self) -> bool:
        """Return whether more large writes would now delay every later write."""

    def has_snapshots(self) -> bool:
        """Return True if writes continue while a view is frozen."""

    def is_remote(self) -> bool:
        """Return whether chunks are on a server.

        Then ``get`` and ``scan`` block for each chunk: an event loop uses ``fetch_chunk``. Everything
        else is read from memory.
        """

    def space(self) -> Space | None:
        """Return the space of a store with a limit of its own; None: that of the disk counts."""

    def check(self) -> Iterator[str]:
        """Yield what is wrong below the keys, a text for each, and "" where other tasks may run."""

    def freed_chunk_bytes(self) -> int:
        """Return the bytes of removed chunks that the next ``compact`` frees."""

    def is_sparse(self) -> bool:
        """Return whether a batch with MOVE_CHUNKS would lead to free disk space."""

    def close(self) -> None:
        """Close the store. No other call may be running."""
