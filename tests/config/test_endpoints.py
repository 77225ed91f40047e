"""Addresses."""

import pytest

from zonemta_py.config.endpoints import HostPort, host_port


def test_host_port() -> None:
    assert host_port("127.0.0.1:25") == HostPort("127.0.0.1", 25)
    assert host_port("[::1]:25") == HostPort("::1", 25)
    assert host_port("ns.example", 53) == HostPort("ns.example", 53)
    assert str(HostPort("::1", 25)) == "[::1]:25"
    for bad in ("127.0.0.1", "a b:1", "a:99999", "", 25, None):
        with pytest.raises(ValueError, match="host:port"):
            host_port(bad)
