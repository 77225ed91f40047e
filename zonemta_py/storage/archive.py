"""A whole queue in one file: every key and value of a store, in order, with checksums.

    zonemta-queue 1 LF
    frame*      length (32 bits, network order), CRC-32 (32 bits), kind (1 octet), payload

Kind ``H``, once, first: JSON with ``node``, ``boot`` and ``format`` of the queue. Kind ``R``: records, each two lengths (32
bits), key, value. Kind ``E``, once, last: how many records there are (64 bits). A file that ends in the
middle of a frame, or without ``E``, is not whole.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple
from zlib import crc32

from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.errors import LocalError

MAGIC = b"zonemta-queue 1\n"
FRAME_BYTES = 1 << 20  # of records in a frame; one record may be longer
FRAME_MAX = 1 << 28
HEADER, RECORDS, END = b"H", b"R", b"E"
_FRAME = struct.Struct("!II")
_RECORD = struct.Struct("!II")
_COUNT = struct.Struct("!Q")

Record = tuple[bytes, bytes]


class Origin(NamedTuple):
    """Which life of which queue the file is of."""

    node: str
    boot: int
    format: str


class Part(NamedTuple):
    """What is whole of a file: its origin, its records, where the last whole frame ends, whether that is all."""

    origin: Origin
    records: int
    last_key: bytes
    end: int
    complete: bool


def write_origin(file: BinaryIO, origin: Origin) -> None:
    """The beginning of a file."""
    file.write(MAGIC)
    _write(file, HEADER, to_json(origin._asdict()))


def write_records(file: BinaryIO, records: Iterable[Record]) -> Iterator[int]:
    """Write them in frames; yields how many each frame had."""
    parts: list[bytes] = []
    size = count = 0
    for key, value in records:
        parts += (_RECORD.pack(len(key), len(value)), key, value)
        size += len(key) + len(value)
        count += 1
        if size >= FRAME_BYTES:
            _write(file, RECORDS, b"".join(parts))
            yield count
            parts.clear()
            size = count = 0
    if count:
        _write(file, RECORDS, b"".join(parts))
        yield count


def write_end(file: BinaryIO, records: int) -> None:
    """The end: there is nothing more."""
    _write(file, END, _COUNT.pack(records))


def _write(file: BinaryIO, kind: bytes, payload: bytes) -> None:
    file.write(_FRAME.pack(len(payload), crc32(payload, crc32(kind))) + kind + payload)


def read_part(file: BinaryIO) -> Part | None:
    """How much of a file is whole; None when not even its origin is. Raises LocalError for another kind of file."""
    found: Part | None = None
    for kind, payload, end in _frames(file):
        if kind == HEADER:
            found = Part(_origin(payload), 0, b"", end, complete=False)
        elif found is not None and kind == RECORDS:
            records = list(_records(payload))
            found = Part(found.origin, found.records + len(records), records[-1][0], end, complete=False)
        elif found is not None and kind == END:
            complete = _COUNT.unpack(payload)[0] == found.records
            return found._replace(complete=complete, end=end)
    return found


def read_frames(file: BinaryIO) -> Iterator[list[Record]]:
    """The records, frame by frame."""
    for kind, payload, _ in _frames(file):
        if kind == RECORDS:
            yield list(_records(payload))


def _frames(file: BinaryIO) -> Iterator[tuple[bytes, bytes, int]]:
    """Whole frames: kind, payload, where it ends; the first that is not whole ends them."""
    file.seek(0)
    magic = file.read(len(MAGIC))
    if not MAGIC.startswith(magic):
        raise LocalError("this is no queue that was exported")
    while len(head := file.read(_FRAME.size + 1)) == _FRAME.size + 1:
        length, checksum = _FRAME.unpack_from(head)
        kind = head[_FRAME.size :]
        payload = file.read(length) if length <= FRAME_MAX else b""
        if len(payload) < length or crc32(payload, crc32(kind)) != checksum:
            return
        yield kind, payload, file.tell()


def _records(payload: bytes) -> Iterator[Record]:
    at = 0
    while at < len(payload):
        key_length, value_length = _RECORD.unpack_from(payload, at)
        at += _RECORD.size
        yield payload[at : at + key_length], payload[at + key_length : at + key_length + value_length]
        at += key_length + value_length


def _origin(payload: bytes) -> Origin:
    found = from_json(payload)
    return Origin(str(found["node"]), int(found["boot"]), str(found["format"]))
