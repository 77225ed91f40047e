"""Opening the store that the configuration names. A file beside it says which process has it."""

import os
from collections.abc import Callable
from pathlib import Path

from zonemta_py.config.schema import QueueSettings
from zonemta_py.errors import LocalError, QueueLocked
from zonemta_py.queue.leveldb import LevelStore
from zonemta_py.queue.store import Store
from zonemta_py.stores.files import FilesStore
from zonemta_py.stores.memory import MemoryStore

HOLDER_FILE = "relay.pid"

FOLDERS = {"leveldb": "db", "filesystem": "files"}
STORES: dict[str, Callable[[Path], Store]] = {"leveldb": LevelStore, "filesystem": FilesStore}


def store_folder(settings: QueueSettings) -> Path | None:
    """Where the store keeps its files; None for one in memory."""
    folder = FOLDERS.get(settings.store)
    return settings.directory / folder if folder else None


def open_store(settings: QueueSettings) -> Store:
    """The store of the queue. QueueLocked names the process that has it; LocalError otherwise."""
    directory, folder = settings.directory, store_folder(settings)
    for name, other in FOLDERS.items():
        if name != settings.store and (directory / other).exists():
            raise LocalError(
                f"{directory / other}: there is a queue of store '{name}' here, and queue.store says "
                f"'{settings.store}': set it back until that one is empty, or move the folder away"
            )
    holder = directory / HOLDER_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        store = MemoryStore() if folder is None else STORES[settings.store](folder)
    except QueueLocked as exc:
        raise QueueLocked(f"{directory}: the queue is in use by process {_holder(holder)}") from exc
    except OSError as exc:
        raise LocalError(f"{directory}: {exc}") from exc
    try:
        holder.write_text(f"{os.getpid()}\n")
    except OSError as exc:
        store.close()
        raise LocalError(f"{holder}: {exc}") from exc
    return store


def _holder(path: Path) -> str:
    try:
        pid = path.read_text().strip()
    except OSError:
        return "unknown"
    # A pid that is gone was only the last to write it down.
    return pid if pid.isdigit() and Path(f"/proc/{pid}").exists() else "unknown"
