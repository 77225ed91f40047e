"""A store in memory: for tests, and for mail that may be lost with the process.

The one door to sortedcontainers.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from threading import RLock
from typing import Any

import sortedcontainers

from zonemta_py.storage.interface import Op

_sorted: Any = sortedcontainers  # it comes without types

BLOCK_KEYS = 256  # read at once, so that a writer waits no longer than that


class MemoryStore:
    """Ordered keys in this process. ``close`` keeps them: the object can be opened again."""

    def __init__(self) -> None:
        self._values = _sorted.SortedDict()
        self._lock = RLock()  # the queue writes from a thread of its own

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        """The value of ``key``, or None."""
        value: bytes | None = self._values.get(key)
        return value

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in order; see ``View``."""
        for key in self.keys(start, stop):
            value = self.get(key)
            if value is not None:
                yield key, value

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Keys in order; see ``View``."""
        while True:
            with self._lock:
                block = list(
                    islice(self._values.irange(start, stop, inclusive=(True, False)), BLOCK_KEYS)
                )
            yield from block
            if len(block) < BLOCK_KEYS:
                return
            start = block[-1] + b"\x00"

    @contextmanager
    def frozen(self) -> "Iterator[MemoryStore]":
        """One moment: whoever writes waits."""
        with self._lock:
            yield self

    def batch(self, ops: Iterable[Op], *, sync: bool) -> list[Op]:
        """The operations themselves; memory has nothing to sync."""
        return list(ops)

    def write(self, batch: list[Op]) -> None:
        """Apply the whole batch before anybody reads again."""
        with self._lock:
            for key, value in batch:
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = value

    def compact(self) -> None:
        """Nothing to do: removed keys take no room."""

    def size_bytes(self) -> int:
        """The octets of all values."""
        with self._lock:
            return sum(map(len, self._values.values()))

    def is_behind(self) -> bool:
        """Never: nothing is put off."""
        return False

    def is_remote(self) -> bool:
        """No."""
        return False

    def close(self) -> None:
        """The values stay, for whoever holds the object."""
