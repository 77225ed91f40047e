"""The order in which the hosts of a domain are tried, and which addresses are public. Pure.

Source: RFC 5321 section 5.1 (by preference, in random order among equals).
"""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from itertools import zip_longest
from random import Random
from typing import NamedTuple

_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")
# Private by RFCs that are newer than Python's tables: local NAT64 (8215), segment routing (9602), documentation (9637).
_NOT_PUBLIC = tuple(map(IPv6Network, ("64:ff9b:1::/48", "5f00::/16", "3fff::/20")))

TARGETS_MAX = 16  # addresses tried in one delivery attempt
EQUAL_MAX = 8  # of them, those of one preference if there are others


class Host(NamedTuple):
    """A host of a domain and its addresses, in the resolver's order.

    ``is_whole`` is False after a failed look-up, of one family or of both; after both there are no addresses.
    """

    preference: int
    name: str
    ips: tuple[str, ...]
    is_whole: bool = True


class MxAnswer(NamedTuple):
    """The MX hosts of the best preference of a domain, and whether they have addresses of each family.

    Not ``is_whole``: a look-up failed, and another answer may follow soon.
    """

    hosts: tuple[str, ...]
    has_ipv4: bool
    has_ipv6: bool
    is_whole: bool = True


NO_MX_ANSWER = MxAnswer((), has_ipv4=True, has_ipv6=True)


def best(hosts: Sequence[Host]) -> MxAnswer:
    """The hosts of the best preference; the families are those of all hosts, both where a look-up failed."""
    first = min((host.preference for host in hosts), default=0)
    names = tuple(sorted(host.name for host in hosts if host.preference == first))
    families = {":" in ip for host in hosts for ip in host.ips}
    is_whole = all(host.is_whole for host in hosts)
    if not is_whole:
        families = {False, True}
    return MxAnswer(names, has_ipv4=False in families, has_ipv6=True in families, is_whole=is_whole)


def order(hosts: Sequence[Host], rng: Random) -> list[tuple[str, str]]:
    """(host name, IP) pairs in the order of attempts, at most TARGETS_MAX."""
    pairs: list[tuple[str, str]] = []
    preferences = sorted({host.preference for host in hosts})
    most = EQUAL_MAX if len(preferences) > 1 else TARGETS_MAX
    for preference in preferences:
        equal = [host for host in hosts if host.preference == preference]
        rng.shuffle(equal)
        of_hosts = [[(host.name, ip) for ip in rng.sample(host.ips, len(host.ips))] for host in equal]
        # The first address of each host, then the second of each: a dead host does not hide its equals.
        in_turn = [pair for turn in zip_longest(*of_hosts) for pair in turn if pair is not None]
        pairs += in_turn[:most]
    return pairs[:TARGETS_MAX]


@lru_cache(maxsize=4096)
def is_public(ip: str) -> bool:
    """True if mail may be sent to ``ip`` without ``allow_private_destinations``.

    An IPv6 address that embeds an IPv4 address (mapped, 6to4, Teredo, NAT64, the old compatible
    form) is as public as the embedded address.
    """
    address = ip_address(ip)
    if isinstance(address, IPv6Address):
        if address.is_site_local or any(address in network for network in _NOT_PUBLIC):
            return False
        embedded = _embedded(address)
        if embedded is not None:
            return is_public(str(embedded))
    return address.is_global and not address.is_multicast


def _embedded(address: IPv6Address) -> IPv4Address | None:
    mapped = address.ipv4_mapped or address.sixtofour
    if mapped is not None:
        return mapped
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or address in _TRANSLATED or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def allowed(pairs: Sequence[tuple[str, str]], *, private: bool) -> list[tuple[str, str]]:
    """``pairs`` without private and loopback addresses, or all of them if ``private``."""
    return [pair for pair in pairs if private or is_public(pair[1])]
