"""Trusted networks, and the places of known clients."""

from ipaddress import ip_network

import pytest

from zonemta_py.intake.context import SessionLimits, Stranger, is_trusted

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


class Client:
    """A session as the places see it."""

    busy = False

    def give_up(self) -> None:
        """It loses its place."""

    close_if_idle = abort = give_up


def test_a_connection_of_a_proxy_has_no_place_before_its_header() -> None:
    """It takes none from a client; of more than there are places the oldest ends."""
    ended: list[object] = []
    limits = SessionLimits(ended.append)
    known = [Client() for _ in range(7)]
    for number, each in enumerate(known):
        assert limits.admit_known(each, (("address", str(number % 2)),), 8) == ""
    stranger = Client()
    assert limits.admit_stranger(stranger, Stranger("192.0.2.0", False, 0.0), 8) == ""
    assert limits.admit_known(stranger, (("address", "9"),), 8) == "", "it has a place"
    silent = [Client() for _ in range(10)]
    for each in silent:
        limits.admit_unnamed(each, 8)
    assert ended == silent[:2]
    assert len(limits) == 8
    assert len(limits.sessions) == 16
    assert all(each in limits for each in [*known, stranger])
    assert not any(each in limits for each in silent)
    limits.remove(silent[9])
    assert limits.admit_known(silent[9], (("address", "9"),), 8) == ""
    assert ended == [*silent[:2], stranger], "a known client takes its place"
    for each in [*known, *silent]:
        limits.remove(each)
    assert limits.sessions == []


def test_a_login_that_gets_no_place_is_refused() -> None:
    """As after a reload with fewer places: it does not stay uncounted."""
    limits = SessionLimits(lambda session: None)
    for number in range(4):
        busy = Client()
        busy.busy = True
        assert limits.admit_known(busy, (("address", str(number)),), 8) == ""
    stranger = Client()
    assert limits.admit_stranger(stranger, Stranger("192.0.2.0", False, 0.0), 8) == ""
    assert limits.know(stranger, (("user", "ann"),), 4).startswith("421")
    assert stranger not in limits
