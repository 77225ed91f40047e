"""Exports a queue to a file and imports it into another store, byte for byte but for the node.

Both continue where an interrupted run ended. They need the lock of their store, so the relay must be
down. During an import the stored format is ``importing``: no relay opens an incomplete queue.
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from zonemta_py.core.codec import crc32, from_json, to_json
from zonemta_py.core.errors import LocalError
from zonemta_py.core.files import no_link, sync_directory
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.startup import IMPORTING, new_node
from zonemta_py.storage.interface import Op, Store

# ---- The file of an exported queue: every key and value of a store, in order, with checksums.
#
#     zonemta-queue 1 LF
#     frame*      length (32 bits, network order), CRC-32 (32 bits), kind (1 byte), payload
#
#     kind H      first, once: JSON with ``node``, ``boot`` and ``format`` of the queue
#     kind R      records: each the lengths of key and value (32 bits each), key, value
#     kind E      last, once: the number of records (64 bits)
#
# The CRC is that of kind and payload. A file that ends within a frame, or without ``E``, is incomplete.

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


# ---- Export and import.

META_IMPORT = b"meta/import"  # the number of imported records, and the file they are from
MODE = 0o600  # of the file: it has all mail
LAST = b"\xff" * 8

Progress = Callable[[int], None]  # called with the number of records since the last call


def export_queue(store: Store, path: Path, progress: Progress) -> int:
    """Write the queue to ``path`` and return the number of its records.

    An interrupted export is continued if the queue was not opened by a relay in between. Raises LocalError.
    """
    if path.exists():
        raise LocalError(f"{path} exists already; choose another name")
    found = store.get(keys.META_FORMAT)
    if found is None:
        raise LocalError("there is no queue to export")
    if found == IMPORTING:
        raise LocalError("this queue is incomplete: its import is not finished")
    node, boot = store.get(keys.META_NODE) or b"", store.get(keys.META_BOOT) or b"0"
    identity = QueueIdentity(node.decode(), int(boot), found.decode())
    unfinished = path.with_name(f"{path.name}.part")
    with open(unfinished, "a+b", opener=no_link) as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise LocalError(f"{unfinished} belongs to another user: choose another name")
        os.fchmod(file.fileno(), MODE)  # it may be that of an interrupted export
        records, start = _resume(file, identity)
        progress(records)
        for written in write_records(file, store.scan(start, LAST)):
            records += written
            progress(written)
        write_end(file, records)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)
    return records


def _resume(file: BinaryIO, identity: QueueIdentity) -> tuple[int, bytes]:
    """Cut an export of the same queue after its last complete frame, or begin a new one.

    Returns the number of records in the file and the start of the remaining keys.
    """
    found = read_summary(file)
    if found is None or found.identity != identity or found.complete:
        file.truncate(0)
        write_identity(file, identity)
        return 0, b""
    file.truncate(found.end)
    return found.records, found.last_key + b"\0" if found.records else b""


def import_queue(store: Store, path: Path, progress: Progress) -> int:
    """Import ``path`` into an empty store and return the number of its records.

    An interrupted import is continued when it is called again with the same file. Raises LocalError.
    """
    with path.open("rb") as file:
        found = read_summary(file)
        if found is None or not found.complete:
            raise LocalError(f"{path}: the file is incomplete or damaged; export the queue again")
        name = f"{found.identity.node}/{found.identity.boot}/{found.records}"
        done = _imported(store, path, name)
        progress(done)
        for records in _after(read_frames(file), done):
            done += len(records)
            ops: list[Op] = [(key, value) for key, value in records if key != keys.META_FORMAT]
            ops += [(keys.META_FORMAT, IMPORTING), (META_IMPORT, f"{done} {name}".encode())]
            store.write(store.batch(ops, sync=True))
            progress(len(records))
    end: list[Op] = [
        (META_IMPORT, None),
        (keys.META_NODE, new_node()),  # the exported queue may stay in use, or be imported twice
        (
            keys.META_LOG_BEGINS,
            store.get(keys.META_EXPORTED),
        ),  # what is before has the other node
        (keys.META_FORMAT, found.identity.format.encode()),
    ]
    store.write(store.batch(end, sync=True))
    return done


def _imported(store: Store, path: Path, name: str) -> int:
    """Return how many records of the file are in the store. Raises LocalError when others are."""
    found = store.get(META_IMPORT)
    if found is None:
        if next(store.keys(b"", LAST), None) is not None:
            raise LocalError("there is a queue here already: import into an empty store")
        return 0
    count, _, other = found.decode().partition(" ")
    if other != name:
        raise LocalError(
            f"the import of another file is not finished here; {path} is of a different queue"
        )
    return int(count)


def _after(frames: Iterator[list[Record]], done: int) -> Iterator[list[Record]]:
    """Skip the first ``done`` records."""
    for records in frames:
        if done >= len(records):
            done -= len(records)
            continue
        yield list(islice(records, done, None))
        done = 0
