"""PROXY headers: both versions, cut anywhere, and data that are not a header."""

from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.proxy import binary_header, proxy_header
from zonemta_py.smtp.auth import (
    SIGNATURE,
    InvalidProxyHeader,
    ProxyHeader,
    missing_bytes,
    read_proxy_header,
)

addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


@given(addresses, st.sampled_from([1, 2]), st.binary(max_size=20))
def test_a_header_cut_anywhere(client: str, version: int, after: bytes) -> None:
    """Until it is whole nothing is known; what follows it is not touched."""
    header = proxy_header(client, version)
    for cut in range(len(header)):
        assert read_proxy_header(header[:cut]) is None
    found = read_proxy_header(header + after)
    assert found is not None
    mapped = IPv6Address(client).ipv4_mapped if ":" in client else None
    assert found == ProxyHeader(str(mapped or client), len(header))


@given(addresses, st.sampled_from([1, 2]), st.booleans())
def test_reading_no_byte_behind_a_header(client: str, version: int, local: bool) -> None:
    """What is read before TLS ends exactly where the header does, in few steps."""
    header = proxy_header(client, version)
    if local:
        header = binary_header(0x20, 0, b"") if version == 2 else b"PROXY UNKNOWN\r\n"
    data, steps = b"", 0
    while not data or read_proxy_header(data) is None:
        data += header[len(data) : len(data) + missing_bytes(data)]
        steps += 1
    assert data == header
    assert steps <= (3 if version == 2 else 60)


@pytest.mark.parametrize(
    ("header", "client"),
    [
        (b"PROXY UNKNOWN\r\n", ""),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", ""),
        (binary_header(0x20, 0, b""), None),
        (binary_header(0x21, 0x31, b"unix"), ""),
    ],
)
def test_no_address_of_a_client(header: bytes, client: str | None) -> None:
    """A connection of the proxy itself is another thing than one of a client that it does not name."""
    assert read_proxy_header(header + b"EHLO x\r\n") == ProxyHeader(client, len(header))


@pytest.mark.parametrize(
    "data",
    [
        b"EHLO x\r\n", b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", b"PROXY TCP4 ::1 ::1 1 2\r\n", b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n" + b"x" * 100, b"PROXY " + b"x" * 200,
        b"PROXY SCTP 1.2.3.4 1.2.3.4 1 2\r\n", binary_header(0x11, 0x11, b"\0" * 12), binary_header(0x21, 0x11, b"\0" * 11), binary_header(0x21, 0x11, b"\0" * 5000),
    ],
)  # fmt: skip
def test_not_a_header(data: bytes) -> None:
    with pytest.raises(InvalidProxyHeader):
        read_proxy_header(data)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for text in (data, SIGNATURE + data, b"PROXY TCP4 " + data + b"\r\n"):
        try:
            found = read_proxy_header(text)
        except InvalidProxyHeader:
            continue
        assert found is None or found.size <= len(text)
