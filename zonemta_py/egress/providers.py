"""To which provider the mail of each domain goes, as it was found last. Pure; times are monotonic seconds.

The provider of a domain in the table is known at once. Any other is looked up before its first delivery, and again by
the deliveries themselves: one that comes after FRESH_S asks for the hosts.
"""

from collections import OrderedDict
from typing import NamedTuple

from zonemta_py.config.providers import ProviderTable
from zonemta_py.egress.sources import BOTH, IPV4, IPV6
from zonemta_py.smtp.mx_order import MxAnswer

FRESH_S = 3600.0
# After a look-up that found no host: much shorter than the resolver remembers that it failed.
NOT_FOUND_S = 0.5
PARTIAL_S = (
    5.0  # after one in which a query failed; the resolver remembers that for as long, or for a minute
)
DOMAINS_MAX = 500_000
NAMES_MAX = 2 * DOMAINS_MAX  # also those of domains that are not known any more


class _Known(NamedTuple):
    """``hosts``: those of the best preference. ``version``: of the table that named the provider."""

    provider: str
    families: str
    until_s: float
    hosts: tuple[str, ...]
    version: int


class Providers:
    """The map from domains to providers."""

    def __init__(self, table: ProviderTable) -> None:
        self.table = table
        self._version = 0
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._names: dict[str, str] = {}  # one object for each name: most domains share a few
        self._host_sets: dict[tuple[str, ...], tuple[str, ...]] = {}  # the same

    def configure(self, table: ProviderTable) -> None:
        """Use another table. Known hosts stay: mail that is under way, or waits, has a provider all the time.

        The provider of a domain is found again when it is asked for: all at once would take seconds.
        """
        if table.owners() != self.table.owners():
            self._version += 1
            self._names.clear()
        self.table = table

    def get(self, domain: str) -> str | None:
        """The provider of ``domain``; None: it has to be looked up."""
        known = self._known.get(domain)
        if known is None:
            return self.table.of_domain(domain) or None
        if known.version != self._version:
            name = self._named(domain, known.hosts)
            self._known[domain] = known._replace(provider=name, version=self._version)
            return name
        return known.provider

    def families(self, domain: str) -> str:
        """Over which addresses its MX hosts can be reached, as far as that is known."""
        known = self._known.get(domain)
        return known.families if known is not None else BOTH

    def is_stale(self, domain: str, now_s: float) -> bool:
        """True if the next delivery should ask for its hosts."""
        known = self._known.get(domain)
        return known is None or known.until_s < now_s

    def is_not_found(self, domain: str, now_s: float) -> bool:
        """True if it must be looked up again before anything leaves: the last look-up found no host, a while ago."""
        return self.lacks_hosts(domain) and self.is_stale(domain, now_s)

    def lacks_hosts(self, domain: str) -> bool:
        """True if no host was ever found: ``get`` is a name of its own."""
        known = self._known.get(domain)
        return known is not None and not known.hosts

    def learn(self, domain: str, answer: MxAnswer, now_s: float) -> str:
        """The MX hosts of ``domain`` were found; returns its provider. None were: what is known stays, and is asked for again soon."""
        known = self._known.get(domain)
        if known is not None and not answer.hosts:
            self._known[domain] = known._replace(until_s=now_s + NOT_FOUND_S)
            return self.get(domain) or domain
        if len(self._names) > NAMES_MAX or len(self._host_sets) > NAMES_MAX:
            self._names = {each.provider: each.provider for each in self._known.values()}
            self._host_sets = {each.hosts: each.hosts for each in self._known.values()}
        name = self._named(domain, answer.hosts)
        families = IPV4 if not answer.has_ipv6 else IPV6 if not answer.has_ipv4 else BOTH
        if known is not None:
            self._known.move_to_end(domain)
        fresh_s = NOT_FOUND_S if not answer.hosts else FRESH_S if answer.is_whole else PARTIAL_S
        hosts = self._host_sets.setdefault(answer.hosts, answer.hosts)
        self._known[domain] = _Known(name, families, now_s + fresh_s, hosts, self._version)
        if len(self._known) > DOMAINS_MAX:
            self._known.popitem(last=False)
        return name

    def _named(self, domain: str, hosts: tuple[str, ...]) -> str:
        name = self.table.of(domain, hosts)
        return self._names.setdefault(name, name)

    def names(self) -> list[str]:
        """The providers that were found."""
        return list(self._names)
