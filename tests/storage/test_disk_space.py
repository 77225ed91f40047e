"""Free disk space."""

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from zonemta_py.storage import open
from zonemta_py.storage.open import DiskSpace


def test_disk_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows the file system; a change is logged once."""
    monkeypatch.setattr(open, "CHECK_INTERVAL_S", 0.0)
    stat = os.statvfs(tmp_path)
    disk = DiskSpace(tmp_path, 1)
    assert disk.is_sufficient()
    disk._min_bytes = 2 * stat.f_blocks * stat.f_frsize  # more than the disk has
    with caplog.at_level(logging.WARNING):
        assert [disk.is_sufficient(), disk.is_sufficient()] == [False, False]
        disk._min_bytes = 1
        assert [disk.is_sufficient(), disk.is_sufficient()] == [True, True]
    refused, accepted = [record.getMessage() for record in caplog.records]
    assert "new mail is refused with 452" in refused
    assert "new mail is accepted" in accepted


def test_inodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some have to be free, unless the file system has no limit: the filesystem store needs files to settle mail."""
    found = dict.fromkeys(("f_bavail", "f_frsize"), 1 << 20)
    free, total = 59, 600
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**found, f_favail=free, f_files=total))
    disk = DiskSpace(tmp_path, 1)
    assert not disk.is_sufficient()
    assert "fewer than 60 inodes are free, new mail is refused with 452" in caplog.text
    free = 60
    assert disk.is_sufficient()
    free, total = 9999, 10**7
    assert not disk.is_sufficient()
    free = total = 0
    assert disk.is_sufficient()


def test_the_disk_is_not_checked_for_every_message(tmp_path: Path) -> None:
    disk = DiskSpace(tmp_path, 1)
    assert disk.is_sufficient()
    disk._min_bytes = 1 << 80
    assert disk.is_sufficient(), "checked a moment ago"


def test_no_directory(tmp_path: Path) -> None:
    """A queue in Redis or S3 keeps no files here."""
    assert DiskSpace(tmp_path / "none", 1 << 80).is_sufficient()
