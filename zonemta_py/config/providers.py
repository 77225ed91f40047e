"""Mailbox providers: whose hosts receive the mail of a domain, and what they accept. Values are frozen.

    providers:
      google: {mx: ["*.google.com"], limits: {sessions: 20, rate: [10/s, 100000/d], connect_rate: 60/m}}

The relay ships a table, ``config/providers.yaml``. A file of the user adds providers, or replaces some by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from zonemta_py.config.load import read_document
from zonemta_py.config.shipped import shipped_file
from zonemta_py.config.units import Rate, choice, number
from zonemta_py.core.errors import ConfigError

SHIPPED = "providers.yaml"
NAME_MAX = 60


@dataclass(frozen=True, slots=True)
class ProviderLimits:
    """What a provider accepts. ``sessions`` of the relay at the same time; the other limits are for each address.

    ``rate``: messages, ``connect_rate``: new sessions; of several rates all hold, in any period of their length.
    """

    sessions: int | None = number(None, 1, 100_000)
    sessions_per_address: int | None = number(None, 1, 100_000)
    messages_per_session: int | None = number(None, 1, 1_000_000)
    rate: tuple[Rate, ...] = ()
    connect_rate: tuple[Rate, ...] = ()


NO_LIMITS = ProviderLimits()


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """One provider: patterns of the names of its hosts, and domains that belong to it whatever their hosts.

    ``family``: over which addresses its hosts are reached.
    """

    mx: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    family: str = choice("both", "ipv4", "ipv6")
    limits: ProviderLimits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class ProviderFile:
    """A file of providers."""

    providers: dict[str, ProviderSettings] = field(default_factory=dict)


class ProviderTable:
    """The provider of a domain, by its exchangers. Pure."""

    def __init__(self, providers: Mapping[str, ProviderSettings]) -> None:
        self.providers = dict(providers)
        self._domains = {domain: name for name, each in providers.items() for domain in each.domains}
        self._patterns = [(pattern, name) for name, each in providers.items() for pattern in each.mx]
        self._of_host = lru_cache(maxsize=10_000)(self._find)

    def of_domain(self, domain: str) -> str:
        """The provider that lists ``domain``, or empty."""
        return self._domains.get(domain, "")

    def of(self, domain: str, hosts: tuple[str, ...]) -> str:
        """The provider of ``domain``, whose exchangers of the best preference are ``hosts``.

        If not all of them belong to one provider of the table, the set of hosts is a provider of its own.
        """
        listed = self._domains.get(domain)
        if listed is not None:
            return listed
        found = {self._of_host(host) for host in hosts}
        if len(found) == 1 and (name := found.pop()):
            return name
        return own_provider(hosts) if hosts else domain

    def settings(self, provider: str) -> ProviderSettings:
        """Those of ``provider``; without limits if the table does not have it, unless it has ``default``."""
        found = self.providers.get(provider)
        return found if found is not None else self.providers.get("default", _OTHER)

    def _find(self, host: str) -> str:
        host = host.rstrip(".").lower()
        return next((name for pattern, name in self._patterns if fnmatchcase(host, pattern)), "")


_OTHER = ProviderSettings()


def own_provider(hosts: tuple[str, ...]) -> str:
    """The name of the provider that consists of ``hosts``: the first, and how many others there are."""
    names = sorted({host.rstrip(".").lower() for host in hosts})
    if len(names) == 1:
        return names[0]
    joined = ",".join(names)
    if len(joined) <= NAME_MAX:
        return joined
    return f"{names[0]},+{len(names) - 1}:{blake2b(joined.encode(), digest_size=4).hexdigest()}"


def read_providers(path: Path) -> dict[str, ProviderSettings]:
    """The providers of a file. Raises ConfigError with file, line and key."""
    found, reader = read_document(path, ProviderFile)
    owners: dict[str, str] = {}
    for name, each in found.providers.items():
        key = f"providers.{name}"
        for pattern in each.mx:
            if pattern != pattern.lower() or pattern.endswith(".") or not pattern.strip("*.?"):
                reader.complain(f"{key}.mx", f"found '{pattern}', expected a name such as *.google.com")
        for each_key in (*each.mx, *each.domains):
            if owners.setdefault(each_key, name) != name:
                reader.complain(key, f"'{each_key}' is also in provider '{owners[each_key]}'")
    return found.providers


def load_providers(file: Path | None, *, shipped: bool) -> ProviderTable:
    """The table: the shipped providers, then those of ``file``. Raises ConfigError."""
    found = read_providers(shipped_file(SHIPPED)) if shipped else {}
    for name, each in (read_providers(file) if file is not None else {}).items():
        before = found.get(name)
        if each.mx or each.domains or name == "default":
            found[name] = each
        elif before is not None:  # only its limits are other ones
            found[name] = replace(each, mx=before.mx, domains=before.domains)
        else:
            raise ConfigError(f"{file}: providers.{name}: expected mx, names of hosts, or domains")
    return ProviderTable(found)


def is_limited(limits: ProviderLimits) -> bool:
    """Whether ``limits`` limit anything that the queue's process counts."""
    return any(
        getattr(limits, each.name) for each in fields(limits) if each.name != "messages_per_session"
    )
