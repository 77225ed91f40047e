"""Counts the recipients that are on disk: after a start beside intake and delivery, and of a queue that is not running."""

import asyncio
from collections.abc import Iterator
from functools import partial

from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.census import Census, DestinationOf
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    CensusLabels,
    Meta,
    labels_of,
    read_meta,
    read_recipient_record,
)
from zonemta_py.queue.group_commit import GroupCommit
from zonemta_py.queue.upkeep.startup_scan import zones_on_disk
from zonemta_py.storage.interface import Store, View

SLICE = 1000  # recipients read in one turn of the loop: a few milliseconds


class _LabelsOnDisk:
    """The labels of messages, read from their envelopes. Remembers the last one."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._last: tuple[str, CensusLabels | None] = ("", None)

    def of(self, message: str) -> CensusLabels | None:
        """None for a message that is gone or damaged; its recipients are not counted."""
        if self._last[0] != message:
            self._last = message, self._read(message)
        return self._last[1]

    def _read(self, message: str) -> CensusLabels | None:
        try:
            value = self._view.get(keys.meta_key(message))
            meta: Meta | None = read_meta(value) if value is not None else None
        except QueueCorrupt:
            return None
        return labels_of(meta, message) if meta is not None else None


def _count_slice(
    view: View, census: Census, zone: str, after: str, newest: str, most: int
) -> str | None:
    """Count recipients of ``zone`` in messages after ``after`` up to ``newest`` (empty: all).

    About ``most`` recipients are read in each place, and all of a message. Returns the last message read, None at
    the end. A recipient that cannot be read is left out: ``queue check`` names it.
    """
    found: list[list[tuple[str, str, int]]] = []
    upto: str | None = None
    for space in (keys.WAITING, keys.DEFERRED):
        rows, cut = _read(view, space, zone, after, newest, most)
        found.append(rows)
        if cut is not None and (upto is None or cut < upto):
            upto = cut
    labels = _LabelsOnDisk(view)
    for message, domain, state in sorted(row for rows in found for row in rows):
        if upto is None or message <= upto:
            whose = labels.of(message)
            if whose is not None:
                census.add(zone, domain, state, whose)
    return upto


def _read(
    view: View, space: bytes, zone: str, after: str, newest: str, most: int
) -> tuple[list[tuple[str, str, int]], str | None]:
    """(message, domain, state) of recipients, and the last message if there are more."""
    prefix = keys.zone_prefix(space, zone)
    start = keys.end_of(keys.zone_prefix(space, zone, after)) if after else prefix
    stop = keys.end_of(keys.zone_prefix(space, zone, newest) if newest else prefix)
    rows: list[tuple[str, str, int]] = []
    last = ""
    try:
        for key, value in view.scan(start, stop):
            message = keys.parse_recipient(key)[1]
            if message != last and len(rows) >= most:
                return rows, last
            last = message
            try:
                record = read_recipient_record(value)
            except QueueCorrupt:
                continue
            rows.append((message, record.domain, record.state))
    except QueueCorrupt:
        pass  # what is behind the damage is not counted; the start-up scan logs it
    return rows, None


def count_all(view: View, destination_of: DestinationOf) -> Iterator[Census | None]:
    """The census of all keys, for a queue that is not running, and for ``check``; None is a pause before it."""
    census = Census("", destination_of)
    for zone in zones_on_disk(view):
        after: str | None = ""
        while after is not None:
            after = _count_slice(view, census, zone, after, "", SLICE)
            yield None
    census.is_complete = True
    yield census


class CensusScan:
    """Counts the recipients of earlier boots, beside intake and delivery."""

    def __init__(self, store: Store, commits: GroupCommit, census: Census) -> None:
        self._store = store
        self._commits = commits
        self._census = census

    async def run(self) -> None:
        """Count everything once."""
        for zone in sorted(zones_on_disk(self._store)):
            after: str | None = ""
            while after is not None:
                began_s, written = monotonic_s(), self._commits.batches
                after = await self._commits.between_groups(partial(self._slice, zone, after))
                # A quarter of the time while other batches are written, else all of it.
                busy = self._commits.batches - written > 1
                await asyncio.sleep(3 * (monotonic_s() - began_s) if busy else 0)
        self._census.is_complete = True

    def _slice(self, zone: str, after: str) -> str | None:
        with self._store.frozen() as view:
            upto = _count_slice(view, self._census, zone, after, self._census.newest_before, SLICE)
        self._census.has_read(zone, upto if upto is not None else "\x7f")
        return upto
