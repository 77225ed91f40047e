"""A disk that fails on request, and that loses in a power cut what was not synced.

What the relay does with its own files goes through here, because ``install`` replaces the functions of ``os`` that change files or
names, and the class of the files of the event log. LevelDB writes its files itself: here its unit is the batch.

A power cut happens in front of a call. ``image`` makes the directory that a machine finds when it has power again:

- a file has what it had at its last fsync, and any part of what was written since, with holes of whole pages that are zeros;
- a directory has the names of its last fsync, and any of the changes since: some of the first ones, or any subset. A rename within
  it is one change. So a name that was removed may be there again (``_removed`` keeps its file meanwhile);
- of LevelDB's newest log the end that the batch under way has written is any part of it; everything else is there.

The killed process continues in its old directory until the player stops it; what it does there is discarded.

Invariants:

- Only what is below a directory that was given to ``settle`` is known, and fails.
- A known directory has a listing in ``_names`` as of its last fsync, and its changes since in ``_changes``; a known file has its
  synced length in ``_synced_bytes``. All are by inode; ``_removed`` keeps the inodes of removed files from being used again.

Caller: ``play.Player``. Example: ``disk.interrupt(3, die)`` calls ``die`` in front of the third call from now.
"""

import errno
import io
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import plyvel

PAGE_BYTES = 4096
_leveldb: Any = plyvel  # it has no type annotations
LEVELDB = "db"  # the directory of the database

Change = Mapping[
    str, int | None
]  # of a directory: names and their inodes, None: it has the name no longer


class Failing(NamedTuple):
    """The part of the calls of these kinds that fails with ``number``: open (for writing), read (also an opening for it), write, sync, name."""

    number: int
    kinds: Collection[str]
    part: float = 1.0


