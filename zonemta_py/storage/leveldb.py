"""LevelDB, and the adapter of plyvel. The store on it is ``leveldb_store.py``.

Life of a database::

    interrupted opening finished ─▶ files checked ─▶ torn end of the log cut off ─▶ open ─▶ failed, after an error of a write ─▶ closed

Invariants:

- A database is created only where no file of one is: LevelDB would make a new one in place of a lost CURRENT, and delete the tables.
- One process has a database open, by LevelDB's LOCK; within the process one object has it (``_open_here``), because POSIX drops a
  lock when the process closes any handle of the file.
- When ``write`` of a batch with ``sync`` returns, its data are on disk, and so are the names of new files. LevelDB puts the names on
  disk only before it syncs its MANIFEST; ``_sync_names`` does it whenever the directory has changed.
- After a failed write LevelDB refuses every later one until the database is opened again.
- An opening writes: LevelDB turns its log into a table, and deletes tables that its MANIFEST does not name. For ``Access.READ`` it
  gets a directory of symbolic links, so that the original files do not change.
- Every scan compares checksums; ``check_end`` finds the one damage that a scan would take for the end of the keys.

Threads: reads, short ranges and ``batch`` take microseconds and run on the event loop; ``write`` and ``compact`` run in a thread.
``close`` must not run while another call does.

Callers: ``leveldb_store``; ``storage.open`` for ``locked``, ``relay.runner`` for ``repair_database``.

Example::

    database = LevelDB(Path("var/queue/db"))
    database.write(database.batch([(b"meta/node", b"a")], sync=True))
    database.get(b"meta/node")  # b"a"

Source: doc/index.md, doc/impl.md and doc/log_format.md of LevelDB; fcntl(2) for the locks.
"""

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakValueDictionary

import plyvel

from zonemta_py.core.errors import (
    LocalError,
    QueueCorrupt,
    QueueLocked,
    QueueUnavailable,
    QueueUnreadable,
)
from zonemta_py.core.files import KnownFile, private_directory, sync_directory
from zonemta_py.storage.interface import GONE, Access, Op
from zonemta_py.storage.leveldb_recovery import (
    DATABASE_FILES,
    WRITTEN,
    check_logs,
    cut_torn_end,
    finish_opening,
    is_unfinished,
    note_written,
)

WRITE_BUFFER_BYTES = 16 << 20  # larger: faster writes, slower opening, more disk (decision 6)
CACHE_BYTES = 32 << 20
TABLES_OPEN_MAX = 256  # of 2 MiB; the others are opened when they are read
LEVEL0_FILES = 6  # LevelDB slows writes down at 8, and stops them at 12

_leveldb: Any = plyvel  # it has no type annotations
READ_ERRORS = (_leveldb.Error, OSError, RuntimeError)  # the last one: the database is closed
_open_here: "WeakValueDictionary[Path, LevelDB]" = WeakValueDictionary()  # by this process


class LevelDBView:
    """Read access to the database, or to a snapshot of that of ``owner``, which counts what fails."""

    def __init__(self, source: Any, owner: "LevelDBView | None" = None) -> None:
        self._source = source
        self._owner = self if owner is None else owner
        self.failed_reads = 0

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        """Return the value of ``key``, or None. Raises QueueCorrupt when LevelDB cannot read it, QueueUnavailable once it is closed."""
        try:
            value: bytes | None = self._source.get(key, verify_checksums=checked)
        except READ_ERRORS as exc:
            raise self._unread(f"{key!r}", exc) from exc
        return value

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values, as of the first one; see ``View.scan``. Raises QueueCorrupt."""
        return self._iterate(start, stop, include_value=True)

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield keys, as of the first one; see ``View.keys``. Raises QueueCorrupt."""
        return self._iterate(start, stop, include_value=False)

    def _iterate(self, start: bytes, stop: bytes, *, include_value: bool) -> Iterator[Any]:
        try:
            yield from self._source.iterator(
                start=start, stop=stop, include_value=include_value, verify_checksums=True
            )
        except READ_ERRORS as exc:
            raise self._unread(f"the range from {start!r}", exc) from exc

    def _unread(self, what: str, exc: Exception) -> LocalError:
        if isinstance(exc, RuntimeError):
            return QueueUnavailable(f"{what} cannot be read: the queue is closed")
        text = f"{what} cannot be read: {exc}"
        if isinstance(exc, _leveldb.CorruptionError):
            return QueueCorrupt(text)
        self._owner.failed_reads += 1
        return QueueUnreadable(text)


