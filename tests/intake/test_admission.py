"""Trusted networks and free disk space."""

import logging
import os
from ipaddress import ip_network
from pathlib import Path

import pytest

from zonemta_py.intake import admission
from zonemta_py.intake.admission import DiskSpace, is_trusted

NETWORKS = [ip_network("192.0.2.0/24"), ip_network("2001:db8::/32")]


@pytest.mark.parametrize(
    ("client_ip", "trusted"),
    [
        ("192.0.2.1", True), ("::ffff:192.0.2.1", True), ("2001:db8::1", True),
        ("192.0.3.1", False), ("2001:db9::1", False), ("", False),
    ],
)  # fmt: skip
def test_trusted_networks(client_ip: str, trusted: bool) -> None:
    """IPv4-mapped addresses count as IPv4; an unknown address is not trusted."""
    assert is_trusted(client_ip, NETWORKS) is trusted


def test_no_network_is_trusted() -> None:
    assert not is_trusted("127.0.0.1", [])


def test_disk_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows the file system; a change is logged once."""
    monkeypatch.setattr(admission, "CHECK_INTERVAL_S", 0.0)
    stat = os.statvfs(tmp_path)
    room = DiskSpace(tmp_path, 1)
    assert room.is_sufficient()
    room._min_bytes = 2 * stat.f_blocks * stat.f_frsize  # more than the disk has
    with caplog.at_level(logging.WARNING):
        assert [room.is_sufficient(), room.is_sufficient()] == [False, False]
        room._min_bytes = 1
        assert [room.is_sufficient(), room.is_sufficient()] == [True, True]
    refused, accepted = [record.getMessage() for record in caplog.records]
    assert "new mail is refused with 452" in refused
    assert "new mail is accepted" in accepted


def test_the_disk_is_not_checked_for_every_message(tmp_path: Path) -> None:
    room = DiskSpace(tmp_path, 1)
    assert room.is_sufficient()
    room._min_bytes = 1 << 80
    assert room.is_sufficient(), "checked a moment ago"
