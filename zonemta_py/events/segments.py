"""The event log on disk, and its writer: zstd frames of JSON lines, written hidden, sealed with a trailer.

    DIRECTORY/.NODE-SEQ-BEFORE.open                            being written
    DIRECTORY/date=2026-11-21/hour=09/NODE-SEQ.jsonl.zst       sealed; date and hour of sealing (UTC)
    DIRECTORY/.NODE-SEQ.damaged                                what recovery could not read as a whole

SEQ is the first group commit in the file, BEFORE the one that the log has in front of it (0: unknown). Each frame has zstd's
checksum. The trailer is a skippable frame, which every zstd reader passes over, little-endian:

    4  magic 0x184D2A5A        4  72, the size of the rest      8  b"zmtaseg1"
    8  number of records       8  SEQ of the record before the first of this segment; 0: unknown
    8  SEQ of the first        8  SEQ of the last               32 SHA-256 of all bytes in front of it

States of a segment: open ─▶ complete (it has its trailer) ─▶ linked (both names) ─▶ sealed (the hidden name is gone).

Invariants:

- An open file has whole frames, each synced; a torn frame can only be the last one, and recovery cuts it off.
- A sealed file is never changed. Its digest covers the data and the numbers in the trailer.
- ``publish`` makes a hard link and then removes the hidden name: at every moment the segment has a name, and after a crash the
  next start removes the hidden one.
- A final name is never reused: a second file with the same first number gets a suffix.
- Methods of ``Segment`` block; after an error of ``append`` the file has its previous length and gets no more.

Callers: the outbox writes and seals; ``recovery`` completes what a crash left; ``segment_reading`` reads.

Example: ``Segment(directory, "a1", 7)`` appends the groups 7 to 9 as three frames; ``seal`` returns ``…/hour=09/a1-…07.jsonl.zst``.

Source: RFC 8878 sections 3.1.1 (frames) and 3.1.2 (skippable frames).
"""

import hashlib
import logging
import os
import re
import struct
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Protocol

import zstandard

from zonemta_py.core import clock, faults
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.core.files import no_link, private_directory, sync_directory
from zonemta_py.events.index import add_to_index, hashes_in

log = logging.getLogger(__name__)


# ---- Frames: zstd with its checksum over JSON lines; the only importer of zstandard.

LEVEL = 3
BLOCK_BYTES = 1 << 16
HEADER_BYTES = 18  # of a frame at most: RFC 8878, 3.1.1
MAGIC = zstandard.FRAME_HEADER  # of a frame with data


class Data(Protocol):
    """The bytes of a segment: ``bytes``, or a file of which only what is asked for is read."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...

    def find(self, wanted: bytes, start: int = 0, /) -> int:
        """The offset of ``wanted`` from ``start`` on; -1 without it."""
        ...


class FileData:
    """The bytes of an open file that is at most 64 KiB in memory; its length is that of the beginning."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._size = os.fstat(handle).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, _ = part.indices(self._size)
        return os.pread(self._handle, max(0, stop - start), start)

    def find(self, wanted: bytes, start: int = 0, /) -> int:
        while start < self._size:
            block = self[start : start + BLOCK_BYTES]
            if (at := block.find(wanted)) >= 0:
                return start + at
            if len(block) < len(wanted):
                break
            start += len(block) - len(wanted) + 1
        return -1


@contextmanager
def opened_data(path: Path) -> Iterator[FileData]:
    """The bytes of the file ``path``. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        yield FileData(handle)
    finally:
        os.close(handle)


def blocks(data: Data, start: int, end: int) -> Iterator[bytes]:
    """The bytes from ``start`` to ``end`` in blocks."""
    for at in range(start, end, BLOCK_BYTES):
        yield data[at : min(at + BLOCK_BYTES, end)]


class Frame(NamedTuple):
    """A whole frame: its bytes are ``start`` to ``end`` of the file."""

    start: int
    end: int
    lines: bytes
    first: int
    last: int


def make_compressor() -> zstandard.ZstdCompressor:
    """A compressor, whose ``compress`` makes one frame."""
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)


def has_checksum(data: Data) -> bool:
    """True if the first frame has zstd's checksum. Those of versions that wrote no trailers have none."""
    try:
        return bool(zstandard.get_frame_parameters(data[:HEADER_BYTES]).has_checksum)
    except zstandard.ZstdError:
        return False


def read_frames(data: Data, path: Path | str, start: int, size_bytes: int) -> Iterator[Frame]:
    """The frames of ``data`` from ``start`` up to ``size_bytes``. Raises SegmentDamaged with the offset of the first that is not whole."""
    at = start
    while at < size_bytes:
        try:
            lines, end = _decompress(data, at, size_bytes)
            first, last = (from_json(line)["seq"] for line in (_first(lines), _last(lines)))
            if type(first) is not int or type(last) is not int:
                raise ValueError("a SEQ that is no number")
        except (zstandard.ZstdError, ValueError, KeyError, TypeError) as exc:
            raise SegmentDamaged(f"{path}: damaged at byte {at}: {exc}", at) from exc
        yield Frame(at, end, lines, first, last)
        at = end


