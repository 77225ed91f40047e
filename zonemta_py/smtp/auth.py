"""The identity of a client: the PROXY protocol, in which a load balancer names it, and the SASL mechanisms of AUTH. Pure.

Source: https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt, sections 2.1 and 2.2.

Version 1: ``PROXY TCP4 SOURCE DESTINATION PORT PORT`` CRLF, at most 107 bytes, or ``PROXY UNKNOWN …``.
Version 2: 12 bytes of signature; version and command; family; length of the remainder (16 bits, network
order); addresses; optional values, which are ignored.
"""

import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
LINE_MAX = 107
REMAINDER_MAX = 4096  # bytes after the fixed part of version 2; addresses take 12 or 36
_HEAD = struct.Struct("!12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_V4, _V6 = 0x11, 0x21  # TCP over IPv4, over IPv6
_LINE = re.compile(rb"PROXY (?:UNKNOWN(?: [^\r\n]*)?|(TCP[46]) (\S+) (\S+) (\d{1,5}) (\d{1,5}))\Z")


class InvalidProxyHeader(ValueError):
    """The connection does not begin with a valid PROXY header; the text says why."""


class ProxyHeader(NamedTuple):
    """``client_ip`` is None for a connection of the proxy itself, and empty for a client whose address it does not tell.

    ``size`` is that of the header in bytes.
    """

    client_ip: str | None
    size: int


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of ``data``, or None if it is incomplete. Raises InvalidProxyHeader."""
    if SIGNATURE.startswith(data[: len(SIGNATURE)]) and data:
        return _version_2(data)
    if b"PROXY ".startswith(data[:6]):
        return _version_1(data)
    raise InvalidProxyHeader("the connection does not begin with a PROXY header")


def missing_bytes(data: bytes) -> int:
    """The number of bytes to read that cannot reach behind the header, of which ``data`` is an incomplete part."""
    if len(data) < len(SIGNATURE):  # shorter than each header
        return len(SIGNATURE) - len(data)
    if not data.startswith(SIGNATURE):
        return 1 if data.endswith(b"\r") else 2
    if len(data) < _HEAD.size:
        return _HEAD.size - len(data)
    return _HEAD.size + int(_HEAD.unpack_from(data)[3]) - len(data)


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, LINE_MAX)
    if end < 0:
        if len(data) >= LINE_MAX:
            raise InvalidProxyHeader("a PROXY line without CRLF")
        return None
    match = _LINE.match(data[:end])
    if match is None or any(port and int(port) > 65535 for port in match.groups()[3:]):
        raise InvalidProxyHeader("a malformed PROXY line")
    if match[1] is None:
        return ProxyHeader("", end + 2)
    kind = IPv4Address if match[1] == b"TCP4" else IPv6Address
    try:
        source, _ = (kind(part.decode("ascii", "replace")) for part in match.group(2, 3))
    except ValueError as exc:
        raise InvalidProxyHeader(f"a malformed PROXY line: {exc}") from exc
    return ProxyHeader(_shown(source), end + 2)


def _version_2(data: bytes) -> ProxyHeader | None:
    if len(data) < _HEAD.size:
        return None
    _, command, family, length = _HEAD.unpack_from(data)
    if command not in (_LOCAL, _PROXY):
        raise InvalidProxyHeader(f"PROXY version and command {command:#04x}")
    if length > REMAINDER_MAX:
        raise InvalidProxyHeader(f"a PROXY header of {length} bytes")
    if len(data) < _HEAD.size + length:
        return None
    size = _HEAD.size + length
    remainder = data[_HEAD.size : size]
    if command == _LOCAL or family not in (_V4, _V6):
        return ProxyHeader(None if command == _LOCAL else "", size)
    address_size = 4 if family == _V4 else 16
    if length < 2 * address_size + 4:
        raise InvalidProxyHeader("a PROXY header without its addresses")
    source = IPv4Address(remainder[:4]) if family == _V4 else IPv6Address(remainder[:16])
    return ProxyHeader(_shown(source), size)


def _shown(address: IPv4Address | IPv6Address) -> str:
    """The text form of an address; a mapped IPv4 address is shown as IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


# ---- The SASL mechanisms of AUTH.
#
# An exchange is a generator: it yields challenges (base64), receives the client's lines, and returns name
# and password, or None when the client cancels or sends a malformed response.
#
# Source: RFC 4954 (AUTH), RFC 4616 (PLAIN), draft-murchison-sasl-login (LOGIN).

Credentials = tuple[str, str]  # name and password
Exchange = Generator[str, str | None, Credentials | None]


def plain(initial: str) -> Exchange:
    """PLAIN: authorisation identity, name and password in one response.

    A user may act for itself only: for another identity the password is dropped, which refuses it as wrong.
    """
    response = _decoded(initial or ((yield "") or ""))
    parts = response.split("\0") if response is not None else []
    if len(parts) != 3:
        return None
    identity, name, password = parts
    return (name, password) if identity in ("", name) else (name, "")


def login(initial: str) -> Exchange:
    """LOGIN: name and password in two responses."""
    name = _decoded(initial or ((yield _encoded("Username:")) or ""))
    if name is None:
        return None
    password = _decoded((yield _encoded("Password:")) or "")
    return (name, password) if password is not None else None


MECHANISMS: dict[str, Callable[[str], Exchange]] = {"PLAIN": plain, "LOGIN": login}


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _decoded(response: str) -> str | None:
    """The text of a response (``=``: empty), or None if it cancels (``*``) or is not base64."""
    response = response.strip()
    if response == "*":
        return None
    try:
        return b64decode("" if response == "=" else response, validate=True).decode("utf-8", "replace")
    except ValueError:
        return None
