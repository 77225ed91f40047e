"""A store in memory: for tests, for mail that may be lost with the process, and as the base of other stores.

The adapter of sortedcontainers.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from threading import RLock
from typing import Any

import sortedcontainers

from zonemta_py.storage.interface import Op, Space

_sorted: Any = sortedcontainers  # it has no type annotations

PAGE_KEYS = 256  # read under one lock, which limits how long a writer waits


class MemoryStore:
    """Ordered keys in this process. ``close`` keeps them: the object can be used again."""

    failed_reads = 0  # keys are not read from a disk

    def __init__(self) -> None:
        self._values = _sorted.SortedDict()
        self._size_bytes = 0
        self._lock = RLock()  # the queue writes in a thread

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        value: bytes | None = self._values.get(key)
        return value

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in self.keys(start, stop):
            value = self.get(key)
            if value is not None:
                yield key, value

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        while True:
            with self._lock:
                page = list(islice(self._values.irange(start, stop, inclusive=(True, False)), PAGE_KEYS))
            yield from page
            if len(page) < PAGE_KEYS:
                return
            start = page[-1] + b"\x00"

    @contextmanager
    def frozen(self) -> "Iterator[MemoryStore]":
        """A consistent view: changes wait until it is closed."""
        with self._lock:
            yield self

    async def fetch_chunk(self, key: bytes) -> bytes | None:
        return self.get(key, checked=False)

    def batch(self, ops: Iterable[Op], *, sync: bool) -> Any:
        """Return the operations; there is nothing to sync."""
        return list(ops)

    def write(self, batch: Any) -> None:
        """Apply the whole batch before the next read."""
        values = self._values
        with self._lock:
            for key, value in batch:
                old = values.pop(key, None) if value is None else values.get(key)
                if old is not None:
                    self._size_bytes -= self._size_of(key, old)
                if value is not None:
                    values[key] = value
                    self._size_bytes += self._size_of(key, value)

    def _size_of(self, key: bytes, value: bytes) -> int:
        return len(value)

    def compact(self) -> None:
        """Do nothing: removed keys take no space."""

    def size_bytes(self) -> int:
        return self._size_bytes

    def is_behind(self) -> bool:
        """Return False: there is no deferred work."""
        return False

    def has_snapshots(self) -> bool:
        """Return False: changes wait."""
        return False

    def is_remote(self) -> bool:
        return False

    def space(self) -> Space | None:
        return None

    def check(self) -> Iterator[str]:
        return iter(())

    def freed_chunk_bytes(self) -> int:
        return 0

    def is_sparse(self) -> bool:
        return False

    def close(self) -> None:
        """Keep the values, for the next user of the object."""
