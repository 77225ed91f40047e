"""Moves recipients of a zone that the configuration no longer has; one batch per message."""

import logging
from collections.abc import Set

from zonemta_py.core.errors import ConfigError
from zonemta_py.events.schema import Moved
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import read_meta, read_recipient_record
from zonemta_py.queue.group_commit import GroupCommit
from zonemta_py.queue.upkeep.startup_scan import zones_on_disk
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)


async def move_zone(store: Store, commits: GroupCommit, zone: str, new_zone: str, now_ms: int) -> int:
    """Move all recipients of ``zone``; returns how many messages. Before mail is accepted or sent."""
    messages = {
        keys.parse_recipient(key)[1]
        for space in (keys.WAITING, keys.DEFERRED)
        for key in store.keys(keys.zone_prefix(space, zone), keys.end_of(keys.zone_prefix(space, zone)))
    }
    for message in sorted(messages):
        batch = WriteBatch()
        moved = []
        for space in (keys.WAITING, keys.DEFERRED):
            prefix = keys.zone_prefix(space, zone, message)
            for key, value in store.scan(prefix, keys.end_of(prefix)):
                record = read_recipient_record(value)
                address = keys.parse_recipient(key)[2]
                batch.delete(key)
                if space == keys.WAITING:
                    batch.put(keys.waiting_key(new_zone, message, address), value)
                else:
                    batch.put(keys.deferred_key(new_zone, message, address), value)
                    batch.delete(keys.due_key(record.due_ms, zone, message))
                    batch.put(keys.due_key(record.due_ms, new_zone, message), b"")
                moved.append(record.recipient_index)
        meta_value = store.get(keys.meta_key(message))
        if meta_value is not None:
            meta = read_meta(meta_value)
            zones = tuple(sorted({*meta.zones, new_zone} - {zone}))
            batch.put_record(keys.meta_key(message), meta._replace(zones=zones))
        batch.record(
            Moved(time_ms=now_ms, message=message, recipients=tuple(moved), zone=zone, new_zone=new_zone)
        )
        await commits.submit(batch)
    batch = WriteBatch()
    for key in store.keys(
        keys.zone_prefix(keys.SPILL, zone), keys.end_of(keys.zone_prefix(keys.SPILL, zone))
    ):
        batch.delete(key)  # the start-up scan of the new zone finds them
    await commits.submit(batch)
    return len(messages)


async def settle_removed_zones(
    store: Store, commits: GroupCommit, configured: Set[str], move_to: str | None, now_ms: int
) -> None:
    """Move mail of zones that are not configured to ``move_to``. Raises ConfigError when that is None."""
    for zone in sorted(zones_on_disk(store) - configured):
        if move_to is None:
            raise ConfigError(
                f"zones: recipients wait in zone '{zone}', which the configuration lacks; "
                "add it, or set zone_removed: default to move them"
            )
        moved = await move_zone(store, commits, zone, move_to, now_ms)
        log.warning("zone '%s' is gone: %d messages moved to '%s'", zone, moved, move_to)
