"""Changes to a users file. Its comments, its order and its permissions are kept.

A disabled user has ``!`` in front of the hash, as in shadow(5). The file is replaced at once, so that a relay which
reads it meanwhile has the old users or the new ones.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from zonemta_py.core.errors import LocalError
from zonemta_py.core.files import replace_text
from zonemta_py.intake.users import DISABLED, load_users

MODE = 0o600  # of a new file


class Entry(NamedTuple):
    """A user of a file. ``scheme`` of the hash: argon2id, scrypt, ..."""

    name: str
    scheme: str
    enabled: bool


def read_entries(path: Path) -> list[Entry]:
    """The users in ``path``, in its order. Raises ConfigError."""
    load_users(path)  # for its errors
    return [
        Entry(name, hashed.lstrip(DISABLED).split("$")[1], not hashed.startswith(DISABLED))
        for line in path.read_text(encoding="utf-8").splitlines()
        if (name := _name_in(line))
        for hashed in [line.strip().partition(":")[2]]
    ]


def add_user(path: Path, name: str, hashed: str) -> None:
    """Add a user at the end of the file, which is created if need be. Raises LocalError, ConfigError."""
    lines = _lines(path) if path.exists() else []
    if any(_name_in(line) == name for line in lines):
        raise LocalError(f"{path}: there is a user '{name}'; `zonemta user passwd` changes the password")
    _write(path, [*lines, f"{name}:{hashed}"])


def set_hash(path: Path, name: str, hashed: str) -> None:
    """Change the hash of a user, who is not disabled any more. Raises LocalError, ConfigError."""
    _change(path, name, lambda _: hashed)


def set_enabled(path: Path, name: str, *, enabled: bool) -> None:
    """Let a user log in, or not. Raises LocalError, ConfigError."""
    _change(path, name, lambda old: ("" if enabled else DISABLED) + old.lstrip(DISABLED))


def _change(path: Path, name: str, change: Callable[[str], str]) -> None:
    lines = _lines(path)
    at = next((at for at, line in enumerate(lines) if _name_in(line) == name), None)
    if at is None:
        raise LocalError(f"{path}: there is no user '{name}'")
    lines[at] = f"{name}:{change(lines[at].strip().partition(':')[2])}"
    _write(path, lines)


def _lines(path: Path) -> list[str]:
    load_users(path)
    return path.read_text(encoding="utf-8").splitlines()


def _name_in(line: str) -> str:
    """The user of a line; empty for a comment."""
    text = line.strip()
    return "" if text.startswith("#") else text.partition(":")[0]


def _write(path: Path, lines: list[str]) -> None:
    """Replace ``path``. Raises LocalError."""
    try:
        replace_text(path, "".join(f"{line}\n" for line in lines), MODE)
    except OSError as exc:
        raise LocalError(f"{path}: the users file cannot be written: {exc.strerror or exc}") from exc
