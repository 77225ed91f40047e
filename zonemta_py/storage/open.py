"""Opening the store that the configuration names. A file beside it says which process has it."""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import LocalError, QueueLocked
from zonemta_py.storage.filesystem import FilesystemStore
from zonemta_py.storage.interface import Store
from zonemta_py.storage.leveldb import LevelDBStore
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.partitions import SharedStorage, open_own, own_name

HOLDER_FILE = "relay.pid"

FOLDERS = {"leveldb": "db", "filesystem": "files"}
STORES: dict[str, Callable[[Path], Store]] = {"leveldb": LevelDBStore, "filesystem": FilesystemStore}
# Loaded when asked for: their clients are extras.
PLACES = {
    "redis": ("zonemta_py.storage.redis", "RedisSharedStorage"),
    "s3": ("zonemta_py.storage.s3_partitions", "S3SharedStorage"),
}


def store_directory(settings: QueueSettings) -> Path | None:
    """Where the store keeps its files; None for one that has none here."""
    folder = FOLDERS.get(settings.store)
    return settings.directory / folder if folder else None


def open_shared_storage(settings: QueueSettings) -> SharedStorage | None:
    """Where relays share their queues; None for a store of this process alone. Raises LocalError."""
    if settings.store not in PLACES:
        return None
    module, name = PLACES[settings.store]
    try:
        found: Callable[[QueueSettings], SharedStorage] = getattr(import_module(module), name)
    except ImportError as exc:
        raise LocalError(
            f"queue.store: {settings.store} needs an extra: pip install 'zonemta_py[{settings.store}]' ({exc})"
        ) from exc
    return found(settings)


def open_store(settings: QueueSettings, *, spare: bool = False) -> Store:
    """The store of the queue. QueueLocked names the process that has it; LocalError otherwise.

    ``spare``: a part beside this relay's own will do, where another relay is delivering that.
    """
    directory, folder = settings.directory, store_directory(settings)
    for name, other in FOLDERS.items():
        if name != settings.store and (directory / other).exists():
            raise LocalError(
                f"{directory / other}: there is a queue of store '{name}' here, and queue.store says "
                f"'{settings.store}': set it back until that one is empty, or move the folder away"
            )
    holder = directory / HOLDER_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if settings.store in PLACES:
            return _open_part(settings, spare=spare)
        store = MemoryStore() if folder is None else STORES[settings.store](folder)
    except QueueLocked as exc:
        if settings.store in PLACES:
            raise
        raise QueueLocked(f"{directory}: the queue is in use by process {_holder(holder)}") from exc
    except OSError as exc:
        raise LocalError(f"{directory}: {exc}") from exc
    try:
        holder.write_text(f"{os.getpid()}\n")
    except OSError as exc:
        store.close()
        raise LocalError(f"{holder}: {exc}") from exc
    return store


def _open_part(settings: QueueSettings, *, spare: bool) -> Store:
    place = open_shared_storage(settings)
    assert place is not None
    try:
        return open_own(place, settings.shared) if spare else place.open(own_name(settings.shared))
    finally:
        place.close()


def _holder(path: Path) -> str:
    try:
        pid = path.read_text().strip()
    except OSError:
        return "unknown"
    # A pid that is gone was only the last to write it down.
    return pid if pid.isdigit() and Path(f"/proc/{pid}").exists() else "unknown"
