"""A queue out of one store and into another, byte for byte; broken off, it goes on where it was.

The relay must be down: both take the lock of their store. While a queue is being brought in, its
format is ``importing``, so that no relay opens half of it.
"""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from zonemta_py.core.errors import LocalError
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.recovery import IMPORTING
from zonemta_py.storage import archive
from zonemta_py.storage.interface import Op, Store

META_IMPORT = b"meta/import"  # records that are in, and of which file
LAST = b"\xff" * 8

Tell = Callable[[int], None]


def export_queue(store: Store, path: Path, tell: Tell) -> int:
    """Write ``path``; how many records it has. ``tell`` is told of records as they are written.

    A file that was broken off, of the same life of the same queue, is finished. Raises LocalError.
    """
    if path.exists():
        raise LocalError(f"{path}: there is something already; choose another name")
    found = store.get(keys.META_FORMAT)
    if found is None or found == IMPORTING:
        raise LocalError("there is no queue to export" if found is None else "this queue is not whole: its import is not finished")  # fmt: skip
    node, boot = store.get(keys.META_NODE) or b"", store.get(keys.META_BOOT) or b"0"
    origin = archive.Origin(node.decode(), int(boot), found.decode())
    part = path.with_name(f"{path.name}.part")
    with part.open("a+b") as file:
        records, after = _resume(file, origin)
        tell(records)
        for written in archive.write_records(file, store.scan(after, LAST)):
            records += written
            tell(written)
        archive.write_end(file, records)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync_folder(path.parent)
    return records


def _resume(file: BinaryIO, origin: archive.Origin) -> tuple[int, bytes]:
    """Keep what is whole of a file of the same queue; records in it, and the first key that is not."""
    part = archive.read_part(file)
    if part is None or part.origin != origin or part.complete:
        file.truncate(0)
        archive.write_origin(file, origin)
        return 0, b""
    file.truncate(part.end)
    return part.records, part.last_key + b"\0" if part.records else b""


def import_queue(store: Store, path: Path, tell: Tell) -> int:
    """Bring ``path`` into an empty store; how many records it has. Raises LocalError.

    Broken off, it goes on when it is called again with the same file.
    """
    with path.open("rb") as file:
        part = archive.read_part(file)
        if part is None or not part.complete:
            raise LocalError(f"{path}: the file is not whole; export the queue again")
        name = f"{part.origin.node}/{part.origin.boot}/{part.records}"
        done = _done(store, path, name)
        tell(done)
        for records in _after(archive.read_frames(file), done):
            done += len(records)
            ops: list[Op] = [(key, value) for key, value in records if key != keys.META_FORMAT]
            ops += [(keys.META_FORMAT, IMPORTING), (META_IMPORT, f"{done} {name}".encode())]
            store.write(store.batch(ops, sync=True))
            tell(len(records))
    whole: list[Op] = [(META_IMPORT, None), (keys.META_FORMAT, part.origin.format.encode())]
    store.write(store.batch(whole, sync=True))
    return done


def _done(store: Store, path: Path, name: str) -> int:
    """How many records of the file are in the store already. Raises LocalError when others are."""
    found = store.get(META_IMPORT)
    if found is None:
        if next(store.keys(b"", LAST), None) is not None:
            raise LocalError("there is a queue here already: import into an empty one")
        return 0
    count, _, other = found.decode().partition(" ")
    if other != name:
        raise LocalError(
            f"another file was being imported here; finish that one, {path} is a different queue"
        )
    return int(count)


def _after(frames: Iterator[list[archive.Record]], done: int) -> Iterator[list[archive.Record]]:
    """What follows the first ``done`` records."""
    for records in frames:
        if done >= len(records):
            done -= len(records)
            continue
        yield list(islice(records, done, None))
        done = 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
