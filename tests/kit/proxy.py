"""Headers of the PROXY protocol."""

import struct
from ipaddress import IPv4Address, IPv6Address

from zonemta_py.smtp.auth import SIGNATURE


def binary_header(command: int, family: int, rest: bytes) -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, family, len(rest)) + rest


def proxy_header(client: str, version: int) -> bytes:
    """A header that names ``client``."""
    four = "." in client
    other = "192.0.2.1" if four else "2001:db8::1"
    if version == 1:
        return f"PROXY TCP{4 if four else 6} {client} {other} 5000 25\r\n".encode()
    packed = [(IPv4Address if four else IPv6Address)(each).packed for each in (client, other)]
    return binary_header(
        0x21, 0x11 if four else 0x21, b"".join(packed) + struct.pack("!HH", 5000, 25) + b"\x04\0\1x"
    )
