"""From a domain to the endpoints of its mail: hosts by MX or smarthost, each with a source address."""

import socket
from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import NamedTuple

from zonemta_py.config.endpoints import Smarthost
from zonemta_py.config.schema import Config
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.zones import DeliverySettings, Zone
from zonemta_py.core import clock
from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import ConfigError, DestinationFailed
from zonemta_py.delivery.dns import MxResolver
from zonemta_py.delivery.sts_policies import StsPolicies, Trust
from zonemta_py.egress.paths import EgressOrder
from zonemta_py.egress.sources import ranked
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, Host, MxAnswer, allowed, best, order

SOLE_ENDPOINT_S = 5.0  # how long a sole endpoint is not looked up again: the least TTL of an answer
SOLE_ENDPOINTS_MAX = 10_000
VERIFIED = ("required", "implicit")  # policies under which the certificate must be one of the host
HOSTS_FILE = Path("/etc/hosts")
NO_SOURCE = PoolAddress()  # of a session over a Unix socket


class Endpoint(Struct, frozen=True):
    """Both ends of a session. ``ip`` is the path of a Unix socket if ``port`` is 0.

    ``source`` None: the system chooses the local address. ``security`` differs where a session of one destination
    must not serve another one: another TLS policy, or other credentials. ``tls``: as in ``SessionOptions``.
    """

    host: str
    ip: str
    port: int
    source: str | None
    security: str = ""
    tls: str = "opportunistic"


class _Peer(NamedTuple):
    """The other end of a session."""

    host: str
    ip: str
    port: int
    tls: str


Candidates = Sequence[tuple[Endpoint, PoolAddress]]


