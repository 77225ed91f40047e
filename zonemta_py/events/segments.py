"""The event log on disk: zstd frames of JSON lines, written hidden, sealed by a rename.

    DIRECTORY/.NODE-SEQ.open                                   being written
    DIRECTORY/date=2026-11-21/hour=09/NODE-SEQ.jsonl.zst       sealed; date and hour of sealing (UTC)

SEQ is the first group commit in the file. A frame is whole, or after a crash the torn end of the file,
which recovery removes. The only importer of zstandard.
"""

import os
from collections.abc import Iterator
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from zonemta_py.core import clock
from zonemta_py.core.codec import from_json
from zonemta_py.core.files import private_directory, sync_directory

LEVEL = 3


class Segment:
    """The file being written. Its methods block: call them in a thread."""

    def __init__(self, directory: Path, node: str, first_seq: int) -> None:
        private_directory(directory)
        self._directory = directory
        self._name = f"{node}-{first_seq:016x}"
        self._path = directory / f".{self._name}.open"
        self._file: FileIO = FileIO(self._path, "xb")  # never the file of a previous boot
        sync_directory(directory)
        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.size_bytes = 0

    def append(self, lines: bytes) -> None:
        """Write whole lines as one frame, synced. Raises OSError.

        After an error the file has its previous length, and must not be appended to.
        """
        frame = self._compressor.compress(lines)
        try:
            unwritten = memoryview(frame)
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), self.size_bytes)
            raise
        self.size_bytes += len(frame)

    def seal(self, now_ms: int) -> Path | None:
        """Close the file and rename it to its final name, returned; an empty file is removed: None.

        Raises OSError.
        """
        self.leave()
        if not self.size_bytes:
            self._path.unlink()
            return None
        return _publish(self._directory, self._path, self._name, now_ms)

    def leave(self) -> None:
        """Close the file without sealing it; the next start does that."""
        self._file.close()


def _publish(directory: Path, path: Path, name: str, now_ms: int) -> Path:
    now = clock.utc(now_ms)
    hour = directory / f"date={now:%Y-%m-%d}" / f"hour={now:%H}"
    private_directory(hour)
    sealed = hour / f"{name}.jsonl.zst"
    path.rename(sealed)
    for changed in (hour, hour.parent, directory):
        sync_directory(changed)
    return sealed


def recover(directory: Path, node: str) -> int:
    """Cut torn ends off the open segments; returns the highest sequence number in them, or 0. Raises OSError.

    The segments stay open until ``seal_recovered``: after another crash the next start reads them again.
    """
    last = 0
    for path in _open_segments(directory, node):
        whole, seq = _whole_frames(path)
        last = max(last, seq)
        if whole == 0:
            path.unlink()
            continue
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
    return last


def seal_recovered(directory: Path, node: str, now_ms: int) -> None:
    """Seal what ``recover`` left open. The outbox must not hold their events any more. Raises OSError."""
    for path in _open_segments(directory, node):
        _publish(directory, path, path.name[1 : -len(".open")], now_ms)


def _open_segments(directory: Path, node: str) -> list[Path]:
    return sorted(directory.glob(f".{node}-*.open"))


def _whole_frames(path: Path) -> tuple[int, int]:
    """The size in bytes of the whole frames of ``path``, and the highest sequence number in them."""
    data = path.read_bytes()
    at = last = 0
    while at < len(data):
        reader = zstandard.ZstdDecompressor().decompressobj()
        try:
            lines = reader.decompress(data[at:])
        except zstandard.ZstdError:
            break
        if not reader.eof:
            break
        at = len(data) - len(reader.unused_data)
        last = max(last, from_json(lines.rstrip(b"\n").rpartition(b"\n")[2])["seq"])
    return at, last


def read_segment(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one sealed segment."""
    with path.open("rb") as file:
        yield from _records(file)


def _records(file: BinaryIO) -> Iterator[dict[str, Any]]:
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    incomplete = b""
    while block := reader.read(1 << 18):
        *lines, incomplete = (incomplete + block).split(b"\n")
        for line in lines:
            yield from_json(line)


def read_open_segments(directory: Path) -> Iterator[dict[str, Any]]:
    """The records of unsealed files; the newest may be missing."""
    for path in sorted(directory.glob(".*.open")):
        data = path.read_bytes()
        whole, _ = _whole_frames(path)
        yield from _records(BytesIO(data[:whole]))


def read_events(directory: Path) -> Iterator[dict[str, Any]]:
    """All records of an event log; those that are sealed during the call may be returned twice."""
    hidden = list(read_open_segments(directory))
    for path in sealed_segments(directory):
        yield from read_segment(path)
    yield from hidden


def sealed_segments(directory: Path) -> list[Path]:
    """The sealed segments under ``directory``, oldest first."""
    return sorted(directory.glob("date=*/hour=*/*.jsonl.zst"))
