"""Trusted networks."""

from ipaddress import ip_network

import pytest

from zonemta_py.intake.admission import is_trusted

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
