"""zstd frames of JSON lines, each with zstd's checksum. The only importer of zstandard."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import zstandard

from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import SegmentDamaged

LEVEL = 3
BLOCK_BYTES = 1 << 16
MAGIC = zstandard.FRAME_HEADER  # of a frame with data


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


def has_checksum(data: bytes) -> bool:
    """Whether the first frame has zstd's checksum. Those of versions that wrote no trailers have none."""
    try:
        return bool(zstandard.get_frame_parameters(data).has_checksum)
    except zstandard.ZstdError:
        return False


def read_frames(data: bytes, path: Path | str, start: int = 0) -> Iterator[Frame]:
    """The frames of ``data``. Raises SegmentDamaged with the offset of the first that is not whole."""
    at = start
    while at < len(data):
        try:
            lines, end = _decompress(data, at)
            first, last = (from_json(line)["seq"] for line in (_first(lines), _last(lines)))
            if type(first) is not int or type(last) is not int:
                raise ValueError("a SEQ that is no number")
        except (zstandard.ZstdError, ValueError, KeyError, TypeError) as exc:
            raise SegmentDamaged(f"{path}: damaged at byte {at}: {exc}", at) from exc
        yield Frame(at, end, lines, first, last)
        at = end


def read_torn_frame(data: bytes, start: int) -> Frame | None:
    """The frame at ``start`` whose first or last line is no event: ``first`` or ``last`` is -1 then. None if it is no whole frame."""
    try:
        lines, end = _decompress(data, start)
    except (zstandard.ZstdError, ValueError):
        return None
    return Frame(start, end, lines, _seq_in(_first(lines)), _seq_in(_last(lines)))


def _seq_in(line: bytes) -> int:
    try:
        seq = from_json(line)["seq"]
    except (ValueError, KeyError, TypeError):
        return -1
    return seq if type(seq) is int else -1


def _decompress(data: bytes, start: int) -> tuple[bytes, int]:
    """The contents and the end of the frame at ``start``. Raises ZstdError, ValueError."""
    reader, parts, at = zstandard.ZstdDecompressor().decompressobj(), [], start
    while not reader.eof:
        block = data[at : at + BLOCK_BYTES]
        if not block:
            raise ValueError("the file ends in the middle of a frame")
        parts.append(reader.decompress(block))
        at += len(block)
    return b"".join(parts), at - len(reader.unused_data)


def _first(lines: bytes) -> bytes:
    return lines.partition(b"\n")[0]


def _last(lines: bytes) -> bytes:
    return lines.rstrip(b"\n").rpartition(b"\n")[2]
