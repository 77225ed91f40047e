"""From a recipient to its zone (the first rule that matches, else ``default``) and its destination. Pure.

A header rule may take the zone's name from the field's value. Intake applies header rules only to
submitters that may relay, and removes the field from the message.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from ipaddress import ip_address

from zonemta_py.config.endpoints import Network
from zonemta_py.config.schema import Config
from zonemta_py.config.tenants import Tenant
from zonemta_py.config.zones import DestinationTable, Zone
from zonemta_py.core.errors import NotAccepted
from zonemta_py.core.text import one_line

DEFAULT_ZONE = "default"
ZONE_SHOWN = 64  # characters of an unknown zone in a reply
DEQUEUE_TRANSPORT = "dequeue"  # of zones whose mail a program dequeues
DEQUEUE_DESTINATION = "*"  # of all mail in such a zone

_address = lru_cache(maxsize=4096)(ip_address)  # a client sends many messages from one address


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule of the configuration, with one condition. Globs are compiled, the header is in lower case."""

    header: str | None
    sender_domain: re.Pattern[str] | None
    recipient_domain: re.Pattern[str] | None
    source: Network | None
    zone: str | None
    is_request: bool = False  # of the submitter, not a rule of the operator

    def zone_of(
        self, recipient_domain: str, sender_domain: str, source: str, headers: Mapping[str, str]
    ) -> str | None:
        """The zone that the rule gives a recipient, or None if its condition is not met."""
        if self.header is not None:
            value = headers.get(self.header)
            return None if value is None else self.zone or value.strip().lower()
        if self.sender_domain is not None:
            matches = self.sender_domain.match(sender_domain) is not None
        elif self.recipient_domain is not None:
            matches = self.recipient_domain.match(recipient_domain) is not None
        else:
            matches = self.source is not None and source != "" and _within(source, self.source)
        return self.zone if matches else None


@dataclass(frozen=True, slots=True)
class Router:
    """The routing rules of one configuration. ``headers``: lower-case names of the fields that route."""

    zones: frozenset[str]
    rules: tuple[_Rule, ...]
    headers: frozenset[bytes]

    def route(
        self,
        recipient_domain: str,
        sender_domain: str,
        source: str,
        headers: Mapping[str, str],
        tenant: Tenant | None = None,
    ) -> str:
        """The zone of one recipient: that of the first rule that matches and names a known zone.

        Domains are normalised. ``source`` is the client's IP address, empty for mail of the relay itself.
        ``headers`` are the values of routing headers by their lower-case names. Raises NotAccepted when the
        submitter asks for a zone that ``tenant`` may not use; other rules that name one are skipped.
        """
        for rule in self.rules:
            zone = rule.zone_of(recipient_domain, sender_domain, source, headers)
            if zone is None or (tenant is None and zone not in self.zones):
                continue
            if tenant is None or (zone in self.zones and tenant.may_use(zone)):
                return zone
            if rule.is_request:
                raise NotAccepted(f"550 5.7.1 Tenant {tenant.name} may not use zone '{_shown(zone)}'")
        if tenant is None or tenant.zones is None or DEFAULT_ZONE in tenant.zones:
            return DEFAULT_ZONE
        return tenant.zones[0]

    def unknown_zone(self, headers: Mapping[str, str]) -> str:
        """The zone for which a header asks first, if there is none of this name; as it may be shown. Else empty."""
        for rule in self.rules:
            if rule.header is not None and rule.zone is None and (zone := headers.get(rule.header)):
                return "" if zone.strip().lower() in self.zones else _shown(zone.strip().lower())
        return ""


def make_router(config: Config) -> Router:
    """The router of ``config``."""
    rules = tuple(
        _Rule(
            header=rule.header.lower() if rule.header else None,
            sender_domain=_glob(rule.sender_domain),
            recipient_domain=_glob(rule.recipient_domain),
            source=rule.source,
            zone=rule.zone,
            is_request=rule.header is not None,
        )
        for rule in config.routing
    )
    headers = frozenset(rule.header.encode() for rule in rules if rule.header)
    return Router(frozenset(config.zones), rules, headers)


def one_zone(zone: str) -> Router:
    """A router that returns ``zone`` for every recipient."""
    everything = _Rule(None, None, re.compile(""), None, zone, is_request=True)
    return Router(frozenset((zone,)), (everything,), frozenset())


class Destinations:
    """The destination at which a recipient's mail waits."""

    def __init__(self, zones: Mapping[str, Zone]) -> None:
        self.configure(zones)

    def configure(self, zones: Mapping[str, Zone]) -> None:
        """Use the zones of a reload. They must give every domain the destination that it had."""
        self._zones = zones
        self._tables = {name: DestinationTable(zone) for name, zone in zones.items()}

    def __call__(self, zone: str, domain: str) -> str:
        """DEQUEUE_DESTINATION, or the destination of ``domain`` in ``zone`` (``config.zones``)."""
        settings = self._zones.get(zone)
        if settings is None:
            return domain
        if settings.transport == DEQUEUE_TRANSPORT:
            return DEQUEUE_DESTINATION
        return self._tables[zone].name_of(domain)


def _shown(zone: str) -> str:
    """The name of a zone that a client has written."""
    return one_line(zone[:ZONE_SHOWN], "?").encode("ascii", "backslashreplace").decode()[:ZONE_SHOWN]


def _glob(pattern: str | None) -> re.Pattern[str] | None:
    return re.compile(translate(pattern.lower())) if pattern is not None else None


def _within(source: str, network: Network) -> bool:
    address = _address(source)
    return address.version == network.version and address in network


def matching_networks(source: str, networks: Sequence[Network]) -> bool:
    """True if the IP address ``source`` is in one of ``networks``."""
    return any(_within(source, network) for network in networks)
