"""What an opening of the filesystem store finds in its directories; see ``filesystem_layout``."""

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.files import sync_directory
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import pack_record
from zonemta_py.storage.filesystem_layout import MARKERS, read_recipient
from zonemta_py.storage.filesystem_names import (
    LEAF,
    RELAY,
    TEMPORARY,
    relay_key,
    relay_path,
)
from zonemta_py.storage.interface import Op

CONTENTS = "contents"
MESSAGE_ID = re.compile(r"[0-9a-f]{24}")

log = logging.getLogger(__name__)


class Contents:
    """The contents of the store below ``root``; ``left_alone`` names what ``load`` did not understand."""

    def __init__(self, root: Path, *, read_only: bool) -> None:
        self._root = root
        self._read_only = read_only
        self.left_alone: list[str] = []

    def load(self) -> Iterator[Op]:
        """Yield every key and its value; chunks without theirs. Removes bodies that were never accepted."""
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
        """Whether nothing but a body is there: a crash came before the first batch of its message."""
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
