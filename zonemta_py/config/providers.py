"""Mailbox providers: whose hosts receive the mail of a domain, and what they accept. Values are frozen.

    providers:
      google: {mx: ["*.google.com"], limits: {sessions: 20, rate: [10/s, 100000/d], connect_rate: 60/m}}

The relay ships a table, ``config/providers.yaml``. A file of the user adds providers, or replaces some by name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

from zonemta_py.config.load import read_document, shipped_file
from zonemta_py.config.reader import Reader
from zonemta_py.config.values import Rate, choice, number
from zonemta_py.core.text import meant
from zonemta_py.smtp.address import AddressError, normalise_domain

SHIPPED = "providers.yaml"
NAME_MAX = 60
DEFAULT = "default"  # the settings of every provider that is not in the table
SMARTHOST = "smarthost"  # the provider of what the smarthosts of a zone get
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}\Z")
_MX = re.compile(r"[a-z0-9_*?-]+(?:\.[a-z0-9_*?-]+)*\Z")


@dataclass(frozen=True, slots=True)
class ProviderLimits:
    """Limits of a provider. ``sessions`` of the relay at the same time; the other limits are for each address.

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
    """One provider: patterns of the names of its hosts, and domains that are its own whatever their hosts.

    ``family``: over which addresses its hosts are reached.
    """

    INHERITS_DEFAULT: ClassVar[bool] = False  # ``default`` is for those that are in no table

    mx: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    family: str = choice("both", "ipv4", "ipv6")
    limits: ProviderLimits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class ProviderFile:
    """A file of providers."""

    providers: dict[str, ProviderSettings] = field(default_factory=dict)


class ProviderTable:
    """The provider of a domain, by its MX hosts. Pure."""

    def __init__(self, providers: Mapping[str, ProviderSettings]) -> None:
        self.providers = dict(providers)
        self._domains = {domain: name for name, each in providers.items() for domain in each.domains}
        self._patterns = [(pattern, name) for name, each in providers.items() for pattern in each.mx]
        self._of_host = lru_cache(maxsize=10_000)(self._find)

    def owners(self) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """The values that decide the provider of each domain."""
        return [(name, each.mx, each.domains) for name, each in self.providers.items()]

    def of_domain(self, domain: str) -> str:
        """The provider that lists ``domain``, or empty."""
        return self._domains.get(domain, "")

    def of(self, domain: str, hosts: tuple[str, ...]) -> str:
        """The provider of ``domain``, whose MX hosts of the best preference are ``hosts``.

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
        """The settings of ``provider``; without limits if the table does not have it, unless it has ``default``.

        A smarthost has no limits: it is not a provider that judges our addresses.
        """
        found = self.providers.get(provider)
        if found is not None:
            return found
        return _OTHER if provider == SMARTHOST else self.providers.get(DEFAULT, _OTHER)

    def problem_of(self, provider: str) -> str:
        """The reason that no mail is ever for ``provider``; empty if its name is in the table, or that of a host or domain."""
        if provider != provider.lower():
            return f"found '{provider}', expected lower case"
        if provider == DEFAULT:
            return f"'{DEFAULT}' is no provider, but has the limits of those that are not in the table"
        if provider in self.providers or provider == SMARTHOST:
            return ""
        if "." in provider and " " not in provider:
            return ""  # hosts that are a provider of their own, which may not have been met yet
        known = {SMARTHOST, *self.providers} - {DEFAULT}
        return f"found '{provider}': the table has no such provider, and it is not the name of a host; {meant(provider, known)}"

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


def is_mx_pattern(text: str) -> bool:
    """True if ``text`` is a pattern of hosts that does not match all of them."""
    return _MX.match(text) is not None and bool(text.strip("*.?-_"))


def is_domain(text: str) -> bool:
    """True if ``text`` is a domain in the form in which recipients have it: lower case, A-labels."""
    try:
        return normalise_domain(text) == text
    except AddressError:
        return False


def read_providers(
    path: Path, known: Mapping[str, ProviderSettings] | None = None
) -> dict[str, ProviderSettings]:
    """The providers of a file; one that has only other limits has the hosts and domains of ``known``.

    Raises ConfigError with file, line and key.
    """
    found, reader = read_document(path, ProviderFile)
    known = known or {}
    owners: dict[str, str] = {}
    for name, each in found.providers.items():
        _check(name, each, reader)
        for pattern in (*each.mx, *each.domains):
            if owners.setdefault(pattern, name) != name:
                reader.complain(
                    f"providers.{name}", f"'{pattern}' is also in provider '{owners[pattern]}'"
                )
        if not each.mx and not each.domains and name not in known and name != DEFAULT:
            reader.complain(
                f"providers.{name}",
                f"mx, names of hosts, or domains are needed: the table has no provider '{name}'; {meant(name, known)}",
            )
    _check_shadows(found.providers, known, reader)
    return {
        name: each
        if each.mx or each.domains or name == DEFAULT
        else replace(each, mx=known[name].mx, domains=known[name].domains)
        for name, each in found.providers.items()
    }


def _check(name: str, settings: ProviderSettings, reader: Reader) -> None:
    key = f"providers.{name}"
    if not NAME.match(name) or name == SMARTHOST:
        reader.complain(
            key, f"a name is lower-case letters, digits, '_', '.' and '-', and not {SMARTHOST}"
        )
    if name == DEFAULT and (settings.mx or settings.domains):
        reader.complain(key, "is for providers that are not in the table: it has no mx and no domains")
    for pattern in settings.mx:
        if not is_mx_pattern(pattern):
            reader.complain(
                f"{key}.mx",
                f"found '{pattern}', expected a name such as *.google.com in lower case, with * and ? for any characters",
            )
    for domain in settings.domains:
        if not is_domain(domain):
            reader.complain(
                f"{key}.domains",
                f"found '{domain}', expected a domain such as example.com, in lower case and A-labels",
            )


def _check_shadows(
    own: Mapping[str, ProviderSettings], known: Mapping[str, ProviderSettings], reader: Reader
) -> None:
    """No pattern of ``own`` is one of a provider in ``known`` that stays: that one is found first."""
    taken = {
        pattern: name
        for name, each in known.items()
        if name not in own or not (own[name].mx or own[name].domains)
        for pattern in each.mx
    }
    for name, each in own.items():
        for pattern in each.mx:
            if taken.get(pattern, name) != name:
                reader.complain(
                    f"providers.{name}.mx",
                    f"'{pattern}' is also in provider '{taken[pattern]}' of the relay, which is found first: give that other limits",
                )


def load_providers(file: Path | None, *, shipped: bool) -> ProviderTable:
    """The table: the shipped providers, then those of ``file``. Raises ConfigError."""
    found = _shipped() if shipped else {}
    own = read_providers(file, found) if file is not None else {}
    return ProviderTable({**found, **own})


@cache
def _shipped() -> Mapping[str, ProviderSettings]:
    """Read once: the file is a part of this version (decision 148)."""
    return read_providers(shipped_file(SHIPPED))


def is_limited(limits: ProviderLimits) -> bool:
    """True if ``limits`` limit anything that the queue's process counts."""
    return any(
        getattr(limits, each.name) for each in fields(limits) if each.name != "messages_per_session"
    )
