"""Append-only files with chunks of large bodies, to which the database has references (decision 88).

A file ``NNNNNNNN.segment`` is 16 bytes, ``zonemta bodies 1``, and chunks without anything between them. Three classes:
``SegmentFiles`` reads and writes files, ``SegmentUse`` decides which segments are needed and where the next chunk goes, and
``SegmentedView`` shows a reader chunks in the place of references.

States of a segment: newest (chunks are appended) ─▶ full ─▶ sparse (less than a tenth is needed) ─▶ unneeded ─▶ removed.

Invariants:

- A segment is appended to only by the process that made it, up to SEGMENT_BYTES. What a crash left at its end is never overwritten
  and never referred to.
- A number that a reference has named is never used again: ``meta/segment`` has the last one, in the batch of its first reference.
- Only the database knows which chunks are needed; ``SegmentUse`` has counts of it, and chooses what to ask the database for.
- While a frozen view is open (``pinned``) no segment is removed; what was taken for removal meanwhile is postponed.
- A reader that meets a reference to a removed segment reads the key again: the chunk was removed, or moved to another segment.

Callers: ``leveldb_store.LevelDBStore``. ``SegmentFiles.read`` may be called in any thread, all other writes by one writer at a time.

Example: ``SegmentUse.place(key, 65536)`` returns ``(1, 16)`` for the first chunk of a new store, ``(1, 65552)`` for the next.

Background: Lu et al., "WiscKey: Separating Keys from Values in SSD-conscious Storage", 2016.
"""

import errno
import os
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from zonemta_py.core.codec import crc32
from zonemta_py.core.errors import QueueCorrupt, QueueUnreadable
from zonemta_py.core.files import private_directory, sync_directory, write_at
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import GONE, View
from zonemta_py.storage.leveldb import LevelDB

FILE_HEADER = b"zonemta bodies 1"
SUFFIX = ".segment"
NUMBER_DIGITS = 8
OPEN_FILES_MAX = 16  # for reading; the least recently used is closed
CHECKED_AT_ONCE = 300  # keys, without giving way to other tasks
OWN_KEYS = (keys.SEGMENT, keys.META_SEGMENT)  # of the store: no reader sees them, and no export has them
BUFFERS_MAX = 512  # of one system call; POSIX promises 16, Linux takes 1024

_LAYOUT = struct.Struct(">8sIIII")
_MAGIC = b"\x00segref\x01"
REFERENCE_BYTES = _LAYOUT.size


class Reference(NamedTuple):
    """The place of a chunk: the value of its key in the database, 24 bytes.

    The layout is ``\\0segref\\1``, then four big-endian 32-bit numbers in the order of the fields. ``crc`` is the
    CRC-32 of the chunk.
    """

    segment: int
    offset: int
    size: int
    crc: int

    def encode(self) -> bytes:
        """The value for the database."""
        return _LAYOUT.pack(_MAGIC, *self)


def decode_reference(value: bytes) -> Reference | None:
    """The reference in ``value``; None for anything else."""
    if len(value) != REFERENCE_BYTES or not value.startswith(_MAGIC):
        return None
    return Reference(*_LAYOUT.unpack(value)[1:])


class Append(NamedTuple):
    """Chunks for consecutive places of one segment."""

    segment: int
    offset: int
    chunks: list[bytes]


