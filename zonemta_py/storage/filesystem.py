"""The filesystem store: Kannader's folders, with the fsyncs and the atomic batches it lacks.

A batch is first one intent file, synced and renamed; then its files are changed, each step safe to
repeat; then the intent goes. What a crash interrupts, the next opening finishes. Keys and small
values are also kept in memory, so this is for queues whose recipients fit there; bodies are not.
"""

import fcntl
import logging
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from zonemta_py.core.codec import pack, unpacker
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueLocked, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage.filesystem_layout import MARKERS, RELAY, Layout, Link, read_recipient, relay_key
from zonemta_py.storage.interface import Op
from zonemta_py.storage.memory import MemoryStore

FOLDERS = ("data", "queue", "inflight", "cleanup")
INTENT = f"{RELAY}/intent"
TEMPORARY = ".new"

log = logging.getLogger(__name__)

Step = tuple[str, str, bytes]  # path; "write", "link" or "remove"; contents or target
_unpack_steps = unpacker(tuple[int, list[Step]])


class FilesystemStore(MemoryStore):
    """A queue under ``directory``. ``damaged`` are entries that could not be read, and are left alone."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._root = directory
        self._layout = Layout()
        self._failure: QueueUnavailable | None = None
        self.damaged: list[str] = []
        try:
            for name in FOLDERS:
                (directory / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            (directory / RELAY).mkdir(mode=0o700, exist_ok=True)
            self._lock_file = (directory / RELAY / "lock").open("w")
        except OSError as exc:
            raise LocalError(f"{directory}: {exc}") from exc
        try:
            self._open()
        except BaseException:
            self._lock_file.close()
            raise

    def _open(self) -> None:
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._finish_intent()
            self._load()
            self._mend_links()
        except BlockingIOError as exc:
            raise QueueLocked(f"{self._root}: in use by another process") from exc
        except OSError as exc:
            raise LocalError(f"{self._root}: {exc}") from exc

    # ---- reading

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        """The value of ``key``, or None. Raises QueueCorrupt when its file cannot be read."""
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
        return self._root / "data" / keys.owner_of(key) / "contents", (number - 1) * keys.CHUNK_BYTES

    # ---- writing

    def batch(self, ops: Iterable[Op], *, sync: bool) -> Any:
        """The operations and whether they are to be synced."""
        return list(ops), sync

    def write(self, batch: Any) -> None:
        """Carry out a batch. Raises QueueUnavailable, and then for every later one."""
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
            # Bodies go after their keys: whoever holds one moment of the store can still read them.
            bodies = [step for step in steps if step[0].endswith("/contents")]
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
        """Chunks are invisible until their message's markers, so they need no intent."""
        path, at = self._chunk(key)
        new = not path.exists()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(handle, value, at)
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
        if new and sync:
            _sync_folder(path.parent)
            _sync_folder(path.parent.parent)

    def _intend(self, steps: list[Step], *, sync: bool) -> None:
        body = pack(steps)
        _write_file(self._root / INTENT, pack((zlib.crc32(body), steps)), sync=sync)
        if sync:
            _sync_folder(self._root / RELAY)

    def _apply(self, steps: list[Step], *, sync: bool) -> None:
        changed: set[Path] = set()
        for name, kind, value in steps:
            path = self._root / name
            if kind == "write":
                changed.update(self._make_folder(path.parent))
                _write_file(path, value, sync=sync)
            elif kind == "link":
                _link(path, value.decode())
            else:
                path.unlink(missing_ok=True)
                changed.update(self._prune(path.parent))
            changed.add(path.parent)
        if sync:
            for folder in changed:
                if folder.exists():
                    _sync_folder(folder)

    def _make_folder(self, folder: Path) -> Iterator[Path]:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            path.mkdir(mode=0o700)
            yield path.parent

    def _prune(self, folder: Path) -> Iterator[Path]:
        """Remove folders of a message that have become empty."""
        data = self._root / "data"
        while folder.parent != self._root and folder.parent.is_relative_to(data):
            if folder.is_relative_to(self._root / RELAY):
                return
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return
            yield folder.parent
            folder = folder.parent

    # ---- opening

    def _finish_intent(self) -> None:
        path = self._root / INTENT
        if not path.exists():
            return
        crc, steps = _unpack_steps(path.read_bytes())
        if zlib.crc32(pack(steps)) != crc:
            raise LocalError(f"{path}: damaged; zonemta queue repair looks at what can be kept")
        self._apply(steps, sync=True)
        path.unlink()

    def _load(self) -> None:
        state = self._root / RELAY
        found: list[Op] = [
            (relay_key(path.relative_to(state).parts), path.read_bytes())
            for path in sorted(state.glob("*/**/*"))
            if path.is_file() and not path.name.endswith(TEMPORARY)
        ]
        claimed = {keys.owner_of(k) for k, _ in found if k.startswith((keys.OPEN, keys.CLEANUP))}
        for folder in sorted((self._root / "data").iterdir()):
            if folder.name.startswith("."):
                continue
            if folder.name not in claimed and not (folder / "accepted").exists():
                shutil.rmtree(folder)  # a body whose message was never accepted
                continue
            found += self._load_message(folder)
        super().write(found)
        plan = self._layout.plan([op for op in found if not keys.is_chunk(op[0])], lambda _: None)
        self._layout.take(plan)

    def _load_message(self, folder: Path) -> Iterator[Op]:
        message = folder.name
        for path in sorted(folder.iterdir()):
            if path.name == "contents":
                for number in range(1, -(-path.stat().st_size // keys.CHUNK_BYTES) + 1):
                    yield keys.chunk_key(message, number), b""
            elif path.is_dir():
                try:
                    yield from self._load_recipient(path)
                except (OSError, QueueCorrupt) as exc:
                    self.damaged.append(f"{message}.{path.name}")
                    # A note that nobody can read: the message is not taken for ended without this one.
                    yield keys.bounce_prefix(message) + f"damaged-{path.name}".encode(), b""
                    log.critical("%s is left alone: %s", path, exc)
        for marker, name in MARKERS.items():
            if (folder / name).exists():
                yield keys.message_prefix(message) + marker, (folder / name).read_bytes()

    @staticmethod
    def _load_recipient(folder: Path) -> Iterator[Op]:
        message = folder.parent.name
        key, record = read_recipient(
            message, (folder / "metadata").read_bytes(), (folder / "schedule").read_bytes()
        )
        yield key, pack(record)
        if record.due_ms:
            yield keys.due_key(record.due_ms, keys.parse_recipient(key)[0], message), b""

    def _mend_links(self) -> None:
        """Make the links what the state says, should somebody have moved them by hand."""
        wanted = self._layout.links()
        for key in self.keys(keys.CLEANUP, keys.end_of(keys.CLEANUP)):
            wanted[f"cleanup/{keys.owner_of(key)}"] = f"../data/{keys.owner_of(key)}"
        for name in FOLDERS[1:]:
            for path in (self._root / name).iterdir():
                if f"{name}/{path.name}" not in wanted:
                    path.unlink()
        for link, target in wanted.items():
            _link(self._root / link, target)
        for name in FOLDERS:
            _sync_folder(self._root / name)

    def close(self) -> None:
        """Let another process have it."""
        self._lock_file.close()


def _step(path: str, state: bytes | Link | None) -> Step:
    if state is None:
        return path, "remove", b""
    if isinstance(state, Link):
        return path, "link", state.target.encode()
    return path, "write", state


def _write_file(path: Path, data: bytes, *, sync: bool) -> None:
    """Replace ``path`` by ``data``, old or new at any moment."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("wb") as file:
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


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