class LevelDB(LevelDBView):
    """An open database in ``directory``; created only where no file of a database is.

    Raises QueueLocked when another process has it open, LocalError when it cannot be opened.
    """

    def __init__(self, directory: Path, access: Access = Access.CREATE) -> None:
        self._directory = directory
        self._borrowed = ExitStack()  # what a read-only opening needs until ``close``
        opened = directory
        try:
            _check_presence(directory, access)
            if access is Access.READ:
                opened = self._borrowed.enter_context(_linked(directory))
            else:
                private_directory(directory)
                if directory.resolve() in _open_here:
                    raise QueueLocked(f"{directory}: in use by this process")
            self._db: Any = _open_whole(opened, access)
            self.check_end()
            self._lock_file = KnownFile(opened / "LOCK")
            self._names_ns = 0  # the time of the last change in the directory whose names are on disk
        except BaseException as exc:
            if hasattr(self, "_db"):
                self._db.close()
            self._borrowed.close()
            if isinstance(exc, _leveldb.Error | OSError):
                raise _opening_error(exc, directory, opened) from exc
            if type(exc) is QueueCorrupt:
                raise QueueCorrupt(str(exc).replace(str(opened), str(directory))) from exc
            raise
        super().__init__(self._db)
        if access is not Access.READ:
            _open_here[directory.resolve()] = self

    def check_end(self) -> None:
        """Raises QueueCorrupt when the last block of a table cannot be read, or the index of the last table.

        A scan with nothing whole behind such damage ends there, as if no key followed: plyvel asks for an error only where
        there is a next key. ``get`` and all other damage raise.
        """
        iterator = self._db.raw_iterator(verify_checksums=True)
        try:
            iterator.seek_to_last()
        except (_leveldb.Error, OSError) as exc:
            raise QueueCorrupt(f"{self._directory}: the last keys cannot be read: {exc}") from exc
        finally:
            iterator.close()

    @contextmanager
    def frozen(self) -> Iterator[LevelDBView]:
        """A snapshot, for reads that must agree with each other. Keep it short: it delays compaction."""
        snapshot = self._db.snapshot()
        try:
            yield LevelDBView(snapshot, self)
        finally:
            snapshot.close()

    def batch(self, ops: Iterable[Op], *, sync: bool) -> Any:
        """Build a write batch, on the loop thread: in another one it takes 300 times longer."""
        batch = self._db.write_batch(sync=sync)
        put, delete = batch.put, batch.delete
        for key, value in ops:
            if value is None:
                delete(key)
            else:
                put(key, value)
        return batch

    def write(self, batch: Any) -> None:
        """Write all of ``batch`` or nothing. Raises QueueUnavailable.

        LevelDB writes to open files: it does not notice that they were deleted.
        """
        try:
            batch.write()
        except (_leveldb.Error, OSError) as exc:
            raise QueueUnavailable(f"{self._directory}: {exc}") from exc
        if not self._lock_file.is_there():
            raise QueueUnavailable(f"{self._directory}: {GONE}")
        try:
            self._sync_names()
        except OSError as exc:
            raise QueueUnavailable(f"{self._directory}: {exc}") from exc

    def _sync_names(self) -> None:
        """Put the names of files on disk that LevelDB has made since, such as that of the log just written to. Raises OSError."""
        changed_ns = (
            self._directory.stat().st_mtime_ns
        )  # before the sync: a later change has one of its own
        if changed_ns == self._names_ns:
            return
        sync_directory(self._directory)
        if note_written(self._directory):  # only now: the log that it names is there after a power cut
            changed_ns = self._directory.stat().st_mtime_ns
            sync_directory(self._directory)
        self._names_ns = changed_ns

    def compact(self) -> None:
        # Without both ends plyvel does nothing.
        self._db.compact_range(start=b"\x00", stop=b"\xff\xff")

    def size_bytes(self) -> int:
        """Return the approximate size of the database on disk, without its log."""
        sizes: list[int] = self._db.approximate_sizes((b"\x00", b"\xff\xff"))
        return sizes[0]

    def is_behind(self) -> bool:
        return int(self._db.get_property(b"leveldb.num-files-at-level0")) >= LEVEL0_FILES

    def close(self) -> None:
        """Close the database. A read or write in another thread would crash the process."""
        self._db.close()
        self._borrowed.close()
        if _open_here.get(self._directory.resolve()) is self:
            del _open_here[self._directory.resolve()]


