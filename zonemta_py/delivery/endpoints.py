"""Which of a pool's addresses a message leaves from. Pure.

Weighted, and stable per message, so that a greylisting server sees the retry come from where the
first attempt came.

From a domain to the ways there: hosts by MX or smarthost, each from an address of the zone's pool.
"""

from collections.abc import Sequence
from random import Random
from zlib import crc32

from zonemta_py.config.schema import Config, PoolAddress, Zone
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError, DestinationFailed
from zonemta_py.delivery.mx import MxResolver
from zonemta_py.delivery.session_pool import Endpoint
from zonemta_py.smtp.mx_order import Host, allowed, order


def choose_source(pool: Sequence[PoolAddress], message: str, target_ip: str) -> PoolAddress | None:
    """The address of ``pool`` for ``message`` towards ``target_ip``, or None if no family matches."""
    version = 6 if ":" in target_ip else 4
    fitting = [
        entry
        for entry in pool
        if entry.weight and (entry.address is None or (6 if ":" in entry.address else 4) == version)
    ]
    if len(fitting) <= 1:
        return fitting[0] if fitting else None
    ticket = crc32(message.encode()) % sum(entry.weight for entry in fitting)
    for entry in fitting:
        ticket -= entry.weight
        if ticket < 0:
            return entry
    raise AssertionError("a ticket lies below the sum of the weights")


ONLY_S = 5.0  # how long the only way somewhere is not looked up again: the least TTL of an answer
ONLY_MAX = 10_000


class EndpointResolver:
    """Finds ways, by one configuration. Where there is only one, and no choice by message, it is kept."""

    def __init__(self, config: Config, hostname: str, resolver: MxResolver, rng: Random) -> None:
        self._config = config
        self._hostname = hostname
        self._resolver = resolver
        self._rng = rng
        self._only: dict[tuple[str, int, str], tuple[float, Sequence[tuple[Endpoint, PoolAddress]]]] = {}

    async def find(
        self, zone: Zone, domain: str, message: str
    ) -> Sequence[tuple[Endpoint, PoolAddress]]:
        """The ways to ``domain`` in the order to try them. Raises DestinationFailed."""
        target = domain if zone.smarthost is None else str(zone.smarthost)
        key = (target, zone.port, zone.pool)
        only = self._only.get(key)
        if only is not None and only[0] > clock.monotonic_s():
            return only[1]
        hosts, ways = await self._look_up(zone, domain, message)
        if len(ways) == 1 and len(hosts) == 1 and len(self._config.pools[zone.pool]) == 1:
            if len(self._only) >= ONLY_MAX:
                self._only.clear()
            self._only[key] = (clock.monotonic_s() + ONLY_S, ways)
        return ways

    async def _look_up(
        self, zone: Zone, domain: str, message: str
    ) -> tuple[Sequence[Host], list[tuple[Endpoint, PoolAddress]]]:
        smarthost = zone.smarthost
        hosts = (
            await self._resolver.resolve(domain)
            if smarthost is None
            else await self._smarthost(smarthost.host)
        )
        if smarthost is None:
            hosts = self._without_ourselves(domain, hosts)
        pairs = order(hosts, self._rng)
        if smarthost is None:
            permitted = allowed(pairs, private=self._config.allow_private_destinations)
            if not permitted:
                raise DestinationFailed(
                    0,
                    "4.4.4",
                    f"{domain} leads only to private addresses ({pairs[0][1]}), which is not allowed",
                )
            pairs = permitted
        port = zone.port if smarthost is None else smarthost.port
        pool = self._config.pools[zone.pool]
        ways = []
        for host, ip in pairs:
            source = choose_source(pool, message, ip)
            if source is not None:
                ways.append((Endpoint(host, ip, port, source.address), source))
        if not ways:
            raise DestinationFailed(
                0, "4.4.4", f"no address of pool '{zone.pool}' can reach {pairs[0][1]}"
            )
        return hosts, ways

    def _without_ourselves(self, domain: str, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """The hosts that are to be preferred to us (RFC 5321 section 5.1). Raises DestinationFailed."""
        ours = [host.preference for host in hosts if host.name == self._hostname.lower()]
        if not ours:
            return hosts
        better = tuple(host for host in hosts if host.preference < min(ours))
        if not better:
            raise DestinationFailed(
                0, "5.4.6", f"mail for {domain} loops back to this relay", permanent=True
            )
        return better

    async def _smarthost(self, host: str) -> tuple[Host, ...]:
        literal = f"[ipv6:{host}]" if ":" in host else f"[{host}]"
        if ":" in host or host.replace(".", "").isdigit():
            resolved = await self._resolver.resolve(literal)
            return tuple(item._replace(name=host) for item in resolved)
        return await self._resolver.addresses_of(host)


def credentials(zone: Zone) -> tuple[str, str] | None:
    """Name and password for the zone's smarthost. Raises DestinationFailed when unreadable."""
    auth = zone.smarthost_auth
    if auth.username is None or auth.password_file is None:
        return None
    try:
        return auth.username, read_password(zone)
    except ConfigError as exc:
        raise DestinationFailed(0, "4.7.0", str(exc)) from exc


def read_password(zone: Zone) -> str:
    """The first line of the smarthost's password file. Raises ConfigError."""
    path = zone.smarthost_auth.password_file
    assert path is not None
    try:
        return path.read_text(encoding="utf-8").split("\n", 1)[0].strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: the password cannot be read: {exc}") from exc
