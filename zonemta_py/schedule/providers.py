"""To which provider the mail of each domain goes, as it was found last. Pure; times are monotonic seconds.

The provider of a domain in the table is known at once. Any other is looked up before its first delivery, and again by
the deliveries themselves: one that comes after FRESH_S asks for the hosts.
"""

from collections import OrderedDict
from typing import NamedTuple

from zonemta_py.config.providers import ProviderTable
from zonemta_py.smtp.mx_order import MxAnswer

FRESH_S = 3600.0
NOT_FOUND_S = 10.0  # after a look-up that found no host: a name server may be back soon
DOMAINS_MAX = 500_000
NAMES_MAX = 2 * DOMAINS_MAX  # also those of domains that are not known any more
IPV4, IPV6, BOTH = "ipv4", "ipv6", "both"


class _Known(NamedTuple):
    provider: str
    families: str
    until_s: float


class Providers:
    """The map from domains to providers."""

    def __init__(self, table: ProviderTable) -> None:
        self.table = table
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._names: dict[str, str] = {}  # one object for each name: most domains share a few

    def configure(self, table: ProviderTable) -> None:
        """Use another table: what is known is found again."""
        self.table = table
        self._known.clear()

    def get(self, domain: str) -> str | None:
        """The provider of ``domain``; None: it has to be looked up."""
        known = self._known.get(domain)
        if known is not None:
            return known.provider
        return self.table.of_domain(domain) or None

    def families(self, domain: str) -> str:
        """Over which addresses its exchangers can be reached, as far as that is known."""
        known = self._known.get(domain)
        return known.families if known is not None else BOTH

    def is_stale(self, domain: str, now_s: float) -> bool:
        """Whether the next delivery should ask for its hosts."""
        known = self._known.get(domain)
        return known is None or known.until_s < now_s

    def learn(self, domain: str, answer: MxAnswer, now_s: float) -> str:
        """The exchangers of ``domain`` were found; returns its provider. None were: what is known stays, and is asked for again soon."""
        known = self._known.get(domain)
        if known is not None and not answer.hosts:
            self._known[domain] = known._replace(until_s=now_s + NOT_FOUND_S)
            return known.provider
        name = self.table.of(domain, answer.hosts)
        if len(self._names) > NAMES_MAX:
            self._names = {each.provider: each.provider for each in self._known.values()}
        name = self._names.setdefault(name, name)
        families = IPV4 if not answer.has_ipv6 else IPV6 if not answer.has_ipv4 else BOTH
        if known is not None:
            self._known.move_to_end(domain)
        fresh_s = FRESH_S if answer.hosts else NOT_FOUND_S
        self._known[domain] = _Known(name, families, now_s + fresh_s)
        if len(self._known) > DOMAINS_MAX:
            self._known.popitem(last=False)
        return name

    def names(self) -> list[str]:
        """The providers that were found."""
        return list(self._names)

    def domains(self, provider: str) -> int:
        """How many known domains belong to ``provider``."""
        return sum(1 for known in self._known.values() if known.provider == provider)
