"""What the queue needs of a store: ordered keys, and batches that are written whole or not at all.

The verbs above it make every transition one batch, so a store knows nothing of mail (decision 21).
Reads are short and run on the loop thread; ``write`` and ``compact`` are for threads of their own.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

Op = tuple[bytes, bytes | None]  # a key and its value, or None to remove it


class View(Protocol):
    """Reading. Keys are ordered by their bytes."""

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        """The value of ``key``, or None. Raises QueueCorrupt when it cannot be read.

        Not ``checked``: the caller compares a checksum of its own, one is enough.
        """

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from ``start`` (inclusive) to ``stop`` (exclusive).

        What is committed while it runs may be seen or not; ``frozen`` gives one moment.
        """

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """As ``scan``, without values."""


class Store(View, Protocol):
    """An open store. Opening raises QueueLocked when another process has it."""

    def frozen(self) -> AbstractContextManager[View]:
        """One moment of the store, for reads that must agree with each other. Keep it short."""

    def batch(self, ops: Iterable[Op], *, sync: bool) -> Any:
        """A batch for ``write``, built on the loop thread. ``sync``: on disk when ``write`` returns."""

    def write(self, batch: Any) -> None:
        """Write all of ``batch`` or nothing. Raises QueueUnavailable, and then for every later batch."""

    def compact(self) -> None:
        """Give back the disk space of removed keys, if the store keeps it."""

    def size_bytes(self) -> int:
        """Roughly what the store takes."""

    def is_behind(self) -> bool:
        """Whether more large writes now would make every later write wait."""

    def is_remote(self) -> bool:
        """Whether reading takes a trip over the network: bodies are then read in threads."""

    def close(self) -> None:
        """Close; nobody may be reading or writing."""
