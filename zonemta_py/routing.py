"""From a recipient to its zone: the first rule that matches, else ``default``. Pure.

A header rule names the zone by its value; it counts only from submitters that may relay, and the
header is taken out of the message.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from ipaddress import ip_address

from zonemta_py.config.schema import Config, Network, Zone

DEFAULT_ZONE = "default"
DEQUEUE_TRANSPORT = "dequeue"  # of zones whose mail a program takes out
DEQUEUE_DESTINATION = "*"  # where all mail of such a zone waits, whatever its domains

_address = lru_cache(maxsize=4096)(ip_address)  # a client sends thousands of messages from one


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule of the configuration with its glob compiled."""

    header: str | None
    sender_domain: re.Pattern[str] | None
    recipient_domain: re.Pattern[str] | None
    source: Network | None
    zone: str | None


@dataclass(frozen=True, slots=True)
class Router:
    """The routing rules of one configuration."""

    zones: frozenset[str]
    rules: tuple[_Rule, ...]
    headers: frozenset[bytes]  # lower-case names of fields that route, to be taken out

    def route(
        self, recipient_domain: str, sender_domain: str, source: str, headers: Mapping[str, str]
    ) -> str:
        """The zone of one recipient.

        Domains are normalised, ``source`` is the client's IP address or empty (mail made here),
        ``headers`` maps lower-case names of routing headers to their values.
        """
        for rule in self.rules:
            zone = rule.zone
            if rule.header is not None:
                value = headers.get(rule.header)
                if value is None:
                    continue
                zone = zone or value.strip().lower()
                if zone in self.zones:
                    return zone
            elif rule.sender_domain is not None:
                if zone and rule.sender_domain.match(sender_domain):
                    return zone
            elif rule.recipient_domain is not None:
                if zone and rule.recipient_domain.match(recipient_domain):
                    return zone
            elif rule.source is not None and zone and source and _within(source, rule.source):
                return zone
        return DEFAULT_ZONE


def make_router(config: Config) -> Router:
    """The rules of ``config``, ready to be asked."""
    rules = tuple(
        _Rule(
            header=rule.header.lower() if rule.header else None,
            sender_domain=_glob(rule.sender_domain),
            recipient_domain=_glob(rule.recipient_domain),
            source=rule.source,
            zone=rule.zone,
        )
        for rule in config.routing
    )
    headers = frozenset(rule.header.encode() for rule in rules if rule.header)
    return Router(frozenset(config.zones), rules, headers)


def one_zone(zone: str) -> Router:
    """Everything goes to ``zone``."""
    everything = _Rule(None, None, re.compile(""), None, zone)
    return Router(frozenset((zone,)), (everything,), frozenset())


class Destinations:
    """Which destination a recipient's mail waits at; ``zones`` is replaced when a configuration is reloaded."""

    def __init__(self, zones: Mapping[str, Zone]) -> None:
        self.zones = zones

    def __call__(self, zone: str, domain: str) -> str:
        """The smarthost of ``zone``, DEQUEUE_DESTINATION, or else the recipient's domain."""
        settings = self.zones.get(zone)
        if settings is None:
            return domain
        if settings.transport == DEQUEUE_TRANSPORT:
            return DEQUEUE_DESTINATION
        return domain if settings.smarthost is None else str(settings.smarthost)


def _glob(pattern: str | None) -> re.Pattern[str] | None:
    return re.compile(translate(pattern.lower())) if pattern is not None else None


def _within(source: str, network: Network) -> bool:
    address = _address(source)
    return address.version == network.version and address in network


def matching_networks(source: str, networks: Sequence[Network]) -> bool:
    """Whether ``source`` lies in one of ``networks``."""
    return any(_within(source, network) for network in networks)