class Disk:
    """The disk of a simulation. ``removed``: an empty directory on it, for files that have lost their name."""

    def __init__(self, removed: Path, r: Random) -> None:
        self._removed = removed
        self._r = r
        self._names: dict[int, dict[str, int]] = {}
        self._changes: dict[int, list[Change]] = {}
        self._synced_bytes: dict[int, int] = {}
        self._failing: Failing | None = None
        self._calls_left = 0  # until the interruption
        self._on_call: Callable[[], None] | None = None
        self._log_bytes = 0  # of LevelDB's newest log, synced
        self.failed = 0  # calls

    def settle(self, directory: Path) -> None:
        """Everything below ``directory`` is known, and on disk."""
        for path, names, files in os.walk(directory):
            found = {name: os.lstat(f"{path}/{name}") for name in names + files}
            self._names[Path(path).stat().st_ino] = {name: each.st_ino for name, each in found.items()}
            for each in found.values():
                if not stat.S_ISDIR(each.st_mode):
                    self._synced_bytes[each.st_ino] = each.st_size

    # ---- what goes wrong

    def fail(self, failing: Failing | None) -> None:
        """Let calls fail, or no longer."""
        self._failing = failing

    @property
    def is_failing(self) -> bool:
        """True while some calls fail."""
        return self._failing is not None

    @property
    def is_full(self) -> bool:
        """True while calls fail for a lack of space."""
        return self._failing is not None and self._failing.number == errno.ENOSPC

    def interrupt(self, calls: int, on_call: Callable[[], None] | None) -> None:
        """Call ``on_call`` in front of that call from now; None: no longer."""
        self._calls_left, self._on_call = calls, on_call

    def call(self, kind: str) -> None:
        """In front of a call: a kill, a power cut, or OSError."""
        if self._on_call is not None:
            self._calls_left -= 1
            if self._calls_left <= 0:
                on_call, self._on_call = self._on_call, None
                on_call()
        failing = self._failing
        if failing is not None and kind in failing.kinds and self._r.random() < failing.part:
            self.failed += 1
            raise OSError(failing.number, os.strerror(failing.number))

    # ---- what the relay does

    def knows(self, inode: int) -> bool:
        """True for a directory or a file of the relay."""
        return inode in self._names or inode in self._synced_bytes

    def made(self, directory: int, name: str, found: os.stat_result) -> None:
        """``name`` is new in ``directory``."""
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = {}
            self._changes.pop(found.st_ino, None)
        elif found.st_nlink == 1:
            self._synced_bytes[found.st_ino] = 0 if stat.S_ISREG(found.st_mode) else found.st_size
        self.changed(directory, {name: found.st_ino})

    def changed(self, directory: int, change: Change) -> None:
        """The names in ``directory`` have changed."""
        self._changes.setdefault(directory, []).append(change)

    def keep(self, path: Any, dir_fd: int | None) -> None:
        """The file ``path`` is about to lose its name."""
        found = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        kept = self._removed / str(found.st_ino)
        if not stat.S_ISDIR(found.st_mode) and not os.path.lexists(kept):
            _REAL["link"](path, kept, src_dir_fd=dir_fd, follow_symlinks=False)

    def synced(self, handle: int) -> None:
        """A file, or a directory, is on disk."""
        found = os.fstat(handle)
        if not self.knows(found.st_ino):
            return
        if not stat.S_ISDIR(found.st_mode):
            self._synced_bytes[found.st_ino] = found.st_size
            return
        changes = self._changes.pop(found.st_ino, ())
        self._names[found.st_ino] = names_after(self._names[found.st_ino], changes)

    def truncated(self, handle: int, size: int) -> None:
        """A file is shorter."""
        inode = os.fstat(handle).st_ino
        if inode in self._synced_bytes:
            self._synced_bytes[inode] = min(self._synced_bytes[inode], size)

    @contextmanager
    def batch(self, directory: Path, *, sync: bool) -> Iterator[None]:
        """A batch of LevelDB in ``directory`` is written in this block."""
        log = _newest_log(directory)
        self._log_bytes = log.stat().st_size if log else 0
        self.call("write")
        yield
        if sync:
            self.call("sync")  # it is written, and not known to be on disk
            log = _newest_log(directory)
            self._log_bytes = log.stat().st_size if log else 0

    # ---- what is left

    def image(self, source: Path, target: Path, r: Random) -> None:
        """Make ``target``: what is in ``source`` after a power cut now."""
        with self._spared():
            _Copy(self, r).directory(source, target)
        self.settle(target)

    def copy(self, source: Path, target: Path) -> None:
        """Make ``target``: what is in ``source``, of which the same is on disk."""
        copying = _Copy(self, None)
        with self._spared():
            copying.directory(source, target)
        for old, new in list(copying.inodes.items()):
            if old in self._synced_bytes:
                self._synced_bytes[new] = self._synced_bytes[old]
            if old in self._names:
                self._names[new] = copying.translated(self._names[old])
                self._changes[new] = [copying.translated(each) for each in self._changes.get(old, ())]

    @contextmanager
    def _spared(self) -> Iterator[None]:
        """Calls of the simulation itself do not fail."""
        failing, self._failing = self._failing, None
        yield
        self._failing = failing

    def unsynced(self, directory: int) -> Sequence[Change] | None:
        """The changes of the names in a directory since its last fsync; None if it is not known."""
        return self._changes.get(directory, ()) if directory in self._names else None

    def names(self, directory: int, changes: Sequence[Change]) -> dict[str, int]:
        """The names in a known directory, after ``changes`` since its last fsync."""
        return names_after(self._names[directory], changes)

    def left(self, inode: int, data: bytes, r: Random) -> bytes:
        """What is left of ``data`` in a file after a power cut."""
        return torn(data, self._synced_bytes.get(inode, 0), r)

    def left_of_log(self, data: bytes, r: Random) -> bytes:
        """What is left of ``data`` in LevelDB's newest log."""
        return torn(data, self._log_bytes, r)

    def removed(self, inode: int) -> Path:
        """The file, if it has lost its name."""
        return self._removed / str(inode)


