"""The PROXY protocol, versions 1 and 2: a load balancer says who its client is, before anything else. Pure.

Source: https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt, sections 2.1 and 2.2.

Version 1: ``PROXY TCP4 SOURCE DESTINATION PORT PORT`` CRLF, at most 107 octets, or ``PROXY UNKNOWN …``.
Version 2: 12 octets of signature; version and command; family; length of the rest (16 bits, network
order); addresses; what may follow them is of no interest here.
"""

import re
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
LINE_MAX = 107
REST_MAX = 4096  # octets after the head of version 2; addresses take 12 or 36
_HEAD = struct.Struct("!12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_V4, _V6 = 0x11, 0x21  # TCP over IPv4, over IPv6
_LINE = re.compile(rb"PROXY (?:UNKNOWN(?: [^\r\n]*)?|(TCP[46]) (\S+) (\S+) (\d{1,5}) (\d{1,5}))\Z")


class NotProxied(ValueError):
    """What came is no PROXY header; the text says why."""


class Proxied(NamedTuple):
    """``client_ip`` is empty when the proxy speaks for itself; ``used``: octets of the header."""

    client_ip: str
    used: int


def read_proxied(octets: bytes) -> Proxied | None:
    """The header at the beginning of ``octets``, None when more is needed. Raises NotProxied."""
    if SIGNATURE.startswith(octets[: len(SIGNATURE)]) and octets:
        return _second(octets)
    if b"PROXY ".startswith(octets[:6]):
        return _first(octets)
    raise NotProxied("the connection does not begin with a PROXY header")


def _first(octets: bytes) -> Proxied | None:
    end = octets.find(b"\r\n", 0, LINE_MAX)
    if end < 0:
        if len(octets) >= LINE_MAX:
            raise NotProxied("a PROXY line without an end")
        return None
    match = _LINE.match(octets[:end])
    if match is None or any(port and int(port) > 65535 for port in match.groups()[3:]):
        raise NotProxied("a malformed PROXY line")
    if match[1] is None:
        return Proxied("", end + 2)
    kind = IPv4Address if match[1] == b"TCP4" else IPv6Address
    try:
        source, _ = (kind(part.decode("ascii", "replace")) for part in match.group(2, 3))
    except ValueError as exc:
        raise NotProxied(f"a malformed PROXY line: {exc}") from exc
    return Proxied(_shown(source), end + 2)


def _second(octets: bytes) -> Proxied | None:
    if len(octets) < _HEAD.size:
        return None
    _, command, family, length = _HEAD.unpack_from(octets)
    if command not in (_LOCAL, _PROXY):
        raise NotProxied(f"PROXY version and command {command:#04x}")
    if length > REST_MAX:
        raise NotProxied(f"a PROXY header of {length} octets")
    if len(octets) < _HEAD.size + length:
        return None
    used = _HEAD.size + length
    rest = octets[_HEAD.size : used]
    if command == _LOCAL or family not in (_V4, _V6):
        return Proxied("", used)
    size = 4 if family == _V4 else 16
    if length < 2 * size + 4:
        raise NotProxied("a PROXY header without its addresses")
    source = IPv4Address(rest[:4]) if family == _V4 else IPv6Address(rest[:16])
    return Proxied(_shown(source), used)


def _shown(address: IPv4Address | IPv6Address) -> str:
    """As a connection's own address would be shown."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
