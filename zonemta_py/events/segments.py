"""The event log on disk: zstd frames of JSON lines, written hidden, sealed with a trailer.

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
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from zonemta_py.core import clock, faults
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.core.files import private_directory, sync_directory
from zonemta_py.events.frames import MAGIC, Frame, has_checksum, make_compressor, read_frames
from zonemta_py.events.index import add_to_index, hashes_in

_TRAILER = struct.Struct("<II8sQQQQ32s")
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


class Segment:
    """The file being written. Its methods block: call them in a thread. ``previous``: as in ``Trailer``."""

    def __init__(self, directory: Path, node: str, first_seq: int, previous: int = 0) -> None:
        private_directory(directory)
        self._directory = directory
        self._name = f"{node}-{first_seq:016x}"
        self._path = directory / f".{self._name}.open"
        self._file: FileIO = FileIO(self._path, "xb", opener=_private)  # never a file of a previous boot
        sync_directory(directory)
        self._compressor = make_compressor()
        self._digest = hashlib.sha256()
        self._records = 0
        self._hashes = array("Q")
        self._previous = previous
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

        Raises OSError.
        """
        if not self.size_bytes:
            self.leave()
            self._path.unlink()
            return None
        trailer = Trailer(self._records, self._previous, self.first_seq, self.last_seq)
        try:
            _write(self._file, trailer.sealed(self._digest).pack())
        finally:
            self.leave()
        sealed = publish(self._directory, self._path, self._name, now_ms)
        try:
            add_to_index(sealed, self._hashes)
        except OSError as exc:
            log.warning("%s is not in the index, and is read by each search: %s", sealed, exc)
        return sealed

    def leave(self) -> None:
        """Close the file without sealing it; the next start does that."""
        self._file.close()


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def write_synced(path: Path, data: bytes) -> None:
    """Make the file ``path``, for this user only. Raises OSError."""
    with FileIO(path, "wb", opener=_private) as file:
        _write(file, data)


def _write(file: FileIO, data: bytes) -> None:
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[file.write(unwritten) :]
    os.fsync(file.fileno())


def publish(directory: Path, path: Path, name: str, now_ms: int) -> Path:
    """Give ``path`` its final name; a file that has it already is kept, and this one gets a number."""
    now = clock.utc(now_ms)
    hour = directory / f"date={now:%Y-%m-%d}" / f"hour={now:%H}"
    private_directory(hour)
    sealed, number = hour / f"{name}.jsonl.zst", 1
    while True:
        try:
            sealed.hardlink_to(path)
            break
        except FileExistsError:
            number += 1
            log.error("%s exists: events of the same numbers were written before", sealed)
            sealed = hour / f"{name}-{number}.jsonl.zst"
    sync_directory(hour)
    faults.reach("segment.linked")
    path.unlink()
    sync_directory(directory)
    return sealed


# ---- reading


def _split(data: bytes) -> tuple[bytes, Trailer | None]:
    """The frames of a file, and its trailer; None for an open one and one of an earlier version."""
    tail = data[-_TRAILER.size :]
    if not tail.startswith(_TRAILER_START) or len(tail) < _TRAILER.size:
        return data, None
    return data[: -_TRAILER.size], Trailer(*_TRAILER.unpack(tail)[3:])


def read_trailer(path: Path) -> Trailer:
    """The trailer of a sealed segment, computed if an earlier version sealed it. Raises SegmentDamaged."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TRAILER.size))
        _, trailer = _split(file.read())
    if trailer is None:
        data = path.read_bytes()
        _check_end(data, path)
        trailer = trailer_of(data, path, 0)
    return trailer


def trailer_of(data: bytes, path: Path, previous: int) -> Trailer:
    """The trailer for the frames ``data``. Raises SegmentDamaged."""
    frames = list(read_frames(data, path))
    if not frames:
        raise SegmentDamaged(f"{path}: it is empty", 0)
    records = sum(frame.lines.count(b"\n") for frame in frames)
    trailer = Trailer(records, previous, frames[0].first, frames[-1].last)
    return trailer.sealed(hashlib.sha256(data))


def read_segment(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one sealed segment. Raises SegmentDamaged after those in front of the damage."""
    data, trailer = _split(path.read_bytes())
    records = 0
    for frame in read_frames(data, path):
        for line in frame.lines.splitlines():
            yield _record(line, path, frame.start)
            records += 1
    if trailer is None and not records:
        raise SegmentDamaged(f"{path}: it is empty", 0)
    if trailer is not None and trailer.records != records:
        raise SegmentDamaged(f"{path}: {records} of {trailer.records} records", len(data))
    if trailer is None:
        _check_end(data, path)
    else:
        _check_digest(data, trailer, path)


