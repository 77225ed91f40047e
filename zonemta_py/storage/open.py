"""Opening of the store that the configuration names, and the check of the queue's free space.

A file beside the store has the process id of its user. Steps of ``open_store``: the directory has no store of another kind ─▶ the
store is opened, and locked by it ─▶ the process id is written.

Invariants:

- A queue of another store in the directory is an error: its mail would wait forever.
- The lock of the store decides who has it; the process id only names the holder in the error.
- ``Access.READ`` writes nothing, not even the process id.
- ``DiskSpace`` asks the disk once per second, and at each question when inodes are near their limit; its changes are logged.

Callers: the relay and the commands (``open_store``), ``queue repair`` (``locked_files``), intake (``DiskSpace``).

Example: a second ``zonemta serve`` gets QueueLocked: "the queue is in use by process 4711".
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError, QueueLocked
from zonemta_py.core.files import check_owner, private_directory, replace_text
from zonemta_py.storage import filesystem, leveldb
from zonemta_py.storage.filesystem import FilesystemStore
from zonemta_py.storage.interface import Access, Space, Store
from zonemta_py.storage.leveldb_store import LevelDBStore
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.shared import SharedStorage, open_own, open_own_or_standby

log = logging.getLogger(__name__)


PID_FILE = "relay.pid"

DIRECTORIES = {"leveldb": "db", "filesystem": "files"}
# Imported on demand: their clients are extras.
SHARED_STORAGES = {
    "redis": ("zonemta_py.storage.redis", "RedisSharedStorage"),
    "s3": ("zonemta_py.storage.s3", "S3SharedStorage"),
}


def store_directory(settings: QueueSettings) -> Path | None:
    """Return the directory of the store's files; None for a store without files on this machine."""
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


# ---- The free space for more mail: that of the disk, or of the server.

CHECK_INTERVAL_S = 1.0
SERVER_RESERVE = 10  # a server keeps at most a tenth of its memory free
INODES_MIN = 10_000  # for the files by which queued mail is settled
INODES_RESERVE = 10  # of a small file system at most a tenth stays free
NEAR = 8  # times the inodes that have to be free


def _unlimited() -> Space | None:
    return None


class DiskSpace:
    """The free space of the queue, checked at most once per second.

    ``store_space``: see ``Store.space``; None counts the disk of ``directory``.
    """

    def __init__(
        self, directory: Path, min_bytes: int, store_space: Callable[[], Space | None] = _unlimited
    ) -> None:
        self._directory = directory
        self._min_bytes = min_bytes
        self._store_space = store_space
        self._checked_s = -CHECK_INTERVAL_S
        self.lack = ""  # why there is not enough, or empty

    def is_sufficient(self) -> bool:
        """True if at least ``min_bytes`` and some inodes are free, or there is no limit. Raises OSError."""
        now_s = clock.monotonic_s()
        if now_s - self._checked_s >= CHECK_INTERVAL_S:
            self._checked_s = now_s
            self._check()
        return not self.lack

    def _check(self) -> None:
        space, required, where = self._store_space(), self._min_bytes, "the server of the queue"
        lack = ""
        if space is not None:
            free, required = space.free, min(required, space.total // SERVER_RESERVE)
        else:
            where = str(self._directory)
            try:
                stat = os.statvfs(self._directory)
            except FileNotFoundError:
                return  # a queue without files here
            free = stat.f_bavail * stat.f_frsize
            inodes = min(INODES_MIN, stat.f_files // INODES_RESERVE)  # 0: there is no limit
            if stat.f_favail < NEAR * inodes:  # a second of mail may need them all: check again at once
                self._checked_s = -CHECK_INTERVAL_S
            if stat.f_favail < inodes:
                lack = f"fewer than {inodes} inodes are free"
        if free < required:
            lack = "less than queue.min_free_disk is free"
        had, self.lack = self.lack, lack
        if lack and not had:
            log.warning(
                "%s has %d bytes free, and required are %d: %s, new mail is refused with 452",
                where, free, required, lack,
            )  # fmt: skip
        elif had and not lack:
            log.warning("%s has %d bytes free again: new mail is accepted", where, free)
