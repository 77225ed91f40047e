"""The event log on disk, and its writer: zstd frames of JSON lines, written hidden, sealed with a trailer.

    DIRECTORY/.NODE-SEQ.open                                   being written
    DIRECTORY/date=2026-11-21/hour=09/NODE-SEQ.jsonl.zst       sealed; date and hour of sealing (UTC)
    DIRECTORY/.NODE-SEQ.damaged                                what recovery could not read as a whole

SEQ is the first group commit in the file. Each frame has zstd's checksum. The trailer is a skippable frame,
which every zstd reader passes over (RFC 8878, 3.1.2), little-endian:

    4  magic 0x184D2A5A        4  72, the size of the rest      8  b"zmtaseg1"
    8  number of records       8  SEQ of the record before the first of this segment; 0: unknown
    8  SEQ of the first        8  SEQ of the last               32 SHA-256 of all bytes in front of it
"""

import hashlib
import logging
import os
import struct
from array import array
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from zonemta_py.core import clock, faults
from zonemta_py.core.files import no_link, private_directory, sync_directory
from zonemta_py.events.frames import make_compressor
from zonemta_py.events.index import add_to_index, hashes_in

_TRAILER = struct.Struct("<II8sQQQQ32s")
TRAILER_BYTES = _TRAILER.size
_TRAILER_START = struct.pack("<II8s", 0x184D2A5A, _TRAILER.size - 8, b"zmtaseg1")

log = logging.getLogger(__name__)


class Trailer(NamedTuple):
    """What the end of a sealed segment says about it. ``previous``: 0 when it is unknown."""

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


def split_trailer(data: bytes) -> tuple[bytes, Trailer | None]:
    """The frames of a file, and its trailer; None for an open one and one of an earlier version."""
    tail = data[-_TRAILER.size :]
    if not tail.startswith(_TRAILER_START) or len(tail) < _TRAILER.size:
        return data, None
    return data[: -_TRAILER.size], Trailer(*_TRAILER.unpack(tail)[3:])


class Segment:
    """The file being written. Its methods block: call them in a thread. ``previous``: as in ``Trailer``."""

    def __init__(self, directory: Path, node: str, first_seq: int, previous: int = 0) -> None:
        private_directory(directory)
        self._directory = directory
        self._name = f"{node}-{first_seq:016x}"
        self._path = directory / f".{self._name}.open"
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
            with FileIO(self._path, "r+b") as file:
                file.truncate(self.size_bytes)  # a failed write may have left a part
                file.seek(self.size_bytes)
                _write(file, trailer.sealed(self._digest).pack())
            self._is_complete = True
        sealed = publish(self._directory, self._path, self._name, now_ms)
        try:
            add_to_index(sealed, self._hashes)
        except OSError as exc:
            log.warning("%s is not in the index, and is read by each search: %s", sealed, exc)
        return sealed

    def is_removed(self) -> bool:
        """Whether the hidden file is gone, so that there is nothing to seal."""
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


def write_synced(path: Path, data: bytes) -> None:
    """Make the file ``path``, for this user only. Raises OSError."""
    with FileIO(path, "wb", opener=no_link) as file:
        _write(file, data)


def _write(file: FileIO, data: bytes) -> None:
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[file.write(unwritten) :]
    os.fsync(file.fileno())


def publish(directory: Path, path: Path, name: str, now_ms: int) -> Path:
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


def _link(directory: Path, path: Path, name: str, now_ms: int) -> Path:
    now = clock.utc(now_ms)
    hour = directory / f"date={now:%Y-%m-%d}" / f"hour={now:%H}"
    private_directory(hour)
    sealed, number = hour / f"{name}.jsonl.zst", 1
    while True:
        try:
            sealed.hardlink_to(path)
            return sealed
        except FileExistsError:
            number += 1
            log.error("%s exists: events of the same numbers were written before", sealed)
            sealed = hour / f"{name}-{number}.jsonl.zst"


def final_name(path: Path) -> Path | None:
    """The other name of a segment that is sealed and still has its hidden name; None for an unsealed one."""
    if path.stat().st_nlink == 1:
        return None
    name = path.name[1 : -len(".open")]
    sealed = path.parent.glob(f"date=*/hour=*/{name}*.jsonl.zst")
    return next((other for other in sealed if other.samefile(path)), None)