def verify_segment(content: bytes, path: Path) -> Trailer:
    """The trailer of a sealed segment whose bytes are those that were sealed. Raises SegmentDamaged.

    One that an earlier version sealed, without a trailer, is read as a whole instead.
    """
    data, trailer = _split(content)
    if trailer is not None:
        _check_digest(data, trailer, path)
        return trailer
    for frame in read_frames(data, path):
        for line in frame.lines.splitlines():
            _record(line, path, frame.start)
    _check_end(data, path)
    return trailer_of(data, path, 0)


def _check_end(data: bytes, path: Path) -> None:
    """A segment without a trailer is of an earlier version, or was cut behind a frame: what followed is not known."""
    if has_checksum(data):
        raise SegmentDamaged(f"{path}: its end is missing", len(data))


def _check_digest(data: bytes, trailer: Trailer, path: Path) -> None:
    if trailer != trailer.sealed(hashlib.sha256(data)):
        raise SegmentDamaged(f"{path}: its bytes have another digest than its trailer says", len(data))


def _record(line: bytes, path: Path, at: int) -> dict[str, Any]:
    try:
        record = from_json(line)
    except ValueError as exc:
        raise SegmentDamaged(f"{path}: damaged at byte {at}: {exc}", at) from exc
    if not isinstance(record, dict):
        raise SegmentDamaged(f"{path}: damaged at byte {at}: a line is no event", at)
    return record


def frames_of(path: Path) -> bytes:
    """The frames of a sealed segment, without its trailer; nothing is verified."""
    return _split(path.read_bytes())[0]


def open_frames(directory: Path) -> Iterator[bytes]:
    """The lines of every frame of unsealed files; the newest may be missing."""
    for path in sorted(directory.glob(".*.open")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # sealed meanwhile
        for frame in whole_frames(data, path):
            yield frame.lines


def read_open_segments(directory: Path) -> Iterator[dict[str, Any]]:
    """The records of unsealed files; the newest may be missing."""
    for path in sorted(directory.glob(".*.open")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # sealed meanwhile
        yield from readable_records(data, path)


def readable_records(data: bytes, path: Path) -> Iterator[dict[str, Any]]:
    """The records of every frame that can be read, also behind damage."""
    for frame in whole_frames(data, path):
        yield from map(from_json, frame.lines.splitlines())


def whole_frames(data: bytes, path: Path) -> Iterator[Frame]:
    """Every frame of an unsealed file that can be read, also behind damage."""
    at = 0
    while True:
        try:
            for frame in read_frames(_split(data)[0], path, at):
                at = frame.end
                yield frame
            return
        except SegmentDamaged:
            at = data.find(MAGIC, at + 1)
            if at < 0:
                return


def sealed_segments(directory: Path, node: str = "") -> list[Path]:
    """The sealed segments under ``directory``, oldest first; of one ``node`` if given."""
    return sorted(directory.glob(f"date=*/hour=*/{f'{node}-' if node else ''}*.jsonl.zst"))


def final_name(path: Path) -> Path | None:
    """The other name of a segment that is sealed and still has its hidden name; None for an unsealed one."""
    if path.stat().st_nlink == 1:
        return None
    name = path.name[1 : -len(".open")]
    sealed = path.parent.glob(f"date=*/hour=*/{name}*.jsonl.zst")
    return next((other for other in sealed if other.samefile(path)), None)


def open_segments(directory: Path, node: str) -> list[Path]:
    """The segments of ``node`` with a hidden name, oldest first."""
    return sorted(directory.glob(f".{node}-*.open"))
