"""The start-up scan: every waiting recipient of a zone, oldest first, into the ready window.

It runs beside intake and delivery in slices of a few milliseconds, ends at the newest id of the
previous life, and never runs again: later mail is offered when it is committed.
"""

import asyncio
import logging

from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.batch import GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import read_waiting
from zonemta_py.queue.spill import ReadyWindows, Reservation
from zonemta_py.queue.submitter_queues import Recipient
from zonemta_py.storage.interface import Store, View

log = logging.getLogger(__name__)

SLICE = 1000  # recipients between two looks at everything else: about 3 ms


async def scan_zone(
    store: Store, commits: GroupCommit, windows: ReadyWindows, zone: str, newest: str
) -> int:
    """Offer the recipients of ``zone`` up to message ``newest``; returns how many there were."""
    cursor = keys.zone_prefix(keys.WAITING, zone)
    stop = keys.end_of(keys.zone_prefix(keys.WAITING, zone, newest))
    total = 0
    while True:
        began_s, written = monotonic_s(), commits.batches
        placement = Reservation()
        count, beyond = 0, None
        try:
            for key, value in store.scan(cursor, stop):
                _offer(windows, placement, zone, key, value)
                cursor = key + b"\x00"
                count += 1
                if count == SLICE:
                    break
        except QueueCorrupt as exc:
            beyond = _beyond_damage(store, zone, cursor)
            log.critical("recipients of zone %s are left alone, repair the queue: %s", zone, exc)
        total += count
        stale = windows.stale_spills(placement)
        if placement.spills or stale:
            batch = WriteBatch()
            for spill in stale:
                batch.delete(spill.key)
            for spill in placement.spills:
                batch.put(spill.key, b"")
            await commits.submit(batch)
        windows.placed_scanned(placement)
        if beyond is not None:
            cursor = beyond
        elif count < SLICE:
            return total
        # Beside mail that comes and goes the scan takes a quarter of the time, alone all of it.
        busy = commits.batches - written > 1
        await asyncio.sleep(3 * (monotonic_s() - began_s) if busy else 0)


def _offer(windows: ReadyWindows, placement: Reservation, zone: str, key: bytes, value: bytes) -> None:
    _, message, address = keys.parse_recipient(key)
    try:
        recipient = Recipient(key, zone, message, address, read_waiting(value))
        windows.offer_scanned(recipient, placement)
    except QueueCorrupt as exc:
        log.critical("%s to %s is left alone: %s", message, address, exc)


def _beyond_damage(store: Store, zone: str, cursor: bytes) -> bytes:
    """Where to read on after a place that cannot be read: at the next message; at worst the range ends."""
    prefix = keys.zone_prefix(keys.WAITING, zone)
    message = cursor[len(prefix) : len(prefix) + keys.MESSAGE_ID_LENGTH].decode("ascii", "replace")
    try:
        start = keys.end_of(keys.message_prefix(message)) if message else keys.MESSAGE
        following = next(store.keys(start, keys.end_of(keys.MESSAGE)), None)
    except QueueCorrupt:
        following = None
    if following is None:
        return keys.end_of(prefix)
    return keys.zone_prefix(keys.WAITING, zone, keys.owner_of(following))


def zones_on_disk(store: View) -> set[str]:
    """The zones that have recipients, found by skipping from one to the next."""
    zones = set()
    for space in (keys.WAITING, keys.DEFERRED):
        cursor = space
        while True:
            key = next(store.keys(cursor, keys.end_of(space)), None)
            if key is None:
                break
            zone = keys.parse_recipient(key)[0]
            zones.add(zone)
            cursor = keys.end_of(keys.zone_prefix(space, zone))
    return zones
