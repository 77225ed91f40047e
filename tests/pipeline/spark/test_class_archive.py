"""When Java's archive of classes is made and used."""

import os
from pathlib import Path

import pytest

archive = pytest.importorskip("zonemta_py.pipeline.spark.session")

PARTS = ("/usr/bin/java", "4.3.0")


def made_by(options: str) -> Path:
    """The archive that a session with these options writes."""
    assert options.startswith("-XX:ArchiveClassesAtExit=")
    return Path(options.split()[0].partition("=")[2])


def test_the_second_session_makes_what_the_third_uses(tmp_path: Path) -> None:
    assert archive.archive_options(tmp_path, *PARTS) == ""
    path = made_by(archive.archive_options(tmp_path, *PARTS))
    path.write_bytes(b"\xa8\xab\x0b\xf0")
    assert archive.archive_options(tmp_path, *PARTS).split()[0] == f"-XX:SharedArchiveFile={path}"
    assert archive.archive_options(tmp_path, *PARTS, "other jars") == ""


def test_an_archive_that_is_being_written(tmp_path: Path) -> None:
    """Java writes the header last. What is left of a process that was killed is replaced."""
    archive.archive_options(tmp_path, *PARTS)
    path = made_by(archive.archive_options(tmp_path, *PARTS))
    path.write_bytes(bytes(1000))
    assert archive.archive_options(tmp_path, *PARTS) == ""
    os.utime(path, (0, 0))
    assert made_by(archive.archive_options(tmp_path, *PARTS)) == path


def test_an_archive_that_cannot_be_written(tmp_path: Path) -> None:
    """Java says so at the end of three sessions, not of all."""
    tries = [archive.archive_options(tmp_path, *PARTS) for _ in range(8)]
    assert [bool(each) for each in tries] == [False, True, True, True, False, False, False, False]


def test_the_archive_of_a_java_that_is_gone(tmp_path: Path) -> None:
    old, recent = tmp_path / "old.jsa", tmp_path / "recent.jsa"
    for each in (old, recent, old.with_suffix(".seen")):
        each.write_bytes(b"1234")
    os.utime(old, (0, 0))
    for _ in range(2):
        archive.archive_options(tmp_path, *PARTS)
    assert not old.exists() and not old.with_suffix(".seen").exists()
    assert recent.exists()


def test_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there can be none, and where one of others would be used: their archive could contain any code."""
    (tmp_path / "file").touch()
    assert archive.archive_options(tmp_path / "file" / "below", *PARTS) == ""
    assert archive.archive_options(tmp_path / "two words", *PARTS) == ""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    for _ in range(3):
        assert archive.archive_options(tmp_path, *PARTS) == ""
