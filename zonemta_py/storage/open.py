"""Opens the store that the configuration names. A file next to it holds the process id of its user."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import LocalError, QueueLocked
from zonemta_py.core.files import check_owner, private_directory, replace_text
from zonemta_py.storage import filesystem, leveldb
from zonemta_py.storage.filesystem import FilesystemStore
from zonemta_py.storage.interface import Access, Store
from zonemta_py.storage.leveldb_store import LevelDBStore
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.partitions import SharedStorage, open_own, open_own_or_standby

PID_FILE = "relay.pid"

DIRECTORIES = {"leveldb": "db", "filesystem": "files"}
# Imported on demand: their clients are extras.
SHARED_STORAGES = {
    "redis": ("zonemta_py.storage.redis_partitions", "RedisSharedStorage"),
    "s3": ("zonemta_py.storage.s3_partitions", "S3SharedStorage"),
}


def store_directory(settings: QueueSettings) -> Path | None:
    """Return where the store keeps its files; None for a store without files on this machine."""
    directory = DIRECTORIES.get(settings.store)
    return settings.directory / directory if directory else None


def open_shared_storage(settings: QueueSettings) -> SharedStorage | None:
    """Return the storage that relays share; None for a local store. Raises LocalError."""
    if settings.store not in SHARED_STORAGES:
        return None
    module, name = SHARED_STORAGES[settings.store]
    try:
        connect: Callable[[QueueSettings], SharedStorage] = getattr(import_module(module), name)
    except ImportError as exc:
        raise LocalError(
            f"queue.store: {settings.store} needs an extra: pip install 'zonemta_py[{settings.store}]' ({exc})"
        ) from exc
    return connect(settings)


def open_store(
    settings: QueueSettings, *, standby: bool = False, access: Access = Access.CREATE
) -> Store:
    """Open the store of the queue. Raises QueueLocked, which names the process that has it, or LocalError.

    ``standby``: open a standby partition while another relay delivers this relay's own. ``access``: what
    may be written; a shared store writes its lease in any case.
    """
    directory = settings.directory
    for name, other in DIRECTORIES.items():
        if name != settings.store and (directory / other).exists():
            raise LocalError(
                f"{directory / other}: there is a queue of store '{name}' here, and queue.store says "
                f"'{settings.store}': set it back until that queue is empty, or move the directory away"
            )
    pid_file = directory / PID_FILE
    try:
        if access is Access.CREATE:
            private_directory(directory)
        if settings.store in SHARED_STORAGES:
            return _open_partition(settings, standby=standby)
        store = _open_local(settings, access)
    except QueueLocked as exc:
        if settings.store in SHARED_STORAGES:
            raise
        raise QueueLocked(f"{directory}: the queue is in use by process {_user(pid_file)}") from exc
    except OSError as exc:
        raise LocalError(f"{exc.filename or directory}: {exc.strerror or exc}") from exc
    if access is Access.READ:
        return store
    try:
        replace_text(pid_file, f"{os.getpid()}\n", 0o600, follow=False)
    except OSError as exc:
        store.close()
        raise LocalError(f"{pid_file}: {exc}") from exc
    return store


@contextmanager
def locked_files(settings: QueueSettings) -> Iterator[Path]:
    """The directory of a local store, which no other process opens meanwhile.

    Raises QueueLocked, which names the process that has it, LocalError when there is none.
    """
    directory = store_directory(settings)
    if directory is None:
        raise LocalError(
            f"queue.store: {settings.store} has no files on this machine: there is nothing to repair here, see "
            "docs/stores.md"
        )
    if not directory.is_dir():
        raise LocalError(f"{settings.directory}: there is no queue to repair")
    try:
        check_owner(settings.directory)
    except OSError as exc:
        raise LocalError(f"{settings.directory}: {exc.strerror or exc}") from exc
    lock = filesystem.locked if settings.store == "filesystem" else leveldb.locked
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(directory))
        except QueueLocked as exc:
            user = _user(settings.directory / PID_FILE)
            raise QueueLocked(f"{settings.directory}: the queue is in use by process {user}") from exc
        except FileNotFoundError:
            pass  # damaged: no process has it open without its lock file
        yield directory


def _open_local(settings: QueueSettings, access: Access) -> Store:
    directory = store_directory(settings)
    if directory is None:
        return MemoryStore()
    if settings.store == "filesystem":
        return FilesystemStore(directory, access)
    return LevelDBStore(directory, access, settings.segments_from)


def _open_partition(settings: QueueSettings, *, standby: bool) -> Store:
    storage = open_shared_storage(settings)
    assert storage is not None
    try:
        open_partition = open_own_or_standby if standby else open_own
        return open_partition(storage, settings.shared)
    finally:
        storage.close()


def _user(path: Path) -> str:
    try:
        pid = path.read_text().strip()
    except OSError:
        return "unknown"
    # The process that wrote the file last may have ended; another one has the store then.
    return pid if pid.isdigit() and Path(f"/proc/{pid}").exists() else "unknown"
