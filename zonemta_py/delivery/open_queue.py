"""Opening a queue as the configuration says: the only place where its parts are put together."""

import socket
from functools import partial

from zonemta_py.config.reply_rules import make_classifier
from zonemta_py.config.schema import Config
from zonemta_py.config.tenants import limit_rules
from zonemta_py.config.units import DAY
from zonemta_py.delivery.bounces import BounceReporter
from zonemta_py.delivery.mail_pools import mail_pools
from zonemta_py.events.recovery import last_seq, newest_message
from zonemta_py.queue.options import LONGEST_DELAY_MS, QueueOptions
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.windows import DestinationOf, OnReady, ignore_ready
from zonemta_py.routing import Destinations, make_router
from zonemta_py.smtp.classification import ReplyClassifier
from zonemta_py.storage.interface import Access, Store
from zonemta_py.storage.open import open_store


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
    settings = config.queue
    hostname = config.hostname or socket.getfqdn()
    queue = Queue(
        store or open_store(settings, standby=standby, access=access),
        QueueOptions(
            sync=settings.durability == "sync",
            window=settings.ready_window,
            body_cache_bytes=settings.body_cache,
            poison_after=settings.poison_after,
            access=access,
            longest_delay_ms=_longest_delay_ms(config),
            end_of_log=partial(last_seq, config.events.directory),
            newest_in_log=partial(newest_message, config.events.directory),
        ),
        destination_of or Destinations(config.zones),
        reports=reports or BounceReporter(config, hostname, make_router(config)),
        on_ready=on_ready,
    )
    configure_queue(queue, config, make_classifier(config.classify.file))
    return queue


def configure_queue(queue: Queue, config: Config, classifier: ReplyClassifier) -> None:
    """Use what a reload may change."""
    queue.classifier = classifier
    queue.limits.configure(limit_rules(config.tenants, config.limits))
    queue.windows.set_pools(mail_pools(config))


def _longest_delay_ms(config: Config) -> int:
    """No retry is later than the age at which its zone gives up; a day more for a changed configuration.

    A function may ask for any delay.
    """
    retries = [part.retry for zone in config.zones.values() for _, part in zone.parts()]
    if any(retry.policy in ("function", "backoff") for retry in retries):
        return LONGEST_DELAY_MS
    longest_s = max((retry.give_up_after for retry in retries), default=0.0)
    return round((longest_s + DAY) * 1000)
