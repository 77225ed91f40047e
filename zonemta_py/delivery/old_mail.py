"""Mail that cannot be sent for now: what is too old expires, and senders that asked for it hear of the delay.

All mail of a destination that leaves from one pool waits for the same, so only the front of it is looked at: the oldest is there.
"""

import logging
from collections.abc import Iterator

from zonemta_py.config.zones import Zone
from zonemta_py.core import clock
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import Attempt, PoolKey
from zonemta_py.delivery.outcome import (
    NO_ADDRESS_MS,
    delay_is_reported,
    has_no_address,
    has_reader,
    is_expired,
    is_given_up,
)
from zonemta_py.delivery.worker import Worker
from zonemta_py.queue.active import Lease
from zonemta_py.queue.format.records import starts
from zonemta_py.queue.queue import Queue
from zonemta_py.smtp.dsn_params import wants_delay

WARNED_MAX = 10_000  # messages of a destination that are deferred at once: seconds of work

Place = tuple[str, str]  # zone and destination

log = logging.getLogger(__name__)


async def fail_old(queue: Queue, worker: Worker, place: Place, settings: Zone, failure: Attempt) -> bool:
    """Settle the old mail of a destination with the failure that other mail met; returns whether some is left."""
    now_ms, warned = clock.now_ms(), 0
    give_up_after_s: float = settings.retry.give_up_after
    if has_no_address(failure):
        give_up_after_s = min(give_up_after_s, NO_ADDRESS_MS / 1000)
    for pool_key in queue.windows.pool_keys(*place):
        for lease in _leases(queue, place, settings, pool_key):
            meta, message = lease.active.meta, lease.active.id
            if await worker.settle_unsent(lease):
                continue
            if not is_expired(starts(meta, message), now_ms, give_up_after_s):
                warned += 1
                if warned > WARNED_MAX or not delay_is_reported(meta, message, settings.retry, now_ms):
                    queue.release(lease)
                    break
            await (await worker.fail(lease, failure))
    return queue.windows.zone(place[0]).has_mail(place[1])


async def put_off_old(
    queue: Queue, worker: Worker, place: tuple[str, str, str], settings: Zone, reason: str
) -> None:
    """Settle the old mail of a destination that waits for a limit. Nothing of it was an attempt.

    ``place``: the zone, the destination, and the pool from which the mail leaves.
    """
    zone, destination, pool_key = place
    now_ms, warned = clock.now_ms(), 0
    for lease in _leases(queue, (zone, destination), settings, pool_key):
        meta, message = lease.active.meta, lease.active.id
        if await worker.settle_unsent(lease):
            continue
        if not is_given_up(meta, message, settings.retry, now_ms):
            warned += 1
            if warned > WARNED_MAX or not _is_to_be_warned(lease, settings, now_ms):
                queue.release(lease)
                return
        await (await worker.put_off(lease, reason, now_ms + 1))


def _leases(queue: Queue, place: Place, settings: Zone, pool_key: PoolKey) -> Iterator[Lease]:
    """The leases of a destination, each after the end of the one before; damaged messages are left alone."""
    while True:
        try:
            lease = queue.lease(*place, settings.recipients_per_transaction, pool_key)
        except QueueCorrupt as exc:
            log.critical("not given up: %s", exc)
            continue
        if lease is None:
            return
        yield lease


def _is_to_be_warned(lease: Lease, settings: Zone, now_ms: int) -> bool:
    meta, message = lease.active.meta, lease.active.id
    if meta.warned or not has_reader(meta):
        return False
    if not any(wants_delay(each.record.notify) for each in lease.recipients):
        return False
    return delay_is_reported(meta, message, settings.retry, now_ms)
