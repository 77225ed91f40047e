"""The store in files: Kannader's directories, with the fsyncs and the atomic batches that it lacks.

A batch is first one intent file, synced and renamed; then its files are changed, by steps that can be
repeated; then the intent is removed. The next opening finishes what a crash interrupted. Keys and small
values are also in memory, bodies are not: the recipients of a queue have to fit there. What an opening
does not understand stays as it is: it may be the mail of another program, or what a damage left.
"""

import fcntl
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from zonemta_py.core.checksum import crc32
from zonemta_py.core.codec import pack, unpacker
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueLocked, QueueUnavailable
from zonemta_py.core.files import KnownFile, no_link, private_directory, sync_directory, write_at
from zonemta_py.queue.format import keys
from zonemta_py.storage.filesystem_contents import (
    CONTENTS,
    MESSAGE_ID,
    Contents,
    copied,
    rename_earlier,
)
from zonemta_py.storage.filesystem_layout import Layout, SymbolicLink
from zonemta_py.storage.filesystem_names import (
    RELAY,
    TEMPORARY,
    TEMPORARY_EARLIER,
    relay_key,
    relay_path,
)
from zonemta_py.storage.interface import GONE, Access, Op
from zonemta_py.storage.memory import MemoryStore

DIRECTORIES = ("data", "queue", "inflight", "cleanup")
INTENT = f"{RELAY}/intent"
DAMAGED = "intent.damaged"

log = logging.getLogger(__name__)

