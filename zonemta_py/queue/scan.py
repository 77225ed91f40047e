"""The start-up scan: every waiting recipient of a zone, oldest first, into the ready window.

It runs beside intake and delivery in slices of a few milliseconds, ends at the newest id of the
previous life, and never runs again: later mail is offered when it is committed.
"""

import asyncio

from zonemta_py.queue import keys
from zonemta_py.queue.commit import Batch, GroupCommit
from zonemta_py.queue.leveldb import LevelStore
from zonemta_py.queue.ready import Recipient
from zonemta_py.queue.records import read_waiting
from zonemta_py.queue.windows import Windows

SLICE = 1000  # recipients between two looks at everything else: about 3 ms


async def scan_zone(
    store: LevelStore, commits: GroupCommit, windows: Windows, zone: str, newest: str
) -> int:
    """Offer the recipients of ``zone`` up to message ``newest``; returns how many there were."""
    cursor = keys.zone_prefix(keys.WAITING, zone)
    stop = keys.end_of(keys.zone_prefix(keys.WAITING, zone, newest))
    total = 0
    while True:
        batch = Batch()
        fed: set[str] = set()
        count = 0
        for key, value in store.scan(cursor, stop):
            _, message, address = keys.parse_recipient(key)
            recipient = Recipient(key, zone, message, address, read_waiting(value))
            destination = windows.offer_scanned(batch, recipient)
            if destination is not None:
                fed.add(destination)
            cursor = key + b"\x00"
            count += 1
            if count == SLICE:
                break
        for destination in fed:
            windows.on_ready(zone, destination)
        total += count
        if batch.ops:
            await commits.submit(batch)
        if count < SLICE:
            return total
        await asyncio.sleep(0)


def zones_on_disk(store: LevelStore) -> set[str]:
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
