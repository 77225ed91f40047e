"""Exports a queue to a file and imports it into another store, byte for byte but for the node.

Both continue where an interrupted run ended. They need the lock of their store, so the relay must be
down. During an import the stored format is ``importing``: no relay opens an incomplete queue.
"""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from zonemta_py.core.errors import LocalError
from zonemta_py.core.files import no_link, sync_directory
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.startup import IMPORTING, new_node
from zonemta_py.storage import archive
from zonemta_py.storage.interface import Op, Store

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
    identity = archive.QueueIdentity(node.decode(), int(boot), found.decode())
    unfinished = path.with_name(f"{path.name}.part")
    with open(unfinished, "a+b", opener=no_link) as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise LocalError(f"{unfinished} belongs to another user: choose another name")
        os.fchmod(file.fileno(), MODE)  # it may be that of an interrupted export
        records, start = _resume(file, identity)
        progress(records)
        for written in archive.write_records(file, store.scan(start, LAST)):
            records += written
            progress(written)
        archive.write_end(file, records)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)
    return records


def _resume(file: BinaryIO, identity: archive.QueueIdentity) -> tuple[int, bytes]:
    """Cut an export of the same queue after its last complete frame, or begin a new one.

    Returns the number of records in the file and the start of the remaining keys.
    """
    found = archive.read_summary(file)
    if found is None or found.identity != identity or found.complete:
        file.truncate(0)
        archive.write_identity(file, identity)
        return 0, b""
    file.truncate(found.end)
    return found.records, found.last_key + b"\0" if found.records else b""


def import_queue(store: Store, path: Path, progress: Progress) -> int:
    """Import ``path`` into an empty store and return the number of its records.

    An interrupted import is continued when it is called again with the same file. Raises LocalError.
    """
    with path.open("rb") as file:
        found = archive.read_summary(file)
        if found is None or not found.complete:
            raise LocalError(f"{path}: the file is incomplete or damaged; export the queue again")
        name = f"{found.identity.node}/{found.identity.boot}/{found.records}"
        done = _imported(store, path, name)
        progress(done)
        for records in _after(archive.read_frames(file), done):
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


def _after(frames: Iterator[list[archive.Record]], done: int) -> Iterator[list[archive.Record]]:
    """Skip the first ``done`` records."""
    for records in frames:
        if done >= len(records):
            done -= len(records)
            continue
        yield list(islice(records, done, None))
        done = 0
