"""IP addresses of clients."""

from functools import lru_cache
from ipaddress import ip_address, ip_network


@lru_cache(maxsize=10_000)
def network_of(address: str) -> str:
    """What is likely one client: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
