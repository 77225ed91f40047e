"""Opening a queue as the configuration says: the only place where its parts are put together."""

import socket
from functools import partial

from zonemta_py.config.reply_rules import make_classifier
from zonemta_py.config.schema import Config
from zonemta_py.config.tenants import limit_rules
from zonemta_py.config.values import DAY
from zonemta_py.config.zones import DestinationTable
from zonemta_py.core.model import USUAL_POOL, PoolKey
from zonemta_py.delivery.reports import BounceReporter
from zonemta_py.egress.sources import LastAttempt, addresses_of, pool_key_after
from zonemta_py.events.recovery import last_seq, newest_message
from zonemta_py.queue.format.records import TENANT_FLOW, RecipientRecord
from zonemta_py.queue.queue import LONGEST_DELAY_MS, Queue, QueueOptions
from zonemta_py.queue.ready.streams import ONE_POOL, MailPools
from zonemta_py.queue.ready.windows import DestinationOf, OnReady, ignore_ready
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.routing import Destinations, make_router
from zonemta_py.smtp.reply_class import ReplyClassifier
from zonemta_py.storage.interface import Access, Store
from zonemta_py.storage.open import open_store

# ---- Which mail leaves from a pool other than its destination's, and which from some addresses of its pool only.
#
# Another pool is a tenant's own, or the fallback pool of a zone. Of a pool with several addresses, recipients that were
# greylisted leave from the same one again, and those that were blocked from another one.


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
            TENANT_FLOW + name: each.pool
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
        """The key of the addresses for a recipient: the pool of its submitter, or after an attempt what ``pool_key_after`` says."""
        pool = USUAL_POOL
        if self._of_submitters and zone in self._zones:
            pool = self._of_submitters.get(record.submitter, USUAL_POOL)
        had_attempt = record.attempts or record.source  # one that does not count has a source
        table = self._tables.get(zone) if had_attempt else None
        if table is None:
            return PoolKey(pool)
        last = LastAttempt(record.attempts, record.source, record.reply_class)
        return pool_key_after(table.settings(destination), self._addresses, last, pool)

    def share_divisor(self, pool_key: PoolKey) -> int:
        """The number of addresses of the largest pool, except the usual one, for mail that leaves from one address; else 1."""
        return self._addresses_max if pool_key.address else 1


def mail_pools(config: Config) -> MailPools:
    """The pools of ``config``."""
    found = ConfiguredPools(config)
    return found if found else ONE_POOL


# ---- open queue


def open_queue(
    config: Config,
    *,
    store: Store | None = None,
    standby: bool = False,
    access: Access = Access.CREATE,
    reports: BounceReporter | None = None,
    destination_of: DestinationOf | None = None,
    on_ready: OnReady = ignore_ready,
) -> Queue:
    """The queue of ``config``, not yet recovered. Raises LocalError, QueueLocked.

    ``store``: an open store instead of the configured one. ``standby`` and ``access``: see ``open_store``.
    """
    hostname = config.hostname or socket.getfqdn()
    store = store or open_store(config.queue, standby=standby, access=access)
    log = config.events.directory
    try:
        identity = begin_boot(store, access, partial(last_seq, log), partial(newest_message, log))
        queue = Queue(
            store,
            identity,
            _queue_options(config),
            destination_of or Destinations(config.zones),
            reports=reports or BounceReporter(config, hostname, make_router(config)),
            on_ready=on_ready,
        )
        configure_queue(queue, config, make_classifier(config.classify.file))
    except BaseException:
        store.close()
        raise
    return queue


def configure_queue(queue: Queue, config: Config, classifier: ReplyClassifier) -> None:
    """Use what a reload may change."""
    queue.classifier = classifier
    queue.limits.configure(limit_rules(config.tenants, config.limits))
    queue.windows.set_pools(mail_pools(config))


def _queue_options(config: Config) -> QueueOptions:
    settings = config.queue
    return QueueOptions(
        sync=settings.durability == "sync",
        window=settings.ready_window,
        body_cache_bytes=settings.body_cache,
        poison_after=settings.poison_after,
        longest_delay_ms=_longest_delay_ms(config),
    )


def _longest_delay_ms(config: Config) -> int:
    """No retry is later than the age at which its zone gives up; a day more for a changed configuration.

    A function may ask for any delay.
    """
    retries = [part.retry for zone in config.zones.values() for _, part in zone.parts()]
    if any(retry.policy in ("function", "backoff") for retry in retries):
        return LONGEST_DELAY_MS
    longest_s = max((retry.give_up_after for retry in retries), default=0.0)
    return round((longest_s + DAY) * 1000)