FileStep = tuple[str, str, bytes]  # path; "write", "link" or "remove"; contents or target of the link
_unpack_steps = unpacker(tuple[int, list[FileStep]])


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Meanwhile no other process opens the store. Raises QueueLocked when one has it open, OSError without a lock file."""
    with (directory / RELAY / "lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise QueueLocked(f"{directory}: in use by another process") from exc
        yield


class FilesystemStore(MemoryStore):
    """A queue below ``directory``. Raises QueueLocked when another process has it open, else LocalError."""

    def __init__(self, directory: Path, access: Access = Access.CREATE) -> None:
        super().__init__()
        self._directory = directory
        self._root = directory  # or a copy of it, for reading
        self._access = access
        self._layout = Layout()
        self._failure: QueueUnavailable | None = None
        self._left_alone: Sequence[str] = ()
        self._resources = ExitStack()  # the lock, and a copy for reading
        try:
            self._make_directories()
            self._open()
        except BaseException as exc:
            self._resources.close()
            if isinstance(exc, OSError):
                raise LocalError(f"{directory}: {exc}") from exc
            raise

    def _make_directories(self) -> None:
        """Make what is missing of a new store. Raises LocalError for one that is damaged, or not there."""
        root, access = self._root, self._access
        if not (root / RELAY).is_dir():
            if access is not Access.CREATE:
                raise LocalError(f"{root}: there is no queue yet; the first `zonemta serve` creates it")
            for name in DIRECTORIES:
                if (root / name).is_dir() and any((root / name).iterdir()):
                    raise LocalError(
                        f"{root / name}: there are files, and {root / RELAY} is missing: restore the whole "
                        "directory, or move it away"
                    )
        if access is Access.READ:
            return
        for name in (*DIRECTORIES, RELAY):
            private_directory(root / name)
        (root / RELAY / "lock").touch(mode=0o600)

    def _open(self) -> None:
        self._resources.enter_context(locked(self._root))
        self._lock_file = KnownFile(self._root / RELAY / "lock")
        if self._access is not Access.READ:
            self._finish_intent()
            self._load()
            self._repair_links()
            return
        if (self._root / INTENT).exists():  # what it changes is changed in a copy
            self._root = self._resources.enter_context(copied(self._root))
            self._finish_intent()
        self._load()

    # ---- reading

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        """Return the value of ``key``, or None. Raises QueueCorrupt when its file cannot be read."""
        value = super().get(key)
        if value is None or not keys.is_chunk(key):
            return value
        path, at = self._chunk(key)
        try:
            with path.open("rb") as file:
                return os.pread(file.fileno(), keys.CHUNK_BYTES, at)
        except OSError as exc:
            raise QueueCorrupt(f"{path}: {exc.strerror}") from exc

    def _chunk(self, key: bytes) -> tuple[Path, int]:
        number = int(key.rpartition(b"/")[2])
        return self._root / "data" / keys.owner_of(key) / CONTENTS, (number - 1) * keys.CHUNK_BYTES

    # ---- writing

    def batch(self, ops: Iterable[Op], *, sync: bool) -> Any:
        """Return the operations, and whether to sync them."""
        return list(ops), sync

    def write(self, batch: Any) -> None:
        """Write ``batch``. Raises QueueUnavailable, also for every later batch."""
        if self._failure is None and not self._lock_file.is_there():
            self._failure = QueueUnavailable(f"{self._root}: {GONE}")
        if self._failure is not None:
            raise self._failure
        ops, sync = batch
        try:
            for key, value in ops:
                if value is not None and keys.is_chunk(key):
                    self._write_chunk(key, value, sync=sync)
            others = [op for op in ops if op[1] is None or not keys.is_chunk(op[0])]
            plan = self._layout.plan(others, super().get)
            steps = [_step(path, state) for path, state in plan.files.items()]
            # Bodies are removed after their keys: a frozen view can still read them.
            bodies = [step for step in steps if step[0].endswith(f"/{CONTENTS}")]
            if steps:
                self._intend(steps, sync=sync)
                self._apply([step for step in steps if step not in bodies], sync=sync)
            self._layout.take(plan)
            super().write([(key, b"" if value and keys.is_chunk(key) else value) for key, value in ops])
            if steps:
                self._apply(bodies, sync=sync)
                (self._root / INTENT).unlink()
        except OSError as exc:
            self._failure = QueueUnavailable(f"{self._root}: {exc}")
            raise self._failure from exc

    def _write_chunk(self, key: bytes, value: bytes, *, sync: bool) -> None:
        """Write a chunk without an intent: it is not visible before the markers of its message."""
        path, at = self._chunk(key)
        new = not path.exists()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle = no_link(os.fspath(path), os.O_WRONLY | os.O_CREAT)
        try:
            write_at(handle, value, at)
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
        if new and sync:
            sync_directory(path.parent)
            sync_directory(path.parent.parent)

    def _intend(self, steps: list[FileStep], *, sync: bool) -> None:
        body = pack(steps)
        _write_file(self._root / INTENT, pack((crc32(body), steps)), sync=sync)
        if sync:
            sync_directory(self._root / RELAY)

    def _apply(self, steps: list[FileStep], *, sync: bool) -> None:
        changed: set[Path] = set()
        for name, kind, value in steps:
            path = self._root / name
            if kind == "write":
                changed.update(self._make_directory(path.parent))
                _write_file(path, value, sync=sync)
            elif kind == "link":
                _link(path, value.decode())
            else:
                path.unlink(missing_ok=True)
                changed.update(self._prune(path.parent))
            changed.add(path.parent)
        if sync:
            for directory in changed:
                if directory.exists():
                    sync_directory(directory)

    def _make_directory(self, directory: Path) -> Iterator[Path]:
        missing = []
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            path.mkdir(mode=0o700)
            yield path.parent

    def _prune(self, directory: Path) -> Iterator[Path]:
        """Remove the directories of a message that are empty, not those of a space of keys."""
        data, relay = self._root / "data", self._root / RELAY
        while directory.parent.is_relative_to(data) and directory != relay:
            if directory.parent == relay:
                return
            try:
                directory.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return
            yield directory.parent
            directory = directory.parent

    # ---- opening

    def _finish_intent(self) -> None:
        path = self._root / INTENT
        if not path.exists():
            return
        steps = _read_intent(path)
        if steps is None:
            if self._access is not Access.REPAIR:
                raise QueueCorrupt(f"{self._directory / INTENT}: damaged")
            kept = path.replace(path.with_name(DAMAGED))
            sync_directory(kept.parent)
            log.critical("%s: the last batch is lost, it is kept in %s", path, kept.name)
            return
        for name, kind, _ in steps:
            if kind == "write":  # a temporary file of an earlier version
                file = self._root / name
                with suppress(OSError):  # a name that is too long was never written
                    file.with_name(file.name + TEMPORARY_EARLIER).unlink(missing_ok=True)
        rename_earlier(self._root)
        self._apply([_of_this_version(step) for step in steps], sync=True)
        path.unlink()

    def _load(self) -> None:
        contents = Contents(self._root, read_only=self._access is Access.READ)
        found = list(contents.load())
        self._left_alone = contents.left_alone
        super().write(found)
        plan = self._layout.plan([op for op in found if not keys.is_chunk(op[0])], lambda _: None)
        self._layout.take(plan)

    def check(self) -> Iterator[str]:
        """Yield what the opening did not understand and left as it was."""
        return iter(self._left_alone)

    def _repair_links(self) -> None:
        """Correct links of messages of this relay that were changed by hand."""
        expected = self._layout.links()
        for key in self.keys(keys.CLEANUP, keys.end_of(keys.CLEANUP)):
            expected[f"cleanup/{keys.owner_of(key)}"] = f"../data/{keys.owner_of(key)}"
        for name in DIRECTORIES[1:]:
            for path in (self._root / name).iterdir():
                message = path.name.partition(".")[0]
                if f"{name}/{path.name}" not in expected and MESSAGE_ID.fullmatch(message):
                    path.unlink()
        for link, target in expected.items():
            _link(self._root / link, target)
        for name in DIRECTORIES:
            sync_directory(self._root / name)

    def close(self) -> None:
        """Release the lock."""
        self._resources.close()


def _read_intent(path: Path) -> list[FileStep] | None:
    """The steps in an intent file; None when it is damaged."""
    try:
        crc, steps = _unpack_steps(path.read_bytes())
    except QueueCorrupt:
        return None
    return steps if crc32(pack(steps)) == crc else None


def _of_this_version(step: FileStep) -> FileStep:
    """``step``, with the name that the file of a key has now."""
    name, kind, value = step
    if not name.startswith(f"{RELAY}/"):
        return step
    return relay_path(relay_key(name.removeprefix(f"{RELAY}/").split("/"))), kind, value


def _step(path: str, state: bytes | SymbolicLink | None) -> FileStep:
    if state is None:
        return path, "remove", b""
    if isinstance(state, SymbolicLink):
        return path, "link", state.target.encode()
    return path, "write", state


def _write_file(path: Path, data: bytes, *, sync: bool) -> None:
    """Replace ``path`` atomically."""
    temporary = path.with_name(path.name + TEMPORARY)
    with open(temporary, "wb", opener=no_link) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    temporary.replace(path)


def _link(path: Path, target: str) -> None:
    if path.is_symlink():
        if str(path.readlink()) == target:
            return
        path.unlink()
    path.symlink_to(target)
