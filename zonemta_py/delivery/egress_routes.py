"""Where the mail of a zone's destinations goes: to which provider, from which pool, from which addresses."""

from typing import NamedTuple

from zonemta_py.config.destinations import ALL, DestinationTable
from zonemta_py.config.providers import SMARTHOST
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock
from zonemta_py.delivery.egress import Egress
from zonemta_py.delivery.local_agent import is_local
from zonemta_py.schedule.providers import BOTH
from zonemta_py.schedule.sources import PoolPart, common_families, parse_pool_key


class EgressRoute(NamedTuple):
    """Where the mail of a destination goes, and from which pool."""

    provider: str
    pool: str
    own_pool: str  # that of the zone, where a rule sends the mail from another one
    part: PoolPart = PoolPart("")  # of ``pool``, whose name it need not have
    families: str = BOTH  # over which its MX hosts can be reached

    def with_pool(self, part: str | None) -> "EgressRoute":
        """The route of mail that leaves from a part of a pool, or a pool; USUAL_POOL or None: from that of the destination."""
        if not part:
            return self
        found = parse_pool_key(part)
        return self._replace(pool=found.pool or self.pool, part=found)

    @property
    def gate(self) -> str:
        """What waits for the same addresses has the same one."""
        name = self.part._replace(pool=self.pool).key
        return name if self.families == BOTH else f"{name} {self.families}"


class EgressRoutes:
    """The routes of one zone."""

    def __init__(self, zone: Zone, egress: Egress) -> None:
        self._egress = egress
        self.configure(zone)

    def configure(self, zone: Zone) -> None:
        """Use other settings."""
        self.table = DestinationTable(zone)
        self.is_local = is_local(zone)

    def of(self, destination: str) -> EgressRoute | None:
        """The route of a destination; None while its provider is not known."""
        settings = self.table.settings(destination)
        if destination.startswith(ALL) or settings.smarthost:
            return EgressRoute(SMARTHOST, settings.pool, settings.pool)
        if self.is_local:
            return EgressRoute("", settings.pool, settings.pool)
        provider = self._egress.providers.get(destination)
        if provider is None:
            return None
        pool = self._egress.rerouted_pool(provider, settings.pool)
        families = self._egress.providers.families(destination)
        return EgressRoute(provider, pool, settings.pool, families=families)

    def sources(self, route: EgressRoute) -> list[PoolAddress]:
        """The addresses of the pool of ``route`` that reach its MX hosts."""
        family = self._egress.providers.table.settings(route.provider).family
        return self._egress.sources(route.pool, common_families(family, route.families))

    def provider(self, destination: str) -> str:
        """The provider of ``destination``, as events have it; empty where it is not looked up."""
        route = self.of(destination)
        return route.provider if route is not None and route.provider != SMARTHOST else ""

    def must_look_up(self, destination: str) -> bool:
        """Whether its MX hosts must be found before its mail leaves: they were not, the last time."""
        now_s = clock.monotonic_s()
        return self._egress.providers.is_not_found(destination, now_s) and self.asks_hosts(destination)

    def asks_hosts(self, destination: str) -> bool:
        """Whether the next request to ``destination`` is to find its MX hosts again."""
        if self.is_local or destination.startswith(ALL) or self.table.settings(destination).smarthost:
            return False
        return self._egress.providers.is_stale(destination, clock.monotonic_s())
