"""zstd frames of JSON lines, each with zstd's checksum. The only importer of zstandard."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import zstandard

from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import SegmentDamaged

LEVEL = 3
BLOCK_BYTES = 1 << 16
HEADER_BYTES = 18  # of a frame at most: RFC 8878, 3.1.1
MAGIC = zstandard.FRAME_HEADER  # of a frame with data


class Data(Protocol):
    """The bytes of a segment: ``bytes``, or a file of which only what is asked for is read."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...

    def find(self, wanted: bytes, start: int = 0, /) -> int:
        """As ``bytes.find``."""
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
        """As ``bytes.find``."""
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
    """Its ``compress`` makes one frame."""
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)


def has_checksum(data: Data) -> bool:
    """Whether the first frame has zstd's checksum. Those of versions that wrote no trailers have none."""
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
    """The frame at ``start`` whose first or last line is no event: ``first`` or ``last`` is -1 then. None if it is no whole frame."""
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
