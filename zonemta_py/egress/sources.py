"""The choice of the address of a pool that a message leaves from. Pure.

A new message: by weight, with weighted rendezvous hashing, so that an address that is added or removed moves only its own
share. A retry: the address of the last attempt, because a greylisting server must see the retry come from there.

A worker draws for ``SOURCE_RUN`` messages without an attempt in a row. If it drew for each, every second message of a pool of
two would open a session in the place of an idle one of the other address.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from math import log
from typing import NamedTuple

from zonemta_py.config.sending import NO_ADDRESS_LIMITS, AddressLimits, PoolAddress
from zonemta_py.config.zones import Zone
from zonemta_py.core.model import USUAL_KEY, USUAL_POOL, PoolKey
from zonemta_py.smtp.reply_class import ReplyClass

IPV4, IPV6, BOTH = "ipv4", "ipv6", "both"  # families of addresses
BY_SYSTEM = "system"  # the name of the address that the system chooses
_OF_ADDRESS = (ReplyClass.GREYLISTED, ReplyClass.BLOCKED)  # the next attempt depends on our address


def source_name(entry: PoolAddress) -> str:
    """Under which name the use of an address is counted."""
    return entry.address or BY_SYSTEM


class LastAttempt(NamedTuple):
    """Of a recipient: how many attempts count; of the last one our address and the class of the reply."""

    attempts: int
    source: str
    reply_class: str


def addresses_in(part: PoolKey, addresses: Sequence[PoolAddress]) -> Sequence[PoolAddress]:
    """Those of ``addresses`` that belong to ``part``; all of them if none does."""
    if not part.address:
        return addresses
    return [
        each for each in addresses if (source_name(each) == part.address) != part.avoided
    ] or addresses


class EgressRoute(NamedTuple):
    """The provider and the pool of the mail of a destination, by its ``settings``.

    ``pool``: that of the settings, or another one by a rule of shaping. ``part``: of ``pool``, whose name it need not have.
    ``families``: over which its MX hosts can be reached.
    """

    provider: str
    pool: str
    settings: Zone
    part: PoolKey = USUAL_KEY
    families: str = BOTH

    def with_pool(self, pool_key: PoolKey) -> "EgressRoute":
        """The route of mail that leaves from a part of a pool, or a pool; USUAL_KEY: from that of the destination."""
        if pool_key == USUAL_KEY:
            return self
        return self._replace(pool=pool_key.pool or self.pool, part=pool_key)


def addresses_of(pools: Mapping[str, Sequence[PoolAddress]]) -> dict[str, set[str]]:
    """The addresses of the pools that have several; under USUAL_POOL all: a rule of shaping may send mail from any pool."""
    usable = {
        name: {source_name(each) for each in pool if each.weight and not each.disabled}
        for name, pool in pools.items()
    }
    several = {name: found for name, found in usable.items() if len(found) > 1}
    return {**several, USUAL_POOL: set[str]().union(*several.values())} if several else {}


def pool_key_after(
    settings: Zone, addresses: Mapping[str, Collection[str]], last: LastAttempt, pool: str = USUAL_POOL
) -> PoolKey:
    """The addresses from which a recipient leaves after its last attempt. ``pool``: that of its tenant; ``addresses``: see ``addresses_of``."""
    if pool == USUAL_POOL and settings.fallback_pool is not None:
        is_moved = last.attempts >= settings.fallback_after or last.reply_class == ReplyClass.BLOCKED
        pool = settings.fallback_pool if is_moved else USUAL_POOL
    return part_after(pool, addresses.get(pool, ()), last.source, last.reply_class)


def part_after(pool: str, addresses: Collection[str], source: str, reply_class: str) -> PoolKey:
    """The part of ``pool`` for the next attempt; ``source``: the address of the last one. ``addresses``: those of the pool.

    A recipient that was greylisted keeps its address, one that was blocked leaves it (decision 113).
    """
    if source in addresses and len(addresses) > 1 and reply_class in _OF_ADDRESS:
        return PoolKey(pool, source, reply_class == ReplyClass.BLOCKED)
    return PoolKey(pool)


def ranked(pool: Sequence[PoolAddress], message: str) -> list[PoolAddress]:
    """The addresses of ``pool`` in the order in which ``message`` prefers them."""
    if len(pool) == 1:
        return list(pool)
    return sorted(
        pool, key=lambda entry: entry.weight / -log(_draw(message, entry.address or "")), reverse=True
    )


def limits_of_addresses(pools: Mapping[str, Sequence[PoolAddress]]) -> dict[str, AddressLimits]:
    """By address; one in several pools has its limits in one of them."""
    entries = (each for pool in pools.values() for each in pool)
    return {source_name(each): each.limits for each in entries if each.limits != NO_ADDRESS_LIMITS}


def names_in_pools(pools: Mapping[str, Sequence[PoolAddress]]) -> dict[str, frozenset[str]]:
    """The addresses of each pool, also those that are disabled."""
    return {name: frozenset(map(source_name, pool)) for name, pool in pools.items()}


def preferred(pool: Sequence[PoolAddress], message: str, *names: str) -> list[PoolAddress]:
    """As ``ranked``, but those with one of ``names`` first, in the order of these."""
    found = ranked(pool, message)
    for name in reversed(names):
        found.sort(key=lambda entry: source_name(entry) != name)
    return found


def others(pool: Sequence[PoolAddress], message: str, name: str) -> list[PoolAddress]:
    """The addresses of ``pool`` but ``name``, from the one behind it in the order of ``message``: so each gets its turn."""
    found = ranked(pool, message)
    at = next((n for n, entry in enumerate(found) if source_name(entry) == name), -1)
    return [entry for entry in found[at + 1 :] + found[: at + 1] if source_name(entry) != name]


def usable(
    pool: Sequence[PoolAddress], families: Collection[str], stopped: Collection[str] = ()
) -> list[PoolAddress]:
    """The addresses of ``pool`` that may be used with hosts of ``families``; not those in ``stopped``."""
    return [
        entry
        for entry in pool
        if entry.weight
        and not entry.disabled
        and (entry.address is None or _family(entry.address) in families)
        and source_name(entry) not in stopped
    ]


@cache  # of a few words
def common_families(provider: str, hosts: str) -> tuple[str, ...]:
    """The families that the settings of a provider allow and its hosts have; each is ipv4, ipv6 or both."""
    found = {"ipv4", "ipv6"}
    for each in (provider, hosts):
        found &= {each} if each in found else {"ipv4", "ipv6"}
    return tuple(sorted(found)) or (provider,)


def _family(address: str) -> str:
    return "ipv6" if ":" in address else "ipv4"


def _draw(message: str, address: str) -> float:
    """A number between 0 and 1, both excluded, that depends on nothing but the arguments."""
    digest = blake2b(f"{message} {address}".encode(), digest_size=6).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**48
