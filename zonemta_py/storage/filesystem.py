"""The store in files: Kannader's directories, with the fsyncs and the atomic batches that it lacks.

Steps of a batch (``FilesystemStore.write``)::

    chunks written ─▶ intent file written, synced, renamed ─▶ files changed ─▶ memory changed ─▶ bodies removed ─▶ intent removed

Invariants:

- A batch takes effect when its intent file has its name. The steps in it can be repeated, so the next opening finishes what a
  crash interrupted (``_finish_intent``); without an intent nothing of the batch is visible.
- Chunks are written before, without an intent: they are not visible before the markers of their message. A body without markers
  is of a message that was never accepted, and is removed at the opening.
- Keys and small values are in memory, equal to the files after each batch; bodies are not. The recipients of a queue have to fit.
- Every file is replaced by a rename, never changed in place, but bodies.
- Files that an opening does not understand stay as they are (``left_alone``): they may be mail of another program, or damage.
  An opening that the disk refuses to read something fails: what it cannot read now it may read later.
- After a failed write every later one fails (``_failure``), for memory and disk may differ.

Callers: ``storage.open``; the queue uses it by ``storage.interface.Store``. ``filesystem_layout`` computes paths and contents.

Example: a delivered recipient has the files ``data/MSGID/INDEX/metadata`` and ``schedule``, and the link ``queue/MSGID.INDEX``. One
intent lists the removal of all three, so a crash between them leaves no half recipient.

Source: Kannader, for directories and links; rename(2) and fsync(2), for the order of the steps.
"""

import errno
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from zonemta_py.core.codec import crc32, pack, unpacker
from zonemta_py.core.errors import (
    LocalError,
    QueueCorrupt,
    QueueLocked,
    QueueUnavailable,
    QueueUnreadable,
)
from zonemta_py.core.files import KnownFile, no_link, private_directory, sync_directory, write_at
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import pack_record
from zonemta_py.storage.filesystem_layout import (
    LEAF,
    MARKERS,
    RELAY,
    TEMPORARY,
    TEMPORARY_EARLIER,
    Layout,
    SymbolicLink,
    read_recipient,
    relay_key,
    relay_path,
)
from zonemta_py.storage.interface import GONE, Access, Op
from zonemta_py.storage.memory import MemoryStore

log = logging.getLogger(__name__)


# ---- The store.

DIRECTORIES = ("data", "queue", "inflight", "cleanup")
INTENT = f"{RELAY}/intent"
DAMAGED = "intent.damaged"