class EndpointResolver:
    """Finds endpoints by one configuration. A sole endpoint, the same for every message, is cached.

    It depends on all settings of its zone for that destination: TLS, credentials, smarthosts, port, pool.
    """

    def __init__(
        self,
        config: Config,
        hostname: str,
        resolver: MxResolver,
        policies: StsPolicies,
        rng: Random,
    ) -> None:
        self._config = config
        self._hostname = hostname
        self._resolver = resolver
        self._policies = policies
        self._rng = rng
        self._sole: dict[tuple[object, ...], tuple[float, Candidates]] = {}
        self._terms: dict[
            int, tuple[Zone, str]
        ] = {}  # by identity; it keeps the settings, and so their identity
        self._listening = [listener.address for listener in config.listeners]
        self._pools = {name: each.pool for name, each in config.tenants.items() if each.pool is not None}

    async def find(
        self,
        zone: Zone,
        domain: str,
        message: str,
        tenant: str = "",
        order: EgressOrder | None = None,
        prefers: str = "",
    ) -> Candidates:
        """The endpoints for ``domain`` in the order to try them, at least one. Raises DestinationFailed.

        ``zone`` are the settings for the destination. ``order`` names the source address; without one it is chosen
        from the pool of the tenant, or the zone: ``prefers``, if that can be used, else drawn by ``message``.
        """
        pool = self._pools.get(tenant, zone.pool)
        via = (pool,) if order is None else (order.source, order.ehlo, order.family)
        key = (id(zone), "" if zone.smarthost else domain, via)
        sole, now_s = self._sole.get(key), clock.monotonic_s()
        if sole is not None and sole[0] > now_s:
            return sole[1]
        if order is not None:
            endpoints = await self._ordered(zone, domain, order)
        else:
            endpoints = await self._look_up(zone, domain, (message, prefers), pool)
        if len(endpoints) == 1 and (order is not None or len(self._config.pools[pool]) == 1):
            if len(self._sole) >= SOLE_ENDPOINTS_MAX:
                self._sole.clear()
            self._sole[key] = (now_s + SOLE_ENDPOINT_S, endpoints)
        return endpoints

    async def mx_hosts(self, domain: str) -> MxAnswer:
        """The MX hosts of ``domain``; none if they cannot be found now."""
        try:
            return best(await self._resolver.resolve(domain))
        except DestinationFailed:
            return NO_MX_ANSWER

    async def lacks_best(self, domain: str) -> bool:
        """True if the addresses of a host before those with addresses could not be looked up. Raises DestinationFailed."""
        hosts = await self._resolver.resolve(domain)
        first = min((host.preference for host in hosts if host.ips), default=0)
        return any(not host.ips and host.preference < first for host in hosts)

    async def _ordered(self, zone: Zone, domain: str, order: EgressOrder) -> Candidates:
        """Endpoints with the source of ``order``, and hosts of the family that it asks for."""
        source = PoolAddress(order.source, order.ehlo)
        endpoints = [
            (self._endpoint(zone, peer, order.source, f" {order.ehlo or ''}"), source)
            for peer in await self._peers(zone, domain)
            if _fits(peer.ip, order)
        ]
        if not endpoints:
            way = f"from {order.source}" if order.source else f"over {order.family}"
            raise DestinationFailed(0, "4.4.4", f"no host of {domain} can be reached {way}")
        return endpoints

    async def _peers(self, zone: Zone, domain: str) -> list[_Peer]:
        """The hosts for ``domain``, in the order to try them. Raises DestinationFailed."""
        if zone.smarthost:
            return [_Peer(*found, zone.tls) for found in await self._smarthosts(zone.smarthost)]
        hosts = self._preferred_to_us(domain, await self._resolver.resolve(domain), zone.port)
        if not any(host.ips for host in hosts):
            names = ", ".join(host.name for host in hosts)
            raise DestinationFailed(0, "4.4.3", f"looking up the addresses of {names} failed")
        tls = zone.tls
        if tls == "mta-sts":
            trust = Trust(zone.tls_ca_file, self._config.allow_private_destinations)
            hosts, tls = await self._policies.permitted(domain, hosts, trust)
        pairs = self._permitted(domain, order(hosts, self._rng))
        return [_Peer(*pair, zone.port, tls) for pair in pairs]

    async def _look_up(
        self, zone: Zone, domain: str, choice: tuple[str, str], pool_name: str
    ) -> Candidates:
        found = await self._peers(zone, domain)
        pool, endpoints = self._config.pools[pool_name], []
        for peer in found:
            source = choose_source(pool, *choice, peer.ip)
            if source is not None:  # a session has one EHLO name
                name = f" {source.ehlo or ''}" if pool_name != zone.pool else ""
                endpoints.append((self._endpoint(zone, peer, source.address, name), source))
        if not endpoints:
            raise DestinationFailed(
                0, "4.4.4", f"no address of pool '{pool_name}' can reach {found[0].ip}"
            )
        return endpoints

    def _endpoint(self, zone: Zone, peer: _Peer, source: str | None, name: str) -> Endpoint:
        """The endpoint at ``peer``; ``name`` is what else sessions must have in common: that in EHLO."""
        known = self._terms.get(id(zone))
        if known is None:
            known = self._terms[id(zone)] = (zone, _session_terms(zone))
        verified = peer.host if peer.tls in VERIFIED else ""  # a certificate is that of a name
        return Endpoint(
            host=peer.host, ip=peer.ip, port=peer.port, source=source, security=f"{known[1]} {verified}{name}", tls=peer.tls,
        )  # fmt: skip

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

    def _preferred_to_us(self, domain: str, hosts: tuple[Host, ...], port: int) -> tuple[Host, ...]:
        """The hosts with a lower MX preference than this one (RFC 5321 section 5.1). Raises DestinationFailed."""
        ours = [host.preference for host in hosts if self._is_this_relay(host, port)]
        if not ours:
            return hosts
        better = tuple(host for host in hosts if host.preference < min(ours))
        if not better:
            raise DestinationFailed(
                0, "5.4.6", f"mail for {domain} loops back to this relay", permanent=True
            )
        return better

    def _is_this_relay(self, host: Host, port: int) -> bool:
        """True if ``host`` has this relay's name, or an address and ``port`` on which this relay listens."""
        if host.name == self._hostname.lower():
            return True
        return any(
            address.port == port and any(_listens_on(address.host, ip) for ip in host.ips)
            for address in self._listening
        )

    async def _smarthosts(self, smarthosts: Sequence[Smarthost]) -> list[tuple[str, str, int]]:
        """(host, IP, port) of ``smarthosts``, in their order. Raises DestinationFailed if none can be found."""
        found: list[tuple[str, str, int]] = []
        failure: DestinationFailed | None = None
        for smarthost in smarthosts:
            try:
                hosts = await self._smarthost(smarthost)
            except DestinationFailed as exc:
                # The configuration is wrong, or DNS is: not a reason to return mail.
                failure = DestinationFailed(0, "4.4.4", f"smarthost {smarthost}: {exc.text}")
                continue
            found += [(*pair, smarthost.port) for pair in order(hosts, self._rng)]
        if not found and failure is not None:
            raise failure
        return found

    async def _smarthost(self, smarthost: Smarthost) -> tuple[Host, ...]:
        host = smarthost.host
        if not smarthost.port:
            return (Host(0, host, (host,)),)
        if ":" in host or host.replace(".", "").isdigit():
            resolved = await self._resolver.resolve(f"[ipv6:{host}]" if ":" in host else f"[{host}]")
            return tuple(item._replace(name=host) for item in resolved)
        if smarthost.by_mx:
            return await self._resolver.resolve(host)
        ips = hosts_file().get(host.lower().rstrip("."), ())
        return (Host(0, host, ips),) if ips else await self._resolver.addresses_of(host)


