"""Addresses."""

import pytest

from zonemta_py.config.endpoints import HTTP, HostPort, host_port, is_url


def test_host_port() -> None:
    assert host_port("127.0.0.1:25") == HostPort("127.0.0.1", 25)
    assert host_port("[::1]:25") == HostPort("::1", 25)
    assert host_port("ns.example", 53) == HostPort("ns.example", 53)
    assert str(HostPort("::1", 25)) == "[::1]:25"
    for bad in ("127.0.0.1", "a b:1", "a:99999", "", 25, None):
        with pytest.raises(ValueError, match=r"host:port|a port up to 65535"):
            host_port(bad)


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://", "http://:80", "http://a:99999", "http://a:x", "http://a:0", "http://a b/", "http://a\n", "ftp://a", "a"],
)  # fmt: skip
def test_urls_that_no_client_takes(url: str) -> None:
    assert not is_url(url, HTTP)
    assert not is_url(url.replace("http", "redis"), ("redis", "rediss", "unix"))


def test_urls() -> None:
    assert all(is_url(url, HTTP) for url in ("http://a", "HTTPS://u:p@a:1/x?y", "http://[::1]:65535/"))
    assert is_url("unix:///run/redis.sock", ("unix",))
    assert not is_url("unix://", ("unix",))
