"""The store in LevelDB, with the chunks of large bodies in segment files (decision 88).

LevelDB writes each byte about four times and computes its checksums in software. A chunk of ``LARGE_BYTES`` or more that ends
behind ``segments_from`` bytes of its body is written once, to the end of a segment; its key has a reference. A ``segment/`` key
in the database keeps the segment.

States::

    chunk:    placed ─▶ appended ─▶ referenced ─▶ removed
    segment:  newest ─▶ full ─▶ sparse ─▶ unneeded ─▶ removed     a sparse one is emptied: its chunks are appended anew

Invariants:

- Bytes before references: ``write`` syncs segments before it writes the batch that refers to them. So a reference in the
  database is good after any crash; bytes without a reference are unused.
- ``batch`` decides where chunks go, on the event loop; ``write`` carries it out, in a thread. Batches are written one after the
  other in the order in which they were built.
- A batch of nothing but chunks is only appended; its references follow with the next other batch, at the latest after
  UNSYNCED_BYTES_MAX. Reads of such a chunk find nothing until then.
- A segment is removed only when the database has no ``segment/`` key of it (``_remove`` asks, the count is not enough), and not
  while a frozen view may read it.

Callers: ``storage.open`` opens the store; ``queue.commit`` builds and writes the batches; ``queue.upkeep`` sends MOVE_CHUNKS and
calls ``compact``; ``segments.SegmentUse`` decides which segments are needed.

Example: a message of 1 MiB comes in 16 chunks of 64 KiB. They are appended to ``00000001.segment``; the batch that accepts the
message has 16 references of 24 bytes and 16 ``segment/`` keys, and is written after the segment is on disk.

Source: doc/impl.md of LevelDB (compactions).
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from zonemta_py.core.codec import crc32
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import MOVE_CHUNKS, Access, Op, Space
from zonemta_py.storage.leveldb import LevelDB
from zonemta_py.storage.segments import (
    FIRST,
    REFERENCE_BYTES,
    Append,
    Reference,
    SegmentedView,
    SegmentFiles,
    SegmentUse,
    check_segments,
    decode_reference,
)

log = logging.getLogger(__name__)


DIRECTORY = "bodies"
UNSYNCED_BYTES_MAX = 4 << 20  # appended and without references: what the next sync has to wait for
MOVED_AT_ONCE = 16  # chunks
LARGE_BYTES = 32 << 10  # of a chunk that may be in a segment


class _Write(NamedTuple):
    """The steps of ``write``: append, sync and write ``batch`` (None: later), remove the ``unneeded`` segments."""

    appends: list[Append]
    sync: bool
    batch: Any | None
    unneeded: list[int]


class LevelDBStore(SegmentedView):
    """An open database in ``directory``, and the segments below it.

    ``segments_from``: chunks of shorter bodies, and those before this byte of longer ones, are in the database; None: all
    are. ``batch`` decides and must not be called while another batch is written; see ``LevelDB`` for errors.
    """

    def __init__(
        self, directory: Path, access: Access = Access.CREATE, segments_from: int | None = LARGE_BYTES
    ) -> None:
        self._database = LevelDB(directory, access)
        super().__init__(self._database, SegmentFiles(directory / DIRECTORY))
        longest_bytes = keys.CHUNKS_MAX * keys.CHUNK_BYTES
        self._from_bytes = longest_bytes + 1 if segments_from is None else segments_from
        self._appends: list[Append] = []
        self._unwritten: dict[bytes, Reference] = {}  # appended, the reference not in the database
        self._unsynced_bytes = 0
        self._freed_bytes = 0
        try:
            if access is Access.REPAIR:
                self._rebuild()
            last = int(self._database.get(keys.META_SEGMENT) or b"0")
            self._use = SegmentUse(self._files.sizes(), self._segment_keys(), last)
            self._named = self._use.newest  # the last number that the database has
            if access is not Access.READ:
                for number in self._use.take_unneeded():
                    self._remove(number)
        except BaseException as exc:
            self.close()
            if isinstance(exc, OSError | ValueError):
                raise LocalError(f"{self._files.directory}: {exc}") from exc
            raise

    # ---- opening

    def _segment_keys(self) -> Iterator[bytes]:
        return self._database.keys(keys.SEGMENT, keys.end_of(keys.SEGMENT))

    def _rebuild(self) -> None:
        """Write the SEGMENT keys again: a repair of the database may have lost some, or brought some back."""
        ops: list[Op] = [(key, None) for key in self._segment_keys()]
        for key, value in self._database.scan(keys.MESSAGE, keys.end_of(keys.MESSAGE)):
            reference = decode_reference(value)
            if reference is not None and keys.chunk_number(key):
                ops.append((keys.segment_key(reference.segment, key), b""))
        self._database.write(self._database.batch(ops, sync=True))

    # ---- reading

    @property
    def failed_reads(self) -> int:
        """How many looks at keys the disk has refused."""
        return self._database.failed_reads

    @contextmanager
    def frozen(self) -> Iterator[SegmentedView]:
        """A snapshot; no segment is removed before its end. Keep it short: it delays compaction."""
        # Pinned before the snapshot: what is removed now, it does not have.
        with self._use.pinned(), self._database.frozen() as view:
            yield SegmentedView(view, self._files)

    async def fetch_chunk(self, key: bytes) -> bytes | None:
        return self.get(key, checked=False)

    # ---- writing

    def batch(self, ops: Iterable[Op], *, sync: bool) -> Any:
        """Give large chunks their places, and build the batch for the database.

        A batch of nothing but such chunks is only appended: their references are in a later one, at the latest behind
        UNSYNCED_BYTES_MAX. With no operations all references are written. A removed first chunk is looked up if one is in a segment.
        """
        others: list[Op] = []
        for op in ops:
            key, value = op
            if value is None:
                if len(key) == keys.CHUNK_KEY_BYTES and (
                    self._use.has_firsts() or not key.endswith(FIRST)
                ):
                    self._forget(key, others)
                elif key == MOVE_CHUNKS:
                    self._move(others)
                    continue
                others.append(op)
            elif (
                (size := len(value)) >= LARGE_BYTES or size == REFERENCE_BYTES
            ) and self._is_for_segment(key, value):
                self._place(key, value)
            else:
                others.append(op)
        appends, self._appends = self._appends, []
        if appends and not others and sync and self._unsynced_bytes < UNSYNCED_BYTES_MAX:
            return _Write(appends, sync, None, [])
        if not (self._unwritten or self._use.has_unneeded()):
            return self._database.batch(others, sync=sync)
        written = self._database.batch(self._referenced(others), sync=sync)
        return _Write(appends, sync, written, self._use.take_unneeded())

    def _referenced(self, others: list[Op]) -> list[Op]:
        """``others`` behind the references of all that was appended."""
        if not self._unwritten:
            return others
        ops: list[Op] = []
        if self._named < self._use.newest:
            self._named = self._use.newest
            ops.append((keys.META_SEGMENT, b"%d" % self._named))
        for key, reference in self._unwritten.items():
            ops.append((key, reference.encode()))
            ops.append((keys.segment_key(reference.segment, key), b""))
        self._unwritten.clear()
        self._unsynced_bytes = 0
        return ops + others

    def _is_for_segment(self, key: bytes, value: bytes) -> bool:
        """True if a value of one of these sizes is a chunk that ends far enough behind the beginning of its body, or looks like a reference."""
        size = len(value)
        number = keys.chunk_number(key)
        if number == 0 or size < LARGE_BYTES:
            return number > 0 and decode_reference(value) is not None
        return (number - 1) * keys.CHUNK_BYTES + size >= self._from_bytes

    def _place(self, key: bytes, chunk: bytes) -> None:
        """Append ``chunk`` to the newest segment, or to a new one."""
        number, offset = self._use.place(key, len(chunk))
        last = self._appends[-1] if self._appends else None
        if last is not None and last.segment == number:
            last.chunks.append(chunk)
        else:
            self._appends.append(Append(number, offset, [chunk]))
        self._unsynced_bytes += len(chunk)
        self._unwritten[key] = Reference(number, offset, len(chunk), crc32(chunk))

    def _forget(self, key: bytes, others: list[Op]) -> None:
        """Forget the chunk of ``key``, which is removed, and the key that keeps its segment."""
        reference = self._unwritten.pop(key, None)
        if reference is None:
            try:
                value = self._database.get(key, checked=False) or b""
            except QueueCorrupt as exc:
                log.warning("what a chunk may have in a segment is kept until that is emptied: %s", exc)
                return
            reference = decode_reference(value)
            if reference is None:
                self._freed_bytes += 0 if key.endswith(FIRST) else len(value)
                return
            others.append((keys.segment_key(reference.segment, key), None))
        self._use.release(reference.segment, key)

    def write(self, batch: Any) -> None:
        """Write all of ``batch`` or nothing. Raises QueueUnavailable."""
        if not isinstance(batch, _Write):
            self._database.write(batch)
            return
        try:
            for append in batch.appends:
                self._files.append(append)
            if batch.batch is not None:
                self._files.finish(sync=batch.sync)
        except OSError as exc:
            raise QueueUnavailable(f"{self._files.directory}: {exc}") from exc
        if batch.batch is not None:
            self._database.write(batch.batch)
        if not self._use.postpone(batch.unneeded):
            for number in batch.unneeded:
                self._remove(number)

    def _remove(self, number: int) -> None:
        """Remove a segment that no key needs: the database is asked, the count is not enough to delete mail."""
        prefix = keys.segment_prefix(number)
        try:
            needed = next(self._database.keys(prefix, keys.end_of(prefix)), None)
            if needed is not None:
                log.error("segment %d is kept, its count was wrong: %r is in it", number, needed)
                return
            self._files.remove(number)
        except (OSError, QueueCorrupt) as exc:
            log.warning("segment %d is not removed, the next start tries again: %s", number, exc)

    # ---- emptying segments

    def is_sparse(self) -> bool:
        return self._use.sparsest() is not None

    def _move(self, others: list[Op]) -> None:
        """Append some chunks of a sparse segment again. ``others``: of the same batch, which may remove chunks."""
        number = self._use.sparsest()
        if number is None:
            return
        prefix = keys.segment_prefix(number)
        removed = {key for key, value in others if value is None}
        try:
            for segment_key in islice(self._database.keys(prefix, keys.end_of(prefix)), MOVED_AT_ONCE):
                key = keys.parse_segment(segment_key)[1]
                if key in removed or key in self._unwritten:
                    continue
                chunk = self.get(key)
                if chunk is not None:  # else it was removed, and its segment could not be looked up then
                    self._place(key, chunk)
                others.append((segment_key, None))
                self._use.release(number, key)
        except QueueCorrupt as exc:
            self._use.mark_damaged(number)
            log.error("segment %d cannot be emptied, check the queue: %s", number, exc)

    # ---- the whole store

    def compact(self) -> None:
        """Free the disk space of removed keys; segments are removed as soon as they are not needed."""
        self._freed_bytes = 0
        self._database.compact()

    def freed_chunk_bytes(self) -> int:
        return self._freed_bytes

    def size_bytes(self) -> int:
        """Return the approximate size of the database and of the segments."""
        return self._database.size_bytes() + self._use.size_bytes()

    def is_behind(self) -> bool:
        return self._database.is_behind()

    def has_snapshots(self) -> bool:
        return True

    def is_remote(self) -> bool:
        return False

    def space(self) -> Space | None:
        return None

    def check(self) -> Iterator[str]:
        """Yield what is wrong with the end of the database, the segments and their keys, and "" where other tasks may run."""
        try:
            self._database.check_end()
        except QueueCorrupt as exc:
            yield str(exc)
        yield from check_segments(self._database, self._files)

    def close(self) -> None:
        """Close the files and the database. A read or write in another thread would crash the process."""
        self._files.close()
        self._database.close()
