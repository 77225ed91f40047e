"""Directories that only this user reads, and that survive a power cut; files that are replaced at once.

A name in a directory that others may write, or could before it was closed, may be a symbolic link to any file,
which a process of root would overwrite: what the relay names itself is opened with O_NOFOLLOW, or made anew.
"""

import errno
import logging
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

log = logging.getLogger(__name__)


OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_at(handle: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data``: one call may write a part, such as on a full disk. Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(handle, rest, offset)
        rest, offset = rest[written:], offset + written


def private_directory(path: Path) -> None:
    """Make ``path`` and its parents; ``path`` has mode 0700 whatever the umask, and its name is on disk.

    An existing directory that others may enter is reported and closed to them. Raises OSError, also for one of another owner.
    """
    _check_links(path)
    missing = []
    parent = path
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    check_owner(path)
    sync_name(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & OF_OTHERS:
        path.chmod(mode & ~OF_OTHERS)
        log.warning(
            "%s: its mode was %04o, so that others could read mail; it is %04o now",
            path, mode, mode & ~OF_OTHERS,
        )  # fmt: skip


def sync_name(path: Path) -> None:
    """Put the names of a directory and of those above it on disk, as far as this user may have made them, in one file system.

    Also of those that were there: a process may have been killed between making one and syncing its name. Raises OSError.
    """
    for each in (path.absolute(), *path.absolute().parents):
        if each.stat().st_uid != os.geteuid() or each.is_mount():
            return
        with suppress(PermissionError):  # a directory that cannot be read was not made by this user
            sync_directory(each.parent)


def check_owner(path: Path) -> None:
    """Raises PermissionError for a directory of another user than this one and root.

    The other user could replace every file in it, and what this process makes there the other one could not use.
    """
    _check_links(path)
    owner, user = path.stat().st_uid, os.geteuid()
    if owner not in (user, 0):
        raise PermissionError(
            errno.EPERM,
            f"it belongs to {_user(owner)}, and this process runs as {_user(user)}: run it as {_user(owner)}, or chown the directory",
            os.fspath(path),
        )


def _check_links(path: Path) -> None:
    """Raises PermissionError for a symbolic link on the way to ``path`` that another user than this one and root has made.

    It could lead anywhere, and the directory behind it would be closed and written to.
    """
    for each in (path, *path.absolute().parents):
        if each.is_symlink() and (owner := each.lstat().st_uid) not in (os.geteuid(), 0):
            text = f"it is a symbolic link of {_user(owner)}: remove it, or make it as {_user(os.geteuid())}"
            raise PermissionError(errno.EPERM, text, os.fspath(each))


def exposed_parent(path: Path) -> str:
    """The reason that another user than this one and root can replace ``path``, of the first such directory above it; or empty.

    It is one of the other user, or one that everyone may write and that has no sticky bit: who may write a directory may
    rename what is in it. Directories that cannot be seen are left out. The rule of OpenSSH's ``safe_path``, but for
    groups, which may have this user as their only member.
    """
    path = path.absolute()
    above = [*path.parents]
    with suppress(OSError, RuntimeError):  # of links that lead to each other
        above += path.resolve().parents
    for each in above:
        try:
            found = each.stat()
        except OSError:
            continue
        if found.st_uid not in (os.geteuid(), 0):
            return f"{each} belongs to {_user(found.st_uid)}"
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return f"every user may write {each} (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def is_own_file(path: Path) -> bool:
    """True if ``path`` is a file with content that this user or root made, and others cannot write; no symbolic link."""
    try:
        found = path.lstat()
    except OSError:
        return False
    is_safe = stat.S_ISREG(found.st_mode) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_safe and found.st_size > 0 and found.st_uid in (os.geteuid(), 0)


class KnownFile:
    """The file that is at ``path`` now. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = self._now()

    def _now(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_dev, found.st_ino

    def is_there(self) -> bool:
        """Return whether it still is; False when it was deleted or replaced."""
        try:
            return self._now() == self._identity
        except OSError:
            return False


@contextmanager
def replaced(path: Path, mode: int = 0o644, *, follow: bool = True) -> Iterator[TextIO]:
    """Yields a file for the new contents of ``path``, which has them when the block has ended; all or nothing.

    ``mode`` is that of a new file; others keep theirs, and their owner. A path that is not a regular file, such as a device or a
    pipe, is written to at once. Raises OSError, which names ``path``.

    ``follow``: false for a file of the relay itself, which is always a new one: it takes the place of a symbolic link.
    """
    if follow and path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    target = path.resolve() if follow else path.absolute()
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    before = target.stat() if follow and target.exists() else None
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode if before is None else stat.S_IMODE(before.st_mode))
            if before is not None:
                with suppress(PermissionError):  # the owner is not changed without privileges
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def no_link(name: str, flags: int) -> int:
    """An opener of files for this user only, which opens no symbolic link."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o600)


def replace_text(path: Path, text: str, mode: int = 0o644, *, follow: bool = True) -> None:
    """Give ``path`` new contents, all or nothing (``replaced``). Raises OSError."""
    with replaced(path, mode, follow=follow) as file:
        file.write(text)


def sync_directory(path: Path) -> None:
    """Put the names in ``path`` on disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
