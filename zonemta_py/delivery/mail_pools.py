"""Which mail leaves from another pool than that of its destination: a tenant's own, or the fallback pool of a zone."""

from zonemta_py.config.destinations import DestinationTable
from zonemta_py.config.schema import Config
from zonemta_py.core.model import USUAL_POOL
from zonemta_py.queue.format.records import TENANT_LANE, Waiting
from zonemta_py.queue.submitter_queues import ONE_POOL, MailPools
from zonemta_py.schedule.sources import fallback_pool


class ConfiguredPools:
    """The ``MailPools`` of a configuration."""

    def __init__(self, config: Config) -> None:
        self._settings = (
            [
                (
                    name,
                    zone.transport,
                    key,
                    getattr(part, "domains", ()),
                    part.fallback_pool,
                    part.fallback_after,
                )
                for name, zone in config.zones.items()
                for key, part in zone.parts()
            ],
            {name: each.pool for name, each in config.tenants.items()},
        )
        zones = {name: zone for name, zone in config.zones.items() if zone.transport == "smtp"}
        self._zones = set(zones)
        self._of_submitters = {
            TENANT_LANE + name: each.pool
            for name, each in config.tenants.items()
            if each.pool is not None
        }
        self._tables = {
            name: DestinationTable(zone)
            for name, zone in zones.items()
            if any(part.fallback_pool is not None for _, part in zone.parts())
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfiguredPools) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._zones)))

    def __bool__(self) -> bool:
        return bool(self._of_submitters or self._tables)

    def of(self, zone: str, destination: str, record: Waiting) -> str:
        """See ``MailPools``."""
        if self._of_submitters and zone in self._zones:
            own = self._of_submitters.get(record.submitter)
            if own is not None:
                return own
        table = self._tables.get(zone) if record.attempts else None
        if table is None:
            return USUAL_POOL
        return fallback_pool(table.settings(destination), record.attempts, record.reply_class)


def mail_pools(config: Config) -> MailPools:
    """The pools of ``config``."""
    found = ConfiguredPools(config)
    return found if found else ONE_POOL