def read_torn_frame(data: Data, start: int, size_bytes: int) -> Frame | None:
    """The frame at ``start`` whose first or last line is not an event: ``first`` or ``last`` is -1 then. None if it is not a whole frame."""
    try:
        lines, end = _decompress(data, start, size_bytes)
    except (zstandard.ZstdError, ValueError):
        return None
    return Frame(start, end, lines, _seq_in(_first(lines)), _seq_in(_last(lines)))


def _seq_in(line: bytes) -> int:
    try:
        seq = from_json(line)["seq"]
    except (ValueError, KeyError, TypeError):
        return -1
    return seq if type(seq) is int else -1


def _decompress(data: Data, start: int, size_bytes: int) -> tuple[bytes, int]:
    """The contents and the end of the frame at ``start``. Raises ZstdError, ValueError."""
    reader, parts, at = zstandard.ZstdDecompressor().decompressobj(), [], start
    while not reader.eof:
        block = data[at : min(at + BLOCK_BYTES, size_bytes)]
        if not block:
            raise ValueError("the file ends in the middle of a frame")
        parts.append(reader.decompress(block))
        at += len(block)
    return b"".join(parts), at - len(reader.unused_data)


def _first(lines: bytes) -> bytes:
    return lines.partition(b"\n")[0]


def _last(lines: bytes) -> bytes:
    return lines.rstrip(b"\n").rpartition(b"\n")[2]


# ---- Trailers, names, and the writer.

_TRAILER = struct.Struct("<II8sQQQQ32s")
TRAILER_BYTES = _TRAILER.size
_TRAILER_START = struct.pack("<II8s", 0x184D2A5A, _TRAILER.size - 8, b"zmtaseg1")
_NAME = re.compile(r"\.?([^-.]+)-([0-9a-f]{16})(?:-([0-9a-f]{16})(?=\.open))?[-.]")


class Trailer(NamedTuple):
    """The trailer at the end of a sealed segment. ``previous``: 0 when it is unknown."""

    records: int
    previous: int
    first: int
    last: int
    digest: bytes = bytes(32)

    def pack(self) -> bytes:
        """The trailer as a skippable frame."""
        return _TRAILER_START + _TRAILER.pack(0, 0, b"", *self)[len(_TRAILER_START) :]

    def sealed(self, data_digest: "hashlib._Hash") -> "Trailer":
        """This trailer with the digest of the data and of its own numbers."""
        complete = data_digest.copy()
        complete.update(self.pack()[: -len(self.digest)])
        return self._replace(digest=complete.digest())


def split_trailer(data: Data) -> tuple[int, Trailer | None]:
    """The length of the frames of a file, and its trailer; None for an open one and one of an earlier version."""
    tail = data[max(0, len(data) - _TRAILER.size) : len(data)]
    if not tail.startswith(_TRAILER_START) or len(tail) < _TRAILER.size:
        return len(data), None
    return len(data) - _TRAILER.size, Trailer(*_TRAILER.unpack(tail)[3:])


def digest_of(data: Data, start: int, end: int) -> "hashlib._Hash":
    """The SHA-256 of the bytes from ``start`` to ``end``."""
    digest = hashlib.sha256()
    for block in blocks(data, start, end):
        digest.update(block)
    return digest


class SegmentName(NamedTuple):
    """The parts of a segment's name. ``previous``: as in ``Trailer``; only an open one has it."""

    node: str
    first: int
    previous: int = 0

    def hidden(self) -> str:
        return f".{self.node}-{self.first:016x}-{self.previous:016x}.open"

    def sealed(self, number: int = 1) -> str:
        """The final name; ``number``: of several files with the same first number."""
        return f"{self.node}-{self.first:016x}{f'-{number}' if number > 1 else ''}.jsonl.zst"


def read_name(path: Path) -> SegmentName:
    """The parts of the name of a segment; number 0 for a name of another kind."""
    match = _NAME.match(path.name)
    if match is None:
        return SegmentName(path.name.lstrip(".").partition("-")[0], 0)
    return SegmentName(match[1], int(match[2], 16), int(match[3] or "0", 16))


