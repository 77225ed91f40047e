"""The file of an exported queue: every key and value of a store, in order, with checksums.

    zonemta-queue 1 LF
    frame*      length (32 bits, network order), CRC-32 (32 bits), kind (1 byte), payload

    kind H      first, once: JSON with ``node``, ``boot`` and ``format`` of the queue
    kind R      records: each the lengths of key and value (32 bits each), key, value
    kind E      last, once: the number of records (64 bits)

The CRC is that of kind and payload. A file that ends within a frame, or without ``E``, is incomplete.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from zonemta_py.core.codec import crc32, from_json, to_json
from zonemta_py.core.errors import LocalError

MAGIC = b"zonemta-queue 1\n"
FRAME_BYTES = 1 << 20  # of records in a frame; the last one may exceed it
FRAME_MAX = 1 << 28
HEADER, RECORDS, END = b"H", b"R", b"E"
_FRAME = struct.Struct("!II")
_RECORD = struct.Struct("!II")
_COUNT = struct.Struct("!Q")

Record = tuple[bytes, bytes]


class QueueIdentity(NamedTuple):
    """The queue that was exported, and its number of boots: it may have changed since another one."""

    node: str
    boot: int
    format: str


class ArchiveSummary(NamedTuple):
    """The undamaged frames of a file: ``end`` is the offset after the last one."""

    identity: QueueIdentity
    records: int
    last_key: bytes  # empty without records
    end: int
    complete: bool


def write_identity(file: BinaryIO, identity: QueueIdentity) -> None:
    """Write the first frame, which says of which queue the file is."""
    file.write(MAGIC)
    _write(file, HEADER, to_json(identity._asdict()))


def write_records(file: BinaryIO, records: Iterable[Record]) -> Iterator[int]:
    """Write frames of records; yields the number of records of each."""
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
    """Write the last frame, by which a reader knows that the file of ``records`` records is complete."""
    _write(file, END, _COUNT.pack(records))


def _write(file: BinaryIO, kind: bytes, payload: bytes) -> None:
    file.write(_FRAME.pack(len(payload), crc32(payload, crc32(kind))) + kind + payload)


def read_summary(file: BinaryIO) -> ArchiveSummary | None:
    """Read a file up to the first damaged frame. Returns None when that is the first frame.

    Raises LocalError for another kind of file.
    """
    found: ArchiveSummary | None = None
    for kind, payload, end in _frames(file):
        if kind == HEADER:
            found = ArchiveSummary(_identity(payload), 0, b"", end, complete=False)
        elif found is not None and kind == RECORDS:
            records = list(_records(payload))
            found = found._replace(
                records=found.records + len(records), last_key=records[-1][0], end=end
            )
        elif found is not None and kind == END:
            complete = _COUNT.unpack(payload)[0] == found.records
            return found._replace(complete=complete, end=end)
    return found


def read_frames(file: BinaryIO) -> Iterator[list[Record]]:
    """Yield the records of each frame. Raises LocalError for another kind of file."""
    for kind, payload, _ in _frames(file):
        if kind == RECORDS:
            yield list(_records(payload))


def _frames(file: BinaryIO) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield kind, payload and end offset of each frame before the first incomplete or damaged one."""
    file.seek(0)
    magic = file.read(len(MAGIC))
    if not MAGIC.startswith(magic):
        raise LocalError("the file does not contain an exported queue")
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


def _identity(payload: bytes) -> QueueIdentity:
    found = from_json(payload)
    return QueueIdentity(str(found["node"]), int(found["boot"]), str(found["format"]))
