"""The one door to LevelDB.

Reads and short ranges take microseconds and run on the loop thread. ``write`` and ``compact`` are
for a thread of their own. After a failed write every later one fails until the database is opened
again, which LevelDB insists on and we rely on.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import plyvel

from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueLocked, QueueUnavailable
from zonemta_py.storage.interface import Op

WRITE_BUFFER_BYTES = 16 << 20  # rate against reopen time and retained disk, see decision 6
CACHE_BYTES = 32 << 20
LEVEL0_FILES = 6  # it slows writes down at 8, and stops them at 12

_leveldb: Any = plyvel  # it comes without types


class LevelDBView:
    """Reading, from the database as it changes or from a snapshot of it."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        """The value of ``key``, or None. Raises QueueCorrupt when LevelDB cannot read it."""
        try:
            value: bytes | None = self._source.get(key, verify_checksums=checked)
        except (_leveldb.Error, OSError) as exc:
            raise QueueCorrupt(f"{key!r} cannot be read: {exc}") from exc
        return value

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from ``start`` (inclusive) to ``stop`` (exclusive), as of the first one."""
        return self._iterate(start, stop, include_value=True)

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """As ``scan``, without values."""
        return self._iterate(start, stop, include_value=False)

    def _iterate(self, start: bytes, stop: bytes, *, include_value: bool) -> Iterator[Any]:
        try:
            yield from self._source.iterator(
                start=start, stop=stop, include_value=include_value, verify_checksums=True
            )
        except (_leveldb.Error, OSError) as exc:
            raise QueueCorrupt(f"the range from {start!r} cannot be read: {exc}") from exc


class LevelDBStore(LevelDBView):
    """An open database. ``directory`` is made if need be; QueueLocked when another has it open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._db: Any = _leveldb.DB(
                str(directory),
                create_if_missing=True,
                paranoid_checks=True,  # a damaged log is an error, and not mail that silently is not there
                write_buffer_size=WRITE_BUFFER_BYTES,
                lru_cache_size=CACHE_BYTES,
                compression=None,  # bodies stay for seconds: a third of the CPU of large mail, see decision 6
            )
        except _leveldb.IOError as exc:
            if "lock" in str(exc).lower() and "permission" not in str(exc).lower():
                raise QueueLocked(f"{directory}: in use by another process") from exc
            raise LocalError(f"{directory}: {exc}") from exc
        except (_leveldb.Error, OSError) as exc:
            raise LocalError(f"{directory}: {exc}") from exc
        super().__init__(self._db)

    @contextmanager
    def frozen(self) -> Iterator[LevelDBView]:
        """One moment of the database, for reads that must agree with each other. Keep it short."""
        snapshot = self._db.snapshot()
        try:
            yield LevelDBView(snapshot)
        finally:
            snapshot.close()

    def batch(self, ops: Iterable[Op], *, sync: bool) -> Any:
        """A write batch, built here: doing it in a thread beside a busy loop takes 300 times longer."""
        batch = self._db.write_batch(sync=sync)
        put, delete = batch.put, batch.delete
        for key, value in ops:
            if value is None:
                delete(key)
            else:
                put(key, value)
        return batch

    def write(self, batch: Any) -> None:
        """Write what ``batch`` holds, all or nothing. Raises QueueUnavailable."""
        try:
            batch.write()
        except (_leveldb.Error, OSError) as exc:
            raise QueueUnavailable(f"{self._directory}: {exc}") from exc

    def compact(self) -> None:
        """Give back the disk space of removed keys. Both ends are named: without them it does nothing."""
        self._db.compact_range(start=b"\x00", stop=b"\xff\xff")

    def size_bytes(self) -> int:
        """Roughly what the database takes on disk, without its log."""
        sizes: list[int] = self._db.approximate_sizes((b"\x00", b"\xff\xff"))
        return sizes[0]

    def is_behind(self) -> bool:
        """Whether compaction has so much to do that LevelDB will soon stop all writes."""
        return int(self._db.get_property(b"leveldb.num-files-at-level0")) >= LEVEL0_FILES

    def is_remote(self) -> bool:
        """No: it is on this machine's disk, and mostly in its memory."""
        return False

    def close(self) -> None:
        """Close; nobody may be reading or writing, or the process dies."""
        self._db.close()


def repair_database(directory: Path) -> None:
    """LevelDB's own repair: every table and log that can be read, put together again. LocalError."""
    try:
        _leveldb.repair_db(str(directory), paranoid_checks=True)
    except (_leveldb.Error, OSError) as exc:
        raise LocalError(f"{directory}: {exc}") from exc