class SegmentFiles:
    """The files in ``directory``, which the first write makes.

    ``read`` may be called in any thread, everything else by one writer at a time.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._unsynced: dict[int, int] = {}  # segment: its descriptor for writing
        self._writing: tuple[int, int] | None = None  # the newest segment, its descriptor
        self._reading: OrderedDict[int, int] = OrderedDict()
        self._lock = (
            Lock()
        )  # over _reading: a descriptor must not be closed, and used for another file, meanwhile

    def sizes(self) -> dict[int, int]:
        """The size in bytes of each segment on disk, by number. Raises OSError."""
        found: dict[int, int] = {}
        for name in self._names():
            if _is_segment(name):
                with suppress(FileNotFoundError):  # a batch has removed it meanwhile
                    found[int(name[:NUMBER_DIGITS])] = (self.directory / name).stat().st_size
        return found

    def strangers(self) -> list[str]:
        """The names in the directory that are not those of segments."""
        return sorted(name for name in self._names() if not _is_segment(name))

    def _names(self) -> list[str]:
        if not self.directory.is_dir():
            return []
        return [path.name for path in self.directory.iterdir()]

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:0{NUMBER_DIGITS}d}{SUFFIX}"

    def read(self, reference: Reference, key: bytes, *, checked: bool) -> bytes:
        """The chunk of ``key``. Raises QueueCorrupt when it is not there, or with ``checked`` when it has changed."""
        path = self._path(reference.segment)
        try:
            with self._lock:
                chunk = os.pread(self._opened(reference.segment), reference.size, reference.offset)
        except OSError as exc:
            raise QueueUnreadable(f"{key!r} cannot be read: {path}: {exc.strerror}") from exc
        if len(chunk) != reference.size:
            raise QueueCorrupt(
                f"{key!r} cannot be read: {path} ends before byte {reference.offset + reference.size}"
            )
        if checked and crc32(chunk) != reference.crc:
            raise QueueCorrupt(f"{key!r} is damaged: {path}, from byte {reference.offset}")
        return chunk

    def _opened(self, number: int) -> int:
        handle = self._reading.get(number)
        if handle is not None:
            self._reading.move_to_end(number)
            return handle
        handle = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        self._reading[number] = handle
        if len(self._reading) > OPEN_FILES_MAX:
            os.close(self._reading.popitem(last=False)[1])
        return handle

    def append(self, append: Append) -> None:
        """Write chunks; the first of a segment makes its file. Raises OSError."""
        number, offset, chunks = append
        handle = self._writable(number)
        for first in range(0, len(chunks), BUFFERS_MAX):
            part = chunks[first : first + BUFFERS_MAX]
            size = sum(map(len, part))
            written = os.pwritev(handle, part, offset)
            if written < size:  # a full disk, or more than the kernel writes at once
                write_at(handle, memoryview(b"".join(part))[written:], offset + written)
            offset += size
        self._unsynced[number] = handle

    def _writable(self, number: int) -> int:
        if self._writing is not None and self._writing[0] == number:
            return self._writing[1]
        private_directory(self.directory)
        handle = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if self._writing is not None and self._writing[0] not in self._unsynced:
            os.close(self._writing[1])
        self._writing = (number, handle)
        write_at(handle, FILE_HEADER, 0)
        sync_directory(self.directory)
        return handle

    def finish(self, *, sync: bool) -> None:
        """Prepare for the references to what was appended: with ``sync``, put it on disk. Raises OSError."""
        for number, handle in list(self._unsynced.items()):
            if sync:
                os.fdatasync(handle)
                if not os.fstat(handle).st_nlink:
                    raise FileNotFoundError(errno.ENOENT, GONE, str(self._path(number)))
            del self._unsynced[number]
            if self._writing is None or self._writing[0] != number:
                os.close(handle)

    def remove(self, number: int) -> None:
        """Remove a segment, which need not be there. Raises OSError."""
        with self._lock:
            handle = self._reading.pop(number, None)
            if handle is not None:
                os.close(handle)
        self._path(number).unlink(missing_ok=True)

    def close(self) -> None:
        """Close all files. Nothing may be read or written meanwhile."""
        handles = {*self._unsynced.values(), *self._reading.values()}
        if self._writing is not None:
            handles.add(self._writing[1])
        for handle in handles:
            os.close(handle)
        self._unsynced, self._writing = {}, None
        self._reading.clear()


class SegmentedView:
    """Read access to ``source``, with chunks in the place of references."""

    def __init__(self, source: View, files: SegmentFiles) -> None:
        self._source = source
        self._files = files

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        value = self._source.get(key, checked=checked)
        if value is None or len(value) != REFERENCE_BYTES:
            return value
        try:
            return self._resolve(key, value, checked=checked)
        except QueueCorrupt:
            now = self._source.get(key)
            if now is None:  # removed meanwhile, with its segment
                return None
            if now == value:
                raise
            return self._resolve(key, now, checked=checked)  # moved meanwhile to another segment

    def _resolve(self, key: bytes, value: bytes, *, checked: bool = True) -> bytes:
        reference = decode_reference(value)
        if reference is None or not keys.chunk_number(key):
            return value
        return self._files.read(reference, key, checked=checked)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self._source.scan(start, stop)
        if stop <= keys.MESSAGE or (start >= keys.end_of(keys.MESSAGE) and not _covers_own(start, stop)):
            return found
        return (
            (key, self._resolve(key, value) if len(value) == REFERENCE_BYTES else value)
            for key, value in found
            if not key.startswith(OWN_KEYS)
        )

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        found = self._source.keys(start, stop)
        if not _covers_own(start, stop):
            return found
        return (key for key in found if not key.startswith(OWN_KEYS))


def _is_segment(name: str) -> bool:
    number, suffix = name[:NUMBER_DIGITS], name[NUMBER_DIGITS:]
    return suffix == SUFFIX and number.isascii() and number.isdigit()


def _covers_own(start: bytes, stop: bytes) -> bool:
    return start <= keys.META_SEGMENT < stop or (
        start < keys.end_of(keys.SEGMENT) and stop > keys.SEGMENT
    )


def check_segments(database: LevelDB, files: SegmentFiles) -> Iterator[str]:
    """Yield files that are not segments, and SEGMENT keys of messages without their chunk; "" where other tasks may run.

    A key of a message that has ended is none that mail needs: ``LevelDBStore`` removes it when it empties the segment.
    """
    for name in files.strangers():
        yield f"{files.directory / name}: not a segment"
    for count, key in enumerate(database.keys(keys.SEGMENT, keys.end_of(keys.SEGMENT))):
        number, chunk = keys.parse_segment(key)
        with database.frozen() as view:
            reference = decode_reference(view.get(chunk) or b"")
            is_there = reference is not None and reference.segment == number
            is_needed = view.get(keys.mark_key(keys.owner_of(chunk))) is not None
            if is_needed and not is_there and view.get(key) is not None:
                yield f"{key.decode()}: the chunk is not in this segment"
        if count % CHECKED_AT_ONCE == 0:
            yield ""


# ---- The use of segments: the number of needed chunks of each, and the place of the next chunk. It touches no file.

SEGMENT_BYTES = 64 << 20
SPARSE_PART = 10  # a segment with less than a tenth still needed is emptied
FIRST = b"/000001"  # the end of the key of a body's first chunk


class SegmentUse:
    """The segments of a store.

    ``sizes``: in bytes, of those on disk; ``segment_keys``: the keys that keep chunks; ``last``: no new segment has a
    number up to this one.
    """

    def __init__(self, sizes: dict[int, int], segment_keys: Iterable[bytes], last: int) -> None:
        self._sizes = sizes
        self._needed = Counter[int]()
        self._firsts = 0
        number = slice(len(keys.SEGMENT), len(keys.SEGMENT) + NUMBER_DIGITS)
        for key in segment_keys:
            self._needed[int(key[number])] += 1
            self._firsts += key.endswith(FIRST)
        self.newest = max(last, *sizes, *self._needed, 0)
        self._end = SEGMENT_BYTES  # the first chunk begins a new segment
        self._damaged: set[int] = set()  # cannot be emptied
        self._unneeded = self._sizes.keys() - self._needed.keys()
        self._postponed: list[int] = []  # unneeded ones that a frozen view may read
        self._pins = 0  # frozen views, which may read what was removed since

    def has_firsts(self) -> bool:
        """True if the first chunk of any body is in a segment."""
        return self._firsts > 0

    def size_bytes(self) -> int:
        """The size of all; any thread may ask."""
        return sum(self._sizes.copy().values())

    def place(self, key: bytes, size: int) -> tuple[int, int]:
        """The segment and the offset for a chunk of ``size`` bytes: in the newest one, or in a new one."""
        if self._end + size > SEGMENT_BYTES:
            full, self.newest = self.newest, self.newest + 1
            self._mark_if_unneeded(full)
            self._end = len(FILE_HEADER)
        offset, self._end = self._end, self._end + size
        self._needed[self.newest] += 1
        self._firsts += key.endswith(FIRST)
        self._sizes[self.newest] = self._end
        return self.newest, offset

    def release(self, number: int, key: bytes) -> None:
        """Note that the chunk of ``key`` in segment ``number`` is not needed any more."""
        self._needed[number] -= 1
        self._firsts -= key.endswith(FIRST)
        self._mark_if_unneeded(number)

    def _mark_if_unneeded(self, number: int) -> None:
        if self._needed[number] <= 0 and number != self.newest and number in self._sizes:
            self._unneeded.add(number)

    # ---- removal

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep all segments until the end of the block."""
        self._pins += 1
        try:
            yield
        finally:
            self._pins -= 1

    def has_unneeded(self) -> bool:
        """True if ``take_unneeded`` may return any."""
        return bool(self._unneeded or self._postponed)

    def take_unneeded(self) -> list[int]:
        """The segments to remove with the next batch: none while they are pinned. They count as removed."""
        if self._pins:
            return []
        unneeded, self._unneeded = sorted(self._unneeded), set()
        for number in unneeded:
            del self._sizes[number], self._needed[number]
        postponed, self._postponed = self._postponed, []
        return postponed + unneeded

    def postpone(self, numbers: list[int]) -> bool:
        """True if segments that were taken must stay for now: a view has begun since the batch was made and may read them."""
        if self._pins:
            self._postponed += numbers
        return self._pins > 0

    # ---- emptying

    def sparsest(self) -> int | None:
        """A segment of which less than a tenth is needed."""
        for number, size in self._sizes.items():
            used = self._needed[number] * keys.CHUNK_BYTES
            if 0 < used * SPARSE_PART < size and number not in self._damaged and number != self.newest:
                return number
        return None

    def mark_damaged(self, number: int) -> None:
        """Note that segment ``number`` cannot be emptied."""
        self._damaged.add(number)