class _Copy:
    """A copy of a directory, with ``r``: as after a power cut. ``inodes``: those of the copies."""

    def __init__(self, disk: Disk, r: Random | None) -> None:
        self._disk, self._r = disk, r
        self._is_in_order = r is not None and r.random() < 0.5
        self._copied: dict[int, Path] = {}  # by inode; one with two names is copied once
        self.inodes: dict[int, int] = {}

    def directory(self, source: Path, target: Path) -> None:
        """Copy ``source`` to ``target``, which is made."""
        _REAL["mkdir"](target, 0o700)
        inode = source.stat().st_ino
        changes = self._disk.unsynced(inode)
        if source.name == LEVELDB or changes is None:
            self._database(source, target)
            return
        self.inodes[inode] = target.stat().st_ino
        present = {entry.inode(): Path(entry.path) for entry in os.scandir(source)}
        for name, found in sorted(self._disk.names(inode, self._kept(changes)).items()):
            path, new = present.get(found, self._disk.removed(found)), target / name
            if path.is_symlink():
                _REAL["symlink"](path.readlink(), new)
            elif path.is_dir():
                self.directory(path, new)
            elif found in self._copied:
                _REAL["link"](self._copied[found], new)
            elif path.is_file():  # else a socket, or a directory that was removed
                data = path.read_bytes()
                new.write_bytes(data if self._r is None else self._disk.left(found, data, self._r))
                new.chmod(0o600)
                self._copied[found] = new
            if os.path.lexists(new):
                self.inodes[found] = os.lstat(new).st_ino

    def _kept(self, changes: Sequence[Change]) -> Sequence[Change]:
        if self._r is None:
            return changes
        if self._is_in_order:
            return changes[: self._r.randint(0, len(changes))]
        return [each for each in changes if self._r.random() < 0.5]

    def _database(self, source: Path, target: Path) -> None:
        inner = [path for path in source.iterdir() if path.is_dir()]
        ignored = shutil.ignore_patterns("LOCK", *(path.name for path in inner))
        for _ in range(100):
            before = _state(source)
            shutil.rmtree(target)
            try:
                shutil.copytree(source, target, ignore=ignored)
            except shutil.Error:
                continue  # a compaction has removed a table
            if _state(source) == before:
                break
        log = _newest_log(target)
        if log is not None and self._r is not None:
            log.write_bytes(self._disk.left_of_log(log.read_bytes(), self._r))
        self._disk.settle(target)
        for path in inner:
            self.directory(path, target / path.name)

    def translated(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """``change`` with the inodes of the copies."""
        return {name: self.inodes.get(inode, inode) for name, inode in change.items()}


def names_after(names: Mapping[str, int], changes: Sequence[Change]) -> dict[str, int]:
    """The names of a directory after ``changes``."""
    found = dict(names)
    for change in changes:
        for name, inode in change.items():
            if inode is None:
                found.pop(name, None)
            else:
                found[name] = inode
    return found


def torn(data: bytes, synced: int, r: Random, *, with_holes: bool = True) -> bytes:
    """``data``, with any part of what is behind ``synced``, and holes in it."""
    if len(data) <= synced:
        return data
    size = r.choice([synced, len(data), r.randint(synced, len(data))])
    left = bytearray(data[:size])
    if r.random() < 0.5 and with_holes:
        for begin in range(synced - synced % PAGE_BYTES, size, PAGE_BYTES):
            if r.random() < 0.3:
                first, end = max(begin, synced), min(begin + PAGE_BYTES, size)
                left[first:end] = bytes(end - first)
    return bytes(left)


def _newest_log(directory: Path) -> Path | None:
    return max(directory.glob("[0-9]*.log"), default=None)


def _state(directory: Path) -> list[tuple[str, int]]:
    return sorted((entry.name, entry.stat().st_size) for entry in os.scandir(directory))


# ---- The functions that are replaced.

_REAL: dict[str, Any] = {
    name: getattr(os, name)
    for name in (
        "open", "write", "pread", "pwrite", "pwritev", "fsync", "fdatasync", "ftruncate", "link", "symlink", "rename", "replace",
        "unlink", "mkdir", "rmdir", "statvfs",
    )
}  # fmt: skip
_REAL_OPEN: Any = io.open
_disk: Disk | None = None


def _parent(path: Any, dir_fd: int | None) -> tuple[int, str]:
    """The inode of the directory of ``path``, 0 if there is none, and the name in it."""
    directory, name = os.path.split(os.fspath(path))
    try:
        if not directory and dir_fd is not None:
            return os.fstat(dir_fd).st_ino, name
        return os.stat(directory or ".", dir_fd=dir_fd).st_ino, name
    except (OSError, ValueError):
        return 0, name


def _of_file(kind: str, name: str) -> Callable[..., Any]:
    """A function whose first argument is a descriptor."""
    real = _REAL[name]

    def replaced(handle: int, *args: Any) -> Any:
        if _disk is not None and _disk.knows(os.fstat(handle).st_ino):
            _disk.call(kind)
            if name == "ftruncate":
                _disk.truncated(handle, args[0])
        return real(handle, *args)

    return replaced


def _synced(name: str) -> Callable[[int], None]:
    real = _REAL[name]

    def replaced(handle: int) -> None:
        if _disk is None:
            real(handle)
        elif _disk.knows(os.fstat(handle).st_ino):
            _disk.call("sync")
            _disk.synced(handle)

    return replaced


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    directory, name = _parent(path, dir_fd)
    if _disk is None or not _disk.knows(directory):
        return int(_REAL["open"](path, flags, mode, dir_fd=dir_fd))
    _disk.call("open" if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else "read")
    is_new = flags & os.O_CREAT and not os.path.lexists(path)
    handle = int(_REAL["open"](path, flags, mode, dir_fd=dir_fd))
    if is_new:
        _disk.made(directory, name, os.fstat(handle))
    elif flags & os.O_TRUNC:
        _disk.truncated(handle, 0)
    return handle


def _new_name(real_name: str, position: int) -> Callable[..., None]:
    """A function that makes the name which is its argument of that number."""
    real = _REAL[real_name]

    def replaced(*args: Any, **others: Any) -> None:
        path, dir_fd = args[position], others.get("dir_fd")
        directory, name = _parent(path, dir_fd)
        if _disk is None or not _disk.knows(directory):
            real(*args, **others)
            return
        _disk.call("name")
        real(*args, **others)
        _disk.made(directory, name, os.stat(path, dir_fd=dir_fd, follow_symlinks=False))

    return replaced


def _without_name(real_name: str) -> Callable[..., None]:
    """A function that removes the name which is its first argument."""
    real = _REAL[real_name]

    def replaced(path: Any, *, dir_fd: int | None = None) -> None:
        directory, name = _parent(path, dir_fd)
        if _disk is None or not _disk.knows(directory):
            real(path, dir_fd=dir_fd)
            return
        _disk.call("name")
        _disk.keep(path, dir_fd)
        real(path, dir_fd=dir_fd)
        _disk.changed(directory, {name: None})

    return replaced


def _rename(source: Any, target: Any) -> None:
    (directory, old), (other, new) = _parent(source, None), _parent(target, None)
    if _disk is None or not _disk.knows(directory):
        _REAL["replace"](source, target)
        return
    _disk.call("name")
    inode = os.lstat(source).st_ino
    if os.path.lexists(target):
        _disk.keep(target, None)
    _REAL["replace"](source, target)
    if other == directory:
        _disk.changed(directory, {old: None, new: inode})
    else:
        _disk.changed(directory, {old: None})
        _disk.changed(other, {new: inode})


def _statvfs(path: Any) -> os.statvfs_result:
    found = _REAL["statvfs"](path)
    if _disk is None or not _disk.is_full:
        return found  # type: ignore[no-any-return]  # the table has any function
    values = list(found)
    values[4] = 0  # blocks that are free for this user
    return os.statvfs_result(values)


def _open_file(file: Any, mode: str = "r", *args: Any, **others: Any) -> Any:
    """A file that ``pathlib`` opens."""
    opened = _REAL_OPEN(file, mode, *args, **others)
    if _disk is not None and mode[0] == "r" and _disk.knows(os.fstat(opened.fileno()).st_ino):
        try:
            _disk.call("read")
        except OSError:
            opened.close()
            raise
    return opened


class _File(FileIO):
    """A file of the event log."""

    def write(self, data: Any) -> int:
        if _disk is not None:
            _disk.call("write")
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        if _disk is not None and size is not None:
            _disk.truncated(self.fileno(), size)
        return super().truncate(size)


class _Keys:
    """The keys of a database of LevelDB, or of a snapshot."""

    def __init__(self, directory: Path, real: Any) -> None:
        self._directory, self._real = directory, real

    def get(self, *args: Any, **options: Any) -> Any:
        self._read()
        return self._real.get(*args, **options)

    def iterator(self, **options: Any) -> Any:
        self._read()
        return self._real.iterator(**options)

    def raw_iterator(self, **options: Any) -> Any:
        self._read()
        return self._real.raw_iterator(**options)

    def _read(self) -> None:
        if _disk is not None:
            try:
                _disk.call("read")
            except OSError as exc:
                text = f"IO error: {self._directory}/000005.ldb: {exc.strerror}"
                raise _leveldb.IOError(text.encode()) from exc

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Database(_Keys):
    """A database of LevelDB."""

    def __init__(self, directory: str, **options: Any) -> None:
        if _disk is not None:
            try:
                _disk.call("open")
            except OSError as exc:
                raise _leveldb.IOError(
                    f"IO error: {directory}/MANIFEST: {exc.strerror}".encode()
                ) from exc
        super().__init__(Path(directory), _leveldb.DB(directory, **options))
        self._failure = b""

    def snapshot(self) -> "_Keys":
        return _Keys(self._directory, self._real.snapshot())

    def write_batch(self, *, sync: bool) -> Any:
        return _Batch(self, self._real.write_batch(sync=sync), sync=sync)

    def write(self, batch: Any, *, sync: bool) -> None:
        """After an error every later batch fails, as in LevelDB."""
        if self._failure:
            raise _leveldb.IOError(self._failure)
        if _disk is None:
            batch.write()
            return
        try:
            with _disk.batch(self._directory, sync=sync):
                batch.write()
        except OSError as exc:
            self._failure = f"IO error: {self._directory}/000003.log: {exc.strerror}".encode()
            raise _leveldb.IOError(self._failure) from exc


class _Batch:
    """A batch of a ``_Database``."""

    def __init__(self, database: _Database, real: Any, *, sync: bool) -> None:
        self._database, self._real, self._sync = database, real, sync
        self.put, self.delete = real.put, real.delete

    def write(self) -> None:
        self._database.write(self._real, sync=self._sync)


class _Plyvel:
    """The module plyvel, with that class."""

    DB = _Database

    def __getattr__(self, name: str) -> Any:
        return getattr(_leveldb, name)


def _replacements() -> dict[tuple[Any, str], Any]:
    from zonemta_py.events import segments
    from zonemta_py.storage import leveldb

    functions: dict[str, Callable[..., Any]] = {
        "open": _open, "rename": _rename, "replace": _rename, "statvfs": _statvfs,
        "fsync": _synced("fsync"), "fdatasync": _synced("fdatasync"),
        "mkdir": _new_name("mkdir", 0), "link": _new_name("link", 1), "symlink": _new_name("symlink", 1),
        "unlink": _without_name("unlink"), "rmdir": _without_name("rmdir"),
        **{name: _of_file("write", name) for name in ("write", "pwrite", "pwritev", "ftruncate")},
        "pread": _of_file("read", "pread"),
    }  # fmt: skip
    return {
        **{(os, name): function for name, function in functions.items()},
        (io, "open"): _open_file,
        (segments, "FileIO"): _File,
        (leveldb, "_leveldb"): _Plyvel(),
    }


def install() -> None:
    """Replace the functions of this process; they do as before until ``begin``."""
    for (module, name), value in _replacements().items():
        setattr(module, name, value)


def begin(disk: Disk | None) -> None:
    """Use ``disk`` from now on; None: that of the machine, without syncs."""
    global _disk
    _disk = disk


@contextmanager
def in_use(disk: Disk) -> Iterator[None]:
    """Use ``disk`` in this block."""
    before = {each: getattr(*each) for each in _replacements()}
    install()
    begin(disk)
    try:
        yield
    finally:
        begin(None)
        for (module, name), value in before.items():
            setattr(module, name, value)