class Segment:
    """The file being written. Its methods block: call them in a thread. ``previous``: as in ``Trailer``."""

    def __init__(self, directory: Path, node: str, first_seq: int, previous: int = 0) -> None:
        private_directory(directory)
        self._directory = directory
        self._name = SegmentName(node, first_seq, previous)
        self._path = directory / self._name.hidden()
        self._file = _create(self._path)
        self._compressor = make_compressor()
        self._digest = hashlib.sha256()
        self._records = 0
        self._hashes = array("Q")
        self._previous = previous
        self._is_complete = False
        self.first_seq = self.last_seq = first_seq
        self.size_bytes = 0

    def append(self, lines: bytes, last_seq: int) -> None:
        """Write whole lines, up to group ``last_seq``, as one frame, synced. Raises OSError.

        After an error the file has its previous length, and must not be appended to.
        """
        frame = self._compressor.compress(lines)
        try:
            _write(self._file, frame)
        except OSError:
            os.ftruncate(self._file.fileno(), self.size_bytes)
            raise
        self._digest.update(frame)
        self._records += lines.count(b"\n")
        self._hashes.extend(hashes_in(lines))
        self.last_seq = last_seq
        self.size_bytes += len(frame)

    def seal(self, now_ms: int) -> Path | None:
        """Write the trailer and give the file its final name, returned; an empty file is removed: None.

        Raises OSError. It may be called again then, and does what is left to do.
        """
        self.leave()
        if not self.size_bytes:
            self._path.unlink()
            return None
        if not self._is_complete:
            trailer = Trailer(self._records, self._previous, self.first_seq, self.last_seq)
            add_trailer(self._path, self.size_bytes, trailer.sealed(self._digest))
            self._is_complete = True
        sealed = publish(self._directory, self._path, self._name, now_ms)
        try:
            add_to_index(sealed, self._hashes, (self._previous, self.first_seq, self.last_seq))
        except OSError as exc:
            log.warning("%s is not in the index, and is read by each search: %s", sealed, exc)
        return sealed

    def is_removed(self) -> bool:
        """True if the hidden file is gone, so that there is nothing to seal."""
        return not self._path.exists()

    def leave(self) -> None:
        """Close the file without sealing it; the next start does that."""
        self._file.close()


def _create(path: Path) -> FileIO:
    """A new file, never one of a previous boot, with its name on disk.

    Raises OSError, and leaves no file then: the next attempt would meet it.
    """
    file = FileIO(path, "xb", opener=no_link)
    try:
        sync_directory(path.parent)
    except OSError:
        file.close()
        path.unlink()
        raise
    return file


def write_synced(path: Path, parts: Iterable[bytes]) -> None:
    """Make the file ``path`` of ``parts``, for this user only, or replace it. Raises OSError."""
    temporary = path.with_suffix(".new")
    with FileIO(temporary, "wb", opener=no_link) as file:
        for part in parts:
            _write_all(file, part)
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def add_trailer(path: Path, size_bytes: int, trailer: Trailer) -> None:
    """Write the trailer behind the first ``size_bytes`` of an open segment, and remove what follows. Raises OSError."""
    with FileIO(path, "r+b") as file:
        file.truncate(size_bytes)  # a failed write, or a crash, may have left a part
        file.seek(size_bytes)
        _write(file, trailer.pack())


def _write(file: FileIO, data: bytes) -> None:
    _write_all(file, data)
    os.fsync(file.fileno())


def _write_all(file: FileIO, data: bytes) -> None:
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[file.write(unwritten) :]


def publish(directory: Path, path: Path, name: SegmentName, now_ms: int) -> Path:
    """Give ``path`` its final name; a file that has it already is kept, and this one gets a number.

    Raises OSError. After a failed call, and after a crash, ``path`` may have its final name besides the hidden one: it keeps that.
    """
    sealed = final_name(path) or _link(directory, path, name, now_ms)
    sync_directory(sealed.parent)
    faults.reach("segment.linked")
    path.unlink()
    with suppress(OSError):  # the hidden name may come back in a power cut; recovery removes it
        sync_directory(directory)
    return sealed


def _link(directory: Path, path: Path, name: SegmentName, now_ms: int) -> Path:
    now = clock.utc(now_ms)
    hour = directory / f"date={now:%Y-%m-%d}" / f"hour={now:%H}"
    private_directory(hour)
    sealed, number = hour / name.sealed(), 1
    while True:
        try:
            sealed.hardlink_to(path)
            return sealed
        except FileExistsError:
            number += 1
            log.error("%s exists: events of the same numbers were written before", sealed)
            sealed = hour / name.sealed(number)


def final_name(path: Path) -> Path | None:
    """The other name of a segment that is sealed and still has its hidden name; None for an unsealed one."""
    if path.stat().st_nlink == 1:
        return None
    name = read_name(path).sealed().partition(".")[0]
    sealed = path.parent.glob(f"date=*/hour=*/{name}*.jsonl.zst")
    return next((other for other in sealed if other.samefile(path)), None)