FileStep = tuple[str, str, bytes]  # path; "write", "link" or "remove"; contents or target of the link
_unpack_steps = unpacker(tuple[int, list[FileStep]])


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the store against other processes. Raises QueueLocked when one has it open, OSError without a lock file."""
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
            raise QueueUnreadable(f"{path}: {exc.strerror}") from exc

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
        changed: dict[Path, None] = {}  # in their order
        for name, kind, value in steps:
            path = self._root / name
            if kind == "write":
                changed.update(dict.fromkeys(self._make_directory(path.parent)))
                _write_file(path, value, sync=sync)
            elif kind == "link":
                _link(path, value.decode())
            else:
                path.unlink(missing_ok=True)
                changed.update(dict.fromkeys(self._prune(path.parent)))
            changed[path.parent] = None
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


# ---- The contents of the directories at an opening.

CONTENTS = "contents"
MESSAGE_ID = re.compile(r"[0-9a-f]{24}")
# The disk, or this process, cannot read now: that says nothing of the file.
REFUSED = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Contents:
    """The contents of the store below ``root``; ``left_alone`` names what ``load`` did not understand."""

    def __init__(self, root: Path, *, read_only: bool) -> None:
        self._root = root
        self._read_only = read_only
        self.left_alone: list[str] = []

    def load(self) -> Iterator[Op]:
        """Yield every key and its value, an empty one for chunks. Removes bodies that were never accepted."""
        leaving: set[str] = set()
        for key, value in self._relay_keys():
            if key.startswith((keys.OPEN, keys.CLEANUP)):
                leaving.add(keys.owner_of(key))
            yield key, value
        for directory in sorted((self._root / "data").iterdir()):
            if directory.name.startswith("."):
                continue
            if not MESSAGE_ID.fullmatch(directory.name) or not directory.is_dir():
                self._leave_alone(directory.name, "not a message of this relay")
            elif directory.name in leaving or not self._is_unaccepted(directory):
                yield from self._message(directory)

    def _relay_keys(self) -> Iterator[tuple[bytes, bytes]]:
        if not self._read_only:
            rename_earlier(self._root)
        for path, target in _files_of_keys(self._root):
            if path == target or not target.exists():
                names = path.relative_to(self._root / RELAY).parts
                yield relay_key(names), path.read_bytes()

    def _is_unaccepted(self, directory: Path) -> bool:
        """True if nothing but a body is there: a crash came before the first batch of its message."""
        if (directory / "accepted").exists():
            return False
        if {path.name for path in directory.iterdir()} <= {CONTENTS}:
            if not self._read_only:
                shutil.rmtree(directory)
            return True
        self._leave_alone(directory.name, "the file 'accepted' is missing; see zonemta queue repair")
        return False

    def _leave_alone(self, name: str, reason: object) -> None:
        """Note that data/NAME is not used and stays."""
        self.left_alone.append(f"data/{name}: {reason}")
        log.critical("%s/data/%s is left alone: %s", self._root, name, reason)

    def _message(self, directory: Path) -> Iterator[Op]:
        message = directory.name
        for path in sorted(directory.iterdir()):
            if path.name == CONTENTS:
                for number in range(1, -(-path.stat().st_size // keys.CHUNK_BYTES) + 1):
                    yield keys.chunk_key(message, number), b""
            elif path.is_dir():
                try:
                    yield from _recipient(path)
                except (OSError, QueueCorrupt) as exc:
                    if isinstance(exc, OSError) and exc.errno in REFUSED:
                        raise
                    # An unreadable note in its place: the message must not end without it.
                    yield keys.bounce_prefix(message) + f"damaged-{path.name}".encode(), b""
                    self._leave_alone(f"{message}/{path.name}", exc)
        for marker, name in MARKERS.items():
            if (directory / name).exists():
                yield keys.message_prefix(message) + marker, (directory / name).read_bytes()


def _files_of_keys(root: Path) -> Iterator[tuple[Path, Path]]:
    """The files of the relay's own keys, each with its path in this version."""
    state = root / RELAY
    for path in sorted(state.glob("*/**/*")):
        if path.is_file() and not path.name.endswith(TEMPORARY):
            yield path, root / relay_path(relay_key(path.relative_to(state).parts))


def rename_earlier(root: Path) -> None:
    """Give the files of an earlier version the names of this one, durably, and remove directories without any.

    It may be interrupted anywhere. Of two files for one key that of this version stays.
    """
    state, changed = root / RELAY, set[Path]()
    for path, target in list(_files_of_keys(root)):
        if path == target:
            continue
        changed.add(path.parent)
        if target.exists():
            path.unlink()
            continue
        if target.parent == path:  # its key ends with "/", and it has the name of the directory
            path = path.rename(path.with_name(path.name + LEAF))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.replace(target)
        changed.update(each for each in target.parents if each.is_relative_to(state))
    for directory in changed:
        sync_directory(directory)
    for path in sorted(state.glob("*/**/*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()  # of an ended transaction; earlier versions left it


def _recipient(directory: Path) -> Iterator[Op]:
    message = directory.parent.name
    key, record = read_recipient(
        message, (directory / "metadata").read_bytes(), (directory / "schedule").read_bytes()
    )
    yield key, pack_record(record)
    if record.due_ms:
        yield keys.due_key(record.due_ms, keys.parse_recipient(key)[0], message), b""


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A temporary copy of a store, whose bodies are links."""

    def copy(source: str, target: str) -> None:
        if source.endswith(f"/{CONTENTS}"):
            Path(target).symlink_to(Path(source).absolute())
        else:
            shutil.copyfile(source, target)

    with TemporaryDirectory(prefix="zonemta-read-") as name:
        yield Path(shutil.copytree(root, f"{name}/files", symlinks=True, copy_function=copy))