def _opening_error(exc: Exception, directory: Path, opened: Path) -> LocalError:
    """The error to raise for an error of the opening, with the path that the operator knows instead of ``opened``."""
    given = exc.args[0] if exc.args else ""
    text = given.decode(errors="replace") if isinstance(given, bytes) else str(exc)
    text = text.replace(str(opened), str(directory))
    if isinstance(exc, _leveldb.CorruptionError):
        return QueueCorrupt(f"{directory}: {text}")
    # LevelDB's words for a lock that another process has, or this one; the path may have any word in it.
    if text.startswith("IO error: lock ") and "permission" not in text.lower():
        return QueueLocked(f"{directory}: in use by another process")
    return LocalError(f"{directory}: {text}")


def _open_whole(directory: Path, access: Access) -> Any:
    """The database, without a torn end of its log. Raises QueueCorrupt for other damage, QueueLocked, and what ``_open`` raises."""
    create, is_link = access is Access.CREATE, access is Access.READ
    with nullcontext() if is_link else locked(directory):
        if not is_link:
            finish_opening(directory)
        if (directory / "CURRENT").exists():
            check_logs(directory, keep=not is_link)
    try:
        return _open(directory, create=create)
    except _leveldb.CorruptionError:
        with nullcontext() if is_link else locked(directory):
            is_cut = cut_torn_end(directory, keep=not is_link)
        if not is_cut:
            raise
        return _open(directory, create=create)


def _open(directory: Path, *, create: bool) -> Any:
    return _leveldb.DB(
        str(directory),
        create_if_missing=create,
        paranoid_checks=True,  # a damaged log is an error, not a silent loss of records
        write_buffer_size=WRITE_BUFFER_BYTES,
        lru_cache_size=CACHE_BYTES,
        max_open_files=TABLES_OPEN_MAX,
        compression=None,  # a third of the CPU of large mail (decision 6)
    )


def _check_presence(directory: Path, access: Access) -> None:
    """Raises LocalError for a database without CURRENT, where LevelDB would make a new one and delete the old."""
    if (directory / "CURRENT").exists():
        return
    found = sorted(path.name for pattern in DATABASE_FILES for path in directory.glob(pattern))
    if found and not is_unfinished(directory):
        raise LocalError(
            f"{directory}/CURRENT is missing, and {len(found)} files of a database are there ({found[0]} …): "
            "run zonemta queue repair, or restore the whole directory"
        )
    if access is not Access.CREATE:
        raise LocalError(f"{directory}: there is no queue yet; the first `zonemta serve` creates it")


@contextmanager
def _linked(directory: Path) -> Iterator[Path]:
    """A temporary directory with links to the files of a database, which is locked meanwhile.

    Only for a process that does not have the same database open otherwise: POSIX drops the lock of a
    process when it closes any handle of the file.
    """
    with ExitStack() as stack:
        name = stack.enter_context(TemporaryDirectory(prefix="zonemta-read-"))
        if (directory / "LOCK").exists():
            stack.enter_context(locked(directory))
        for path in directory.iterdir():
            if path.name != "LOCK":
                (Path(name) / path.name).symlink_to(path.absolute())
        yield Path(name)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the database against other processes. Raises QueueLocked when one has it open.

    ``_linked`` says who may call it.
    """
    with (directory / "LOCK").open("a+b") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise QueueLocked(f"{directory}: in use by another process") from exc
        yield


def repair_database(directory: Path) -> None:
    """Let LevelDB rebuild the database from every table and log that it can read. Raises LocalError.

    LevelDB takes no lock for that: the caller has it (``locked``).
    """
    try:
        (directory / WRITTEN).unlink(missing_ok=True)  # the logs become tables
        _leveldb.repair_db(str(directory), paranoid_checks=True)
    except (_leveldb.Error, OSError) as exc:
        raise LocalError(f"{directory}: {exc}") from exc
