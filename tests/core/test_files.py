"""Files that are replaced at once."""

import os
import stat
import threading
from pathlib import Path

import pytest

from zonemta_py.core.files import replace_text


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_and_others_keep_theirs(tmp_path: Path) -> None:
    path = tmp_path / "users"
    replace_text(path, "one\n", 0o600)
    assert (path.read_text(), mode_of(path)) == ("one\n", 0o600)
    path.chmod(0o640)
    replace_text(path, "two\n", 0o600)
    assert (path.read_text(), mode_of(path)) == ("two\n", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "real.yaml", tmp_path / "warmup.yaml"
    target.write_text("old")
    link.symlink_to(target)
    replace_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_device_or_a_pipe_is_written_to(tmp_path: Path) -> None:
    """It is not replaced with a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    read: list[str] = []
    reader.start()
    replace_text(pipe, "text")
    reader.join()
    assert read == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    replace_text(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none/users'$"):
        replace_text(tmp_path / "none" / "users", "text")


def test_a_failure_leaves_the_file(tmp_path: Path) -> None:
    """A text that cannot be encoded fails in the middle of the work."""
    path = tmp_path / "users"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "new" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
