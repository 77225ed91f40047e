"""What is stored of sending: uses of long windows, the paces of the controller, and the warm-up of addresses.

Keys are in ``queue.format.keys``. Each is written in the batch that settles the message it is about, or with the event of
the change.
"""

import logging
from functools import lru_cache
from typing import NamedTuple

from zonemta_py.core.codec import pack, unpacker
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import PathKey
from zonemta_py.core.sliding_window import SlidingWindow
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.slices import row_slices
from zonemta_py.schedule.controller import PACE_VERSION, Pace
from zonemta_py.schedule.permits import Stored
from zonemta_py.schedule.shaping import Reroute, RerouteKey
from zonemta_py.schedule.warmup import Warming, WarmupState
from zonemta_py.storage.interface import View

PACE, WARMUP, POOL = "pace", "warmup", "pool"
Puts = list[tuple[bytes, bytes]]  # an empty value deletes

_use_key = lru_cache(4096)(keys.sending_key)  # the same ones for many messages
_read_pace = unpacker(Pace)
_read_warmup = unpacker(WarmupState)
_read_reroute = unpacker(Reroute)

log = logging.getLogger(__name__)


class StoredEgress(NamedTuple):
    """What an earlier run stored; ``warmups`` by address and provider."""

    uses: Stored
    paces: dict[PathKey, Pace]
    warmups: dict[tuple[str, str], WarmupState]
    reroutes: dict[RerouteKey, Reroute]


def read_stored(view: View) -> StoredEgress:
    """Read it; what is damaged is logged, and is not used."""
    found = StoredEgress([], {}, {}, {})
    prefix = keys.META_SENDING
    for key, value in view.scan(prefix, keys.end_of(prefix)):
        kind, length_ms, slot, address, provider = keys.parse_sending(key)
        try:
            found.uses.append((kind, provider, address, length_ms, slot, int(value)))
        except ValueError as exc:
            log.critical("%r is not used: %s", key, exc)
    prefix = keys.META_SENDING_STATE
    for key, value in view.scan(prefix, keys.end_of(prefix)):
        kind, provider, address = keys.parse_sending_state(key)
        try:
            if kind == PACE:
                found.paces[provider, address] = _read_pace(value)
            elif kind == POOL:
                found.reroutes[provider, address] = _read_reroute(value)
            else:
                found.warmups[address, provider] = _read_warmup(value)
        except QueueCorrupt as exc:
            log.critical("%r is not used: %s", key, exc)
    return found


def use_puts(stored: Stored) -> Puts:
    """The uses of long windows."""
    return [
        (_use_key(kind, length_ms, slot, address, provider), b"%d" % used)
        for kind, provider, address, length_ms, slot, used in stored
    ]


def pace_put(key: PathKey, pace: Pace | None) -> tuple[bytes, bytes]:
    """The pace of an address at a provider."""
    return keys.sending_state_key(PACE, *key), b"" if pace is None else pack(
        pace._replace(version=PACE_VERSION)
    )


def reroute_put(key: RerouteKey, reroute: Reroute | None) -> tuple[bytes, bytes]:
    """From which pool the mail of another one leaves to a provider."""
    return keys.sending_state_key(POOL, *key), b"" if reroute is None else pack(reroute)


def warmup_put(warming: Warming) -> tuple[bytes, bytes]:
    """The state of a schedule."""
    address, provider = warming.key
    return keys.sending_state_key(WARMUP, provider, address), pack(warming.state)


async def delete_old(queue: Queue, now_ms: int) -> None:
    """Delete the uses that no longer count. Raises QueueUnavailable."""
    async for rows in row_slices(queue.store, keys.META_SENDING):
        batch = WriteBatch()
        for key, _ in rows:
            _, length_ms, slot, _, _ = keys.parse_sending(key)
            if not SlidingWindow(0, length_ms).counts(slot, now_ms):
                batch.put_latest([(key, b"")])
        if batch.latest:
            await queue.commits.submit(batch)
