"""Tenants: whose mail it is, what they may send as, and where. Values are frozen."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_network
from typing import NamedTuple, NoReturn

from zonemta_py.config.endpoints import Network
from zonemta_py.config.values import DAY, ByteRate, Rate, choice, number
from zonemta_py.core.networks import network_of
from zonemta_py.smtp.address import AddressError, normalise_domain

# ---- Limits of the mail that tenants, users and hosts submit.

LONGEST_S = 31 * DAY


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """The amounts that are accepted in a time; of several rates all hold. ``sessions``: those that send mail.

    ``open_sessions``: how many SMTP sessions may be open at the same time.
    """

    sessions: tuple[Rate, ...] = ()
    messages: tuple[Rate, ...] = ()
    recipients: tuple[Rate, ...] = ()
    bytes: tuple[ByteRate, ...] = ()
    open_sessions: int | None = number(None, 1, 1_000_000)

    def rates(self) -> Iterator[tuple[str, Rate]]:
        """The limited amounts by the names of their fields, each with a rate."""
        for name in _RATES:
            for rate in getattr(self, name):
                yield name, rate

    @property
    def recipients_max(self) -> int | None:
        """The number of recipients that a message may have to be accepted at any time; None: any number."""
        return min((rate.events for rate in self.recipients), default=None)


_RATES = [each.name for each in fields(IntakeLimits) if each.name != "open_sessions"]
NO_LIMITS = IntakeLimits()


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of every user, and of every client by its address: there each tenant, or user of none, has its own."""

    user: IntakeLimits = NO_LIMITS
    address: IntakeLimits = NO_LIMITS


class Subject(NamedTuple):
    """A subject of limits: ``kind`` is tenant, user or address."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.capitalize()} {self.name}"


class LimitRules:
    """The limits of tenants, users and addresses."""

    def __init__(self, tenants: Mapping[str, IntakeLimits], clients: ClientLimits) -> None:
        self._tenants = {name: limits for name, limits in tenants.items() if limits != NO_LIMITS}
        self._user = clients.user if clients.user != NO_LIMITS else None
        self._address = clients.address if clients.address != NO_LIMITS else None
        self.empty = not self._tenants and self._user is None and self._address is None
        every = (*self._tenants.values(), clients.user, clients.address)
        self.has_open_sessions = any(each.open_sessions is not None for each in every)

    def of(self, tenant: str, user: str, client_ip: str) -> list[tuple[Subject, IntakeLimits]]:
        """The limits of a client; ``client_ip`` is empty for a program."""
        found = []
        if self.empty:
            return []
        if tenant in self._tenants:
            found.append((Subject("tenant", tenant), self._tenants[tenant]))
        if self._user is not None and user:
            found.append((Subject("user", user), self._user))
        if self._address is not None and client_ip:
            # Behind a proxy, or on one host, clients of several owners have one address.
            owner = f" of tenant {tenant}" if tenant else f" of user {user}" if user else ""
            found.append((Subject("address", network_of(client_ip) + owner), self._address))
        return found

    def limits_of(self, subject: Subject) -> IntakeLimits | None:
        """The limits of ``subject``, if it has any."""
        if subject.kind == "tenant":
            return self._tenants.get(subject.name)
        return self._user if subject.kind == "user" else self._address


# ---- Tenants.

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
ADDRESSES_MAX = 10_000
RESERVED = ("default", "include")

Complain = Callable[[str, str], NoReturn]


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """A customer, or a part of an organisation, that shares the relay with others.

    ``domains``: names, and ``*.name`` for those below it. ``zones`` None: all. ``pool``: instead
    of the zone's. ``weight``: its share of a
    destination while others wait for the same, relative to theirs.
    """

    users: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    domains: tuple[str, ...] = ()
    zones: tuple[str, ...] | None = None
    pool: str | None = None
    weight: int = number(1, 1, 1000)
    limits: IntakeLimits = NO_LIMITS
    scan: bool = True
    verify: str = choice("none", "dns")


def check_tenants(
    tenants: Mapping[str, TenantSettings],
    zones: Collection[str],
    pools: Collection[str],
    complain: Complain,
) -> None:
    """Refuse values that are not usable, alone or together."""
    users: dict[str, str] = {}
    networks: dict[Network, str] = {}
    for name, tenant in tenants.items():
        key = f"tenants.{name}"
        if not NAME.match(name) or name in RESERVED:
            complain(key, "a tenant's name is lower-case letters, digits, '_' and '-', and not default")
        for user in tenant.users:
            if not user or users.setdefault(user, name) != name:
                complain(f"{key}.users", f"'{user}' is a user of tenant '{users.get(user)}' too")
        for network in tenant.networks:
            if networks.setdefault(network, name) != name:
                complain(f"{key}.networks", f"{network} is one of tenant '{networks[network]}' too")
        for domain in tenant.domains:
            if not is_domain_pattern(domain):
                complain(
                    f"{key}.domains",
                    f"found '{domain}', expected a domain in lower-case A-labels, or *.domain",
                )
        _zones(tenant, zones, key, complain)
        if tenant.pool is not None and tenant.pool not in pools:
            complain(f"{key}.pool", f"no pool '{tenant.pool}'; pools: {', '.join(sorted(pools))}")


def _zones(tenant: TenantSettings, zones: Collection[str], key: str, complain: Complain) -> None:
    if tenant.zones == ():
        complain(f"{key}.zones", "at least one zone is needed; without the key all are allowed")
    for zone in tenant.zones or ():
        if zone not in zones:
            complain(f"{key}.zones", f"no zone '{zone}'; zones: {', '.join(sorted(zones))}")


def is_domain_pattern(text: str) -> bool:
    """True if ``text`` is a normalised domain, or ``*.`` and one."""
    name = text.removeprefix("*.")
    try:
        return normalise_domain(name) == name and not name.startswith("[")
    except AddressError:
        return False


def bases(domains: Iterable[str]) -> list[str]:
    """The domains of a tenant without ``*.``, each once."""
    return list(dict.fromkeys(domain.removeprefix("*.") for domain in domains))


class Tenant:
    """A tenant as mail needs it. ``is_verified``: its domains count only if DNS says so."""

    __slots__ = ("_above", "_domains", "is_verified", "name", "weight", "zones")

    def __init__(self, name: str, settings: TenantSettings) -> None:
        self.name = name
        self.zones = settings.zones
        self.weight = settings.weight
        self.is_verified = settings.verify == "dns"
        self._domains = frozenset(domain for domain in settings.domains if domain[0] != "*")
        self._above = frozenset(domain[2:] for domain in settings.domains if domain[0] == "*")

    def has(self, domain: str) -> bool:
        """True if ``domain``, which is normalised, is one of the tenant's."""
        return bool(self.base_of(domain))

    def base_of(self, domain: str) -> str:
        """The domain of the tenant's list, without ``*.``, that ``domain`` belongs to; empty for none."""
        if domain in self._domains:
            return domain
        while self._above and domain:
            domain = domain.partition(".")[2]
            if domain in self._above:
                return domain
        return ""

    def may_use(self, zone: str) -> bool:
        """True if the tenant's mail may go through ``zone``."""
        return self.zones is None or zone in self.zones