def _fits(ip: str, order: EgressOrder) -> bool:
    """True if a host at ``ip`` can be reached as ``order`` says."""
    version = 6 if ":" in ip else 4
    if order.source is not None and (6 if ":" in order.source else 4) != version:
        return ip.startswith("/")
    return order.family not in ("ipv4", "ipv6") or order.family == f"ipv{version}"


def _session_terms(zone: Zone) -> str:
    """The settings of sessions that differ between destinations of a zone."""
    auth = zone.smarthost_auth
    return f"{zone.tls} {zone.tls_ca_file} {auth.username} {auth.password_file} {zone.timeouts}"


def _listens_on(host: str, ip: str) -> bool:
    """True if a listener on ``host`` accepts connections to ``ip``."""
    if host == "localhost":
        return ip in ("127.0.0.1", "::1")
    if host == ip:
        return True
    return host in ("0.0.0.0", "::") and _is_local(ip)


@lru_cache(maxsize=4096)
def _is_local(ip: str) -> bool:
    """True if ``ip`` is an address of this machine: only those can be bound."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((ip, 0))
        except OSError:
            return False
    return True


def hosts_file() -> Mapping[str, tuple[str, ...]]:
    """The addresses by name that the administrator of this machine has written down; read again when it changes."""
    try:
        return _read_hosts(HOSTS_FILE, HOSTS_FILE.stat().st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=1)
def _read_hosts(path: Path, changed_ns: int) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in path.read_text("utf-8", "replace").splitlines():
        ip, *names = line.partition("#")[0].split() or [""]
        try:
            normal = str(ip_address(ip))
        except ValueError:  # a link-local address with a zone, or no address
            continue
        for name in names:
            key = name.lower().rstrip(".")
            found[key] = tuple(dict.fromkeys((*found.get(key, ()), normal)))
    return found


def choose_source(
    pool: Sequence[PoolAddress], message: str, prefers: str, target_ip: str
) -> PoolAddress | None:
    """The address of ``pool`` from which ``message`` is sent to ``target_ip``; None if no family matches."""
    if target_ip.startswith("/"):
        return NO_SOURCE
    version = 6 if ":" in target_ip else 4
    fitting = [
        entry
        for entry in pool
        if entry.weight
        and not entry.disabled
        and (entry.address is None or (6 if ":" in entry.address else 4) == version)
    ]
    held = next((entry for entry in fitting if prefers and entry.address == prefers), None)
    return held or (ranked(fitting, message)[0] if fitting else None)


def credentials(zone: DeliverySettings) -> tuple[str, str] | None:
    """Name and password for the zone's smarthost. Raises DestinationFailed when the file cannot be read."""
    auth = zone.smarthost_auth
    if auth.username is None or auth.password_file is None:
        return None
    try:
        return auth.username, read_password(zone)
    except ConfigError as exc:
        raise DestinationFailed(0, "4.7.0", str(exc)) from exc


def read_password(zone: DeliverySettings) -> str:
    """The first line of the smarthost's password file. Raises ConfigError."""
    path = zone.smarthost_auth.password_file
    assert path is not None
    try:
        return path.read_text(encoding="utf-8").split("\n", 1)[0].strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: the password cannot be read: {exc}") from exc
