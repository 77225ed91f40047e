"""The store in files: Kannader's directories, with the fsyncs and the atomic batches that it lacks.

A batch is first one intent file, synced and renamed; then its files are changed, by steps that can be
repeated; then the intent is removed. The next opening finishes what a crash interrupted. Keys and small
values are also in memory, bodies are not: the recipients of a queue have to fit there.
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
from zonemta_py.storage.filesystem_layout import (
    MARKERS,
    RELAY,
    Layout,
    SymbolicLink,
    read_recipient,
    relay_key,
)
from zonemta_py.storage.interface import Op
from zonemta_py.storage.memory import MemoryStore

DIRECTORIES = ("data", "queue", "inflight", "cleanup")
INTENT = f"{RELAY}/intent"
TEMPORARY = ".new"

log = logging.getLogger(__name__)

FileStep = tuple[str, str, bytes]  # path; "write", "link" or "remove"; contents or target of the link
_unpack_steps = unpacker(tuple[int, list[FileStep]])


class FilesystemStore(MemoryStore):
    """A queue below ``directory``. ``damaged`` names the recipients that could not be read; their files stay.

    Raises QueueLocked when another process has it open, LocalError when it cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._root = directory
        self._layout = Layout()
        self._failure: QueueUnavailable | None = None
        self.damaged: list[str] = []
        try:
            for name in DIRECTORIES:
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
            self._repair_links()
        except BlockingIOError as exc:
            raise QueueLocked(f"{self._root}: in use by another process") from exc
        except OSError as exc:
            raise LocalError(f"{self._root}: {exc}") from exc

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
        return self._root / "data" / keys.owner_of(key) / "contents", (number - 1) * keys.CHUNK_BYTES

    # ---- writing

    def batch(self, ops: Iterable[Op], *, sync: bool) -> Any:
        """Return the operations, and whether to sync them."""
        return list(ops), sync

    def write(self, batch: Any) -> None:
        """Write ``batch``. Raises QueueUnavailable, also for every later batch."""
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
        """Write a chunk without an intent: it is not visible before the markers of its message."""
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
            _sync_directory(path.parent)
            _sync_directory(path.parent.parent)

    def _intend(self, steps: list[FileStep], *, sync: bool) -> None:
        body = pack(steps)
        _write_file(self._root / INTENT, pack((zlib.crc32(body), steps)), sync=sync)
        if sync:
            _sync_directory(self._root / RELAY)

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
                    _sync_directory(directory)

    def _make_directory(self, directory: Path) -> Iterator[Path]:
        missing = []
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            path.mkdir(mode=0o700)
            yield path.parent

    def _prune(self, directory: Path) -> Iterator[Path]:
        """Remove the directories of a message that are empty."""
        data = self._root / "data"
        while directory.parent != self._root and directory.parent.is_relative_to(data):
            if directory.is_relative_to(self._root / RELAY):
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
        crc, steps = _unpack_steps(path.read_bytes())
        if zlib.crc32(pack(steps)) != crc:
            raise LocalError(f"{path}: damaged; zonemta queue repair keeps what can be read")
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
        for directory in sorted((self._root / "data").iterdir()):
            if directory.name.startswith("."):
                continue
            if directory.name not in claimed and not (directory / "accepted").exists():
                shutil.rmtree(directory)  # a body whose message was never accepted
                continue
            found += self._load_message(directory)
        super().write(found)
        plan = self._layout.plan([op for op in found if not keys.is_chunk(op[0])], lambda _: None)
        self._layout.take(plan)

    def _load_message(self, directory: Path) -> Iterator[Op]:
        message = directory.name
        for path in sorted(directory.iterdir()):
            if path.name == "contents":
                for number in range(1, -(-path.stat().st_size // keys.CHUNK_BYTES) + 1):
                    yield keys.chunk_key(message, number), b""
            elif path.is_dir():
                try:
                    yield from self._load_recipient(path)
                except (OSError, QueueCorrupt) as exc:
                    self.damaged.append(f"{message}.{path.name}")
                    # An unreadable note in its place: the message must not end without it.
                    yield keys.bounce_prefix(message) + f"damaged-{path.name}".encode(), b""
                    log.critical("%s cannot be read, its files stay: %s", path, exc)
        for marker, name in MARKERS.items():
            if (directory / name).exists():
                yield keys.message_prefix(message) + marker, (directory / name).read_bytes()

    @staticmethod
    def _load_recipient(directory: Path) -> Iterator[Op]:
        message = directory.parent.name
        key, record = read_recipient(
            message, (directory / "metadata").read_bytes(), (directory / "schedule").read_bytes()
        )
        yield key, pack(record)
        if record.due_ms:
            yield keys.due_key(record.due_ms, keys.parse_recipient(key)[0], message), b""

    def _repair_links(self) -> None:
        """Correct links that were changed by hand."""
        expected = self._layout.links()
        for key in self.keys(keys.CLEANUP, keys.end_of(keys.CLEANUP)):
            expected[f"cleanup/{keys.owner_of(key)}"] = f"../data/{keys.owner_of(key)}"
        for name in DIRECTORIES[1:]:
            for path in (self._root / name).iterdir():
                if f"{name}/{path.name}" not in expected:
                    path.unlink()
        for link, target in expected.items():
            _link(self._root / link, target)
        for name in DIRECTORIES:
            _sync_directory(self._root / name)

    def close(self) -> None:
        """Release the lock."""
        self._lock_file.close()


def _step(path: str, state: bytes | SymbolicLink | None) -> FileStep:
    if state is None:
        return path, "remove", b""
    if isinstance(state, SymbolicLink):
        return path, "link", state.target.encode()
    return path, "write", state


def _write_file(path: Path, data: bytes, *, sync: bool) -> None:
    """Replace ``path`` atomically."""
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


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
