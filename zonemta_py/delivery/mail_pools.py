"""Which mail leaves from a pool other than its destination's, and which from some addresses of its pool only.

Another pool is a tenant's own, or the fallback pool of a zone. Of a pool with several addresses, recipients that were
greylisted leave from the same one again, and those that were blocked from another one.
"""

from zonemta_py.config.destinations import DestinationTable
from zonemta_py.config.schema import Config
from zonemta_py.core.model import USUAL_POOL, PoolKey
from zonemta_py.queue.format.records import TENANT_LANE, RecipientRecord
from zonemta_py.queue.submitter_queues import ONE_POOL, MailPools
from zonemta_py.schedule.sources import addresses_of, fallback_pool, parse_pool_key, part_after


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
            addresses_of(config.pools),
        )
        self._addresses = self._settings[2]
        own = (each for pool, each in self._addresses.items() if pool != USUAL_POOL)
        self._addresses_max = max((len(each) for each in own), default=1)
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
            if self._addresses or any(part.fallback_pool is not None for _, part in zone.parts())
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfiguredPools) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._zones)))

    def __bool__(self) -> bool:
        return bool(self._of_submitters or self._tables)

    def pool_key(self, zone: str, destination: str, record: RecipientRecord) -> PoolKey:
        """See ``MailPools``."""
        pool = USUAL_POOL
        if self._of_submitters and zone in self._zones:
            pool = self._of_submitters.get(record.submitter, USUAL_POOL)
        had_attempt = record.attempts or record.source  # one that does not count has a source
        table = self._tables.get(zone) if had_attempt else None
        if table is None:
            return pool
        if pool == USUAL_POOL:
            pool = fallback_pool(table.settings(destination), record.attempts, record.reply_class)
        addresses = self._addresses.get(pool, ())
        return part_after(pool, addresses, record.source, record.reply_class).key

    def share_divisor(self, pool_key: PoolKey) -> int:
        """See ``MailPools``."""
        return self._addresses_max if parse_pool_key(pool_key).address else 1


def mail_pools(config: Config) -> MailPools:
    """The pools of ``config``."""
    found = ConfiguredPools(config)
    return found if found else ONE_POOL
