"""From a domain to the endpoints of its mail: hosts by MX or smarthost, each with a source address."""

from collections.abc import Sequence
from hashlib import blake2b
from math import log
from random import Random

from zonemta_py.config.schema import Config, PoolAddress
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock
from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import ConfigError, DestinationFailed
from zonemta_py.delivery.mx import MxResolver
from zonemta_py.smtp.mx_order import Host, allowed, order

SOLE_ENDPOINT_S = 5.0  # how long a sole endpoint is not looked up again: the least TTL of an answer
SOLE_ENDPOINTS_MAX = 10_000


class Endpoint(Struct, frozen=True):
    """Both ends of a session. ``source`` None: the system chooses the local address."""

    host: str
    ip: str
    port: int
    source: str | None


Candidates = Sequence[tuple[Endpoint, PoolAddress]]


class EndpointResolver:
    """Finds endpoints by one configuration. A sole endpoint, the same for every message, is cached."""

    def __init__(self, config: Config, hostname: str, resolver: MxResolver, rng: Random) -> None:
        self._config = config
        self._hostname = hostname
        self._resolver = resolver
        self._rng = rng
        self._sole: dict[tuple[str, int, str], tuple[float, Candidates]] = {}

    async def find(self, zone: Zone, domain: str, message: str) -> Candidates:
        """The endpoints for ``domain`` in the order to try them, at least one. Raises DestinationFailed."""
        target = domain if zone.smarthost is None else str(zone.smarthost)
        key = (target, zone.port, zone.pool)
        sole = self._sole.get(key)
        if sole is not None and sole[0] > clock.monotonic_s():
            return sole[1]
        hosts, endpoints = await self._look_up(zone, domain, message)
        if len(endpoints) == 1 and len(hosts) == 1 and len(self._config.pools[zone.pool]) == 1:
            if len(self._sole) >= SOLE_ENDPOINTS_MAX:
                self._sole.clear()
            self._sole[key] = (clock.monotonic_s() + SOLE_ENDPOINT_S, endpoints)
        return endpoints

    async def _look_up(self, zone: Zone, domain: str, message: str) -> tuple[Sequence[Host], Candidates]:
        smarthost = zone.smarthost
        if smarthost is None:
            hosts = self._preferred_to_us(domain, await self._resolver.resolve(domain))
            pairs = self._permitted(domain, order(hosts, self._rng))
            port = zone.port
        else:
            hosts = await self._smarthost(smarthost.host)
            pairs = order(hosts, self._rng)
            port = smarthost.port
        pool = self._config.pools[zone.pool]
        endpoints = []
        for host, ip in pairs:
            source = choose_source(pool, message, ip)
            if source is not None:
                endpoints.append((Endpoint(host, ip, port, source.address), source))
        if not endpoints:
            raise DestinationFailed(
                0, "4.4.4", f"no address of pool '{zone.pool}' can reach {pairs[0][1]}"
            )
        return hosts, endpoints

    def _permitted(self, domain: str, pairs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        """The (host, IP) pairs without private addresses, unless allowed. Raises DestinationFailed."""
        permitted = allowed(pairs, private=self._config.allow_private_destinations)
        if not permitted:
            raise DestinationFailed(
                0,
                "4.4.4",
                f"{domain} leads only to private addresses ({pairs[0][1]}), which is not allowed",
            )
        return permitted

    def _preferred_to_us(self, domain: str, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """The hosts with a lower MX preference than this one (RFC 5321 section 5.1). Raises DestinationFailed."""
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


def choose_source(pool: Sequence[PoolAddress], message: str, target_ip: str) -> PoolAddress | None:
    """The address of ``pool`` from which ``message`` is sent to ``target_ip``; None if no family matches.

    By weight, and the same for every attempt of a message: a greylisting server must see the retry
    come from the address of the first attempt. Weighted rendezvous hashing: an address that is added
    takes its share from the others, one that is removed gives up its own, and no other message moves.
    """
    version = 6 if ":" in target_ip else 4
    fitting = [
        entry
        for entry in pool
        if entry.weight and (entry.address is None or (6 if ":" in entry.address else 4) == version)
    ]
    if len(fitting) <= 1:
        return fitting[0] if fitting else None
    return max(fitting, key=lambda entry: entry.weight / -log(_draw(message, entry.address or "")))


def _draw(message: str, address: str) -> float:
    """A number between 0 and 1, both excluded, that depends on nothing but the arguments."""
    digest = blake2b(f"{message} {address}".encode(), digest_size=6).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**48


def credentials(zone: Zone) -> tuple[str, str] | None:
    """Name and password for the zone's smarthost. Raises DestinationFailed when the file cannot be read."""
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
