"""In which order the hosts of a domain are tried. Pure.

Source: RFC 5321 section 5.1: by preference, at random within one.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from random import Random
from typing import NamedTuple

TARGETS_MAX = 16  # addresses tried for one delivery


class Host(NamedTuple):
    """One mail exchanger and its addresses, in the resolver's order."""

    preference: int
    name: str
    ips: tuple[str, ...]


def order(hosts: Sequence[Host], rng: Random) -> list[tuple[str, str]]:
    """(host name, IP) pairs in the order to try them, TARGETS_MAX at most."""
    pairs: list[tuple[str, str]] = []
    for preference in sorted({host.preference for host in hosts}):
        equal = [host for host in hosts if host.preference == preference]
        rng.shuffle(equal)
        for host in equal:
            ips = list(host.ips)
            rng.shuffle(ips)
            pairs.extend((host.name, ip) for ip in ips)
    return pairs[:TARGETS_MAX]


def is_public(ip: str) -> bool:
    """Whether mail may go there without ``allow_private_destinations``."""
    address = ip_address(ip)
    return address.is_global and not address.is_multicast


def allowed(pairs: Sequence[tuple[str, str]], *, private: bool) -> list[tuple[str, str]]:
    """``pairs`` without private and loopback addresses, unless those are allowed."""
    return [pair for pair in pairs if private or is_public(pair[1])]
