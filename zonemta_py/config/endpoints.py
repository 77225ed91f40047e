"""Addresses in a configuration, and their parsers: IP addresses, host:port, smarthosts, Unix sockets."""

import re
from collections.abc import Collection
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING, NamedTuple, NewType
from urllib.parse import urlsplit

Network = IPv4Network | IPv6Network

if TYPE_CHECKING:
    Address = str  # an IP address in normal form, if it is from a file
else:
    Address = NewType("Address", str)

UNIX_PATH_MAX = 107  # bytes; sun_path, unix(7)
HTTP = ("http", "https")
EXPECTED_URL = "http:// or https:// with a host, and a port up to 65535 if there is one"
_EXPECTED_PORT = "a port up to 65535"


def is_url(url: str, schemes: Collection[str]) -> bool:
    """True if ``url`` has one of ``schemes`` and a host, or for ``unix`` a path, and no part that no client accepts."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # brackets that do not match, a port that is no number
        return False
    if parts.scheme not in schemes or port == 0 or not url.isprintable() or " " in url:
        return False
    return bool(parts.path if parts.scheme == "unix" else parts.hostname)


class HostPort(NamedTuple):
    """An address to listen on or connect to; ``host`` is a name or an IP address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Smarthost(NamedTuple):
    """A host that sends mail on. ``host`` is a name or an IP address, or with ``port`` 0 the path of a Unix socket.

    ``by_mx``: the MX hosts of the name are meant, not its addresses.
    """

    host: str
    port: int
    by_mx: bool = False

    def __str__(self) -> str:
        if not self.port:
            return f"unix:{self.host}"
        return ("mx:" if self.by_mx else "") + str(HostPort(self.host, self.port))


class AdminAddress(NamedTuple):
    """The address of the admin listener: ``host`` and ``port``, or the ``path`` of a Unix socket."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else str(HostPort(self.host, self.port))


NameServer = NewType("NameServer", HostPort)  # a HostPort with the default port 53


def address(value: object) -> Address:
    """Parse an IP address, of which there is one form: ``2001:DB8:0::1`` is ``2001:db8::1``. Raises ValueError."""
    try:
        return Address(str(ip_address(value if isinstance(value, str) else "")))
    except ValueError as exc:
        raise ValueError("an IP address") from exc


def host_port(value: object, default_port: int | None = None) -> HostPort:
    """Parse ``host:port``, ``127.0.0.1:25``, ``[::1]:25``, or ``host`` where a default port is given.

    Raises ValueError.
    """
    allowed = "host:port, with brackets around an IPv6 address"
    match = (
        re.match(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:\s]+))(?::(\d{1,5}))?\Z", value)
        if isinstance(value, str)
        else None
    )
    if match is None:
        raise ValueError(allowed)
    port = int(match[3]) if match[3] else default_port
    if port is None:
        raise ValueError(allowed)
    if port > 65535:
        raise ValueError(_EXPECTED_PORT)
    return HostPort(match[1] or match[2], port)


def smarthost(value: object) -> Smarthost:
    """Parse ``host:port``, ``mx:name``, ``mx:name:port`` or ``unix:/path``. Raises ValueError."""
    allowed = "host:port, mx:name or unix:/path"
    kind, _, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind == "unix":
        if not rest.startswith("/") or len(rest.encode()) > UNIX_PATH_MAX:
            raise ValueError(f"an absolute path of at most {UNIX_PATH_MAX} bytes after unix:")
        return Smarthost(rest, 0)
    try:
        found = host_port(rest, 25) if kind == "mx" else host_port(value)
    except ValueError as exc:
        raise ValueError(_EXPECTED_PORT if str(exc) == _EXPECTED_PORT else allowed) from exc
    if not found.port:
        raise ValueError(allowed)
    return Smarthost(*found, by_mx=kind == "mx")


def admin_address(value: object) -> AdminAddress:
    """Parse ``host:port`` or ``unix:/path``. Raises ValueError."""
    try:
        if isinstance(value, str) and value.startswith("unix:"):
            return AdminAddress("", 0, smarthost(value).host)
        return AdminAddress(*host_port(value))
    except ValueError as exc:
        allowed = "host:port or unix:/path"
        raise ValueError(_EXPECTED_PORT if str(exc) == _EXPECTED_PORT else allowed) from exc