class Tenants:
    """The tenants of a configuration, by user and by network."""

    def __init__(self, settings: Mapping[str, TenantSettings]) -> None:
        self._by_name = {name: Tenant(name, each) for name, each in settings.items()}
        self._by_user = {
            user: self._by_name[name] for name, each in settings.items() for user in each.users
        }
        self._by_network: dict[Network, Tenant] = {
            network: self._by_name[name] for name, each in settings.items() for network in each.networks
        }
        self._by_address: dict[str, Tenant | None] = {}  # found before
        domains = tuple(domain for each in settings.values() for domain in each.domains)
        self._of_any = Tenant("", TenantSettings(domains=domains))
        # The longest prefix first: the most specific network counts.
        lengths = {(network.version, network.prefixlen) for network in self._by_network}
        self._prefixes = sorted(lengths, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def get(self, name: str) -> Tenant | None:
        return self._by_name.get(name)

    def of(self, user: str, client_ip: str) -> Tenant | None:
        """The tenant of a client: by the user, else, without AUTH, by the address."""
        return self._by_user.get(user) if user else self.of_address(client_ip)

    def of_address(self, client_ip: str) -> Tenant | None:
        """The tenant in whose networks the IP address is; empty: none."""
        if not self._prefixes:
            return None
        if client_ip not in self._by_address:
            if len(self._by_address) >= ADDRESSES_MAX:
                self._by_address.clear()
            self._by_address[client_ip] = self._look_up(client_ip)
        return self._by_address[client_ip]

    def _look_up(self, client_ip: str) -> Tenant | None:
        ip = client_ip.removeprefix("::ffff:")
        version = 6 if ":" in ip else 4
        for each, length in self._prefixes if ip else ():
            if each == version:
                found = self._by_network.get(ip_network((ip, length), strict=False))
                if found is not None:
                    return found
        return None

    def signs_for(self, name: str, domain: str) -> bool:
        """True if mail of the tenant ``name`` may bear a signature of ``domain``.

        That of no tenant (empty) may bear those of domains that no tenant has.
        """
        if not name:
            return not self._of_any.has(domain)
        tenant = self._by_name.get(name)
        return tenant is not None and tenant.has(domain)


def limit_rules(tenants: Mapping[str, TenantSettings], clients: ClientLimits) -> LimitRules:
    return LimitRules({name: each.limits for name, each in tenants.items()}, clients)
