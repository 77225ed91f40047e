"""PROXY headers: both versions, cut anywhere, and data that are not a header."""

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.proxy import SIGNATURE, InvalidProxyHeader, ProxyHeader, read_proxy_header


def second(command: int, family: int, rest: bytes) -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, family, len(rest)) + rest


def of(client: str, version: int) -> bytes:
    """A header that names ``client``."""
    four = "." in client
    other = "192.0.2.1" if four else "2001:db8::1"
    if version == 1:
        return f"PROXY TCP{4 if four else 6} {client} {other} 5000 25\r\n".encode()
    packed = [(IPv4Address if four else IPv6Address)(each).packed for each in (client, other)]
    return second(
        0x21, 0x11 if four else 0x21, b"".join(packed) + struct.pack("!HH", 5000, 25) + b"\x04\0\1x"
    )


addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


@given(addresses, st.sampled_from([1, 2]), st.binary(max_size=20))
def test_a_header_cut_anywhere(client: str, version: int, after: bytes) -> None:
    """Until it is whole nothing is known; what follows it is not touched."""
    header = of(client, version)
    for cut in range(len(header)):
        assert read_proxy_header(header[:cut]) is None
    found = read_proxy_header(header + after)
    assert found is not None
    mapped = IPv6Address(client).ipv4_mapped if ":" in client else None
    assert found == ProxyHeader(str(mapped or client), len(header))


@pytest.mark.parametrize(
    "header",
    [b"PROXY UNKNOWN\r\n", b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", second(0x20, 0, b""), second(0x21, 0x31, b"unix")],
)  # fmt: skip
def test_a_proxy_that_speaks_for_itself(header: bytes) -> None:
    assert read_proxy_header(header + b"EHLO x\r\n") == ProxyHeader("", len(header))


@pytest.mark.parametrize(
    "data",
    [
        b"EHLO x\r\n", b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", b"PROXY TCP4 ::1 ::1 1 2\r\n", b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n" + b"x" * 100, b"PROXY " + b"x" * 200,
        b"PROXY SCTP 1.2.3.4 1.2.3.4 1 2\r\n", second(0x11, 0x11, b"\0" * 12), second(0x21, 0x11, b"\0" * 11), second(0x21, 0x11, b"\0" * 5000),
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
