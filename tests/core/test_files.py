"""Files that are replaced at once."""

import stat
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


def test_a_failure_leaves_the_file(tmp_path: Path) -> None:
    """A text that cannot be encoded fails in the middle of the work."""
    path = tmp_path / "users"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "new" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
