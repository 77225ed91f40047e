"""The census: how many recipients a queue has, by zone, destination and state, tenant, campaign and age.

Batches say what they change (``WriteBatch.count``), and the census applies it in the moment in which they are
on disk, so that it agrees with the keys between two groups. After a start, ``CensusScan`` counts the recipients
of earlier boots; until it has reached a message, what happens to that message is not counted.

Tables are bounded: names beyond the limit are counted together as OTHER. Sums stay exact, and all is exact
for a queue with fewer names.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import nlargest

from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.commit import GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    CensusLabels,
    EnvelopeRecord,
    RecipientState,
    labels_of,
    read_meta,
    read_recipient_record,
)
from zonemta_py.storage.interface import Store, View

DESTINATIONS_MAX = 50_000  # of a zone
NAMES_MAX = 10_000  # tenants, and campaigns
OTHER = "(other)"  # the name of what is beyond a limit
AGE_SLOT_MS = 300_000  # ages are known this exactly

TOTAL = len(RecipientState)

Row = list[int]  # a number of recipients for each RecipientState, and their TOTAL
DestinationOf = Callable[[str, str], str]  # (zone, domain) → the destination, which never changes


class Counts(Struct, frozen=True):
    """A copy of the census. ``destinations`` by zone and name, ``ages`` by zone and time of birth (AGE_SLOT_MS)."""

    zones: dict[str, Row]
    destinations: dict[tuple[str, str], Row]
    tenants: dict[str, int]
    campaigns: dict[str, int]
    ages: dict[tuple[str, int], int]


class _Table:
    """Rows by name, at most ``limit`` and OTHER."""

    def __init__(self, limit: int) -> None:
        self.rows: dict[str, Row] = {}
        self.other = _empty()
        self._limit = limit

    def row(self, name: str) -> Row:
        """The row to add to."""
        found = self.rows.get(name)
        if found is None:
            if len(self.rows) >= self._limit:
                return self.other
            found = self.rows[name] = _empty()
        return found

    def add(self, name: str, state: int, count: int) -> None:
        """Change a number; what ``name`` has too little of was counted as OTHER."""
        row = self.row(name)
        row[state] += count
        row[TOTAL] += count
        if count < 0 and row is not self.other:
            if row[state] < 0:
                missing, row[state] = row[state], 0
                row[TOTAL] -= missing
                self.other[state] += missing
                self.other[TOTAL] += missing
            if not row[TOTAL]:
                del self.rows[name]

    def totals(self) -> dict[str, int]:
        """The sum of each row that is not 0."""
        rows = {name: row[TOTAL] for name, row in self.rows.items()}
        other = self.other[TOTAL]
        return {**rows, OTHER: other} if other else rows


class Census:
    """The counts of one queue. ``newest_before``: no message id of earlier boots is greater, none of this boot less."""

    def __init__(self, newest_before: str, destination_of: DestinationOf) -> None:
        self._destination_of = destination_of
        self.newest_before = newest_before
        self._counted: dict[str, str] = {}  # up to which message, by zone
        self.is_complete = False
        self._zones: dict[str, Row] = {}
        self._destinations: dict[str, _Table] = {}
        self._tenants = _Table(NAMES_MAX)
        self._campaigns = _Table(NAMES_MAX)
        self._ages: dict[tuple[str, int], int] = {}

    def apply(self, batches: Iterable[WriteBatch]) -> None:
        """These batches are on disk."""
        for batch in batches:
            for zone, message, domain, before, after, count, labels in batch.counts:
                if not self.is_complete and not self._has_counted(zone, message):
                    continue
                if before is not None:
                    self._add(zone, domain, before, -count)
                if after is not None:
                    self._add(zone, domain, after, count)
                if labels is not None:
                    self._label(zone, labels, count if before is None else -count)

    def _has_counted(self, zone: str, message: str) -> bool:
        return message > self.newest_before or message <= self._counted.get(zone, "")

    def _add(self, zone: str, domain: str, state: int, count: int) -> None:
        row = self._zones.get(zone)
        if row is None:
            row = self._zones[zone] = _empty()
            self._destinations[zone] = _Table(DESTINATIONS_MAX)
        row[state] += count
        row[TOTAL] += count
        self._destinations[zone].add(self._destination_of(zone, domain), state, count)

    def _label(self, zone: str, labels: CensusLabels, count: int) -> None:
        tenant, campaign, born_ms = labels
        if tenant:
            self._tenants.add(tenant, 0, count)
        if campaign:
            self._campaigns.add(campaign, 0, count)
        slot = zone, born_ms // AGE_SLOT_MS
        left = self._ages.get(slot, 0) + count
        if left:
            self._ages[slot] = left
        else:
            self._ages.pop(slot, None)

    # ---- counting what is on disk

    def add(self, zone: str, domain: str, state: int, labels: CensusLabels) -> None:
        """Count a recipient that the scan has read."""
        self._add(zone, domain, state, 1)
        self._label(zone, labels, 1)

    def has_read(self, zone: str, message: str) -> None:
        """The scan has read all recipients of ``zone`` up to ``message``."""
        self._counted[zone] = message

    # ---- queries

    def zones(self) -> dict[str, Row]:
        """Recipients by zone, without empty zones."""
        return {name: row for name, row in sorted(self._zones.items()) if row[TOTAL]}

    def destination(self, zone: str, destination: str) -> Row:
        """Recipients of a destination."""
        table = self._destinations.get(zone)
        found = table.rows.get(destination) if table is not None else None
        return found if found is not None else _empty()

    def destinations(self, zone: str) -> Iterator[tuple[str, Row]]:
        """The destinations of a zone, OTHER last."""
        table = self._destinations.get(zone)
        if table is not None:
            yield from table.rows.items()
            if any(table.other):
                yield OTHER, table.other

    def largest(self, zone: str, most: int) -> list[tuple[str, Row]]:
        """The destinations with most recipients, largest first, without OTHER."""
        table = self._destinations.get(zone)
        rows = table.rows.items() if table is not None else ()
        return nlargest(most, rows, key=lambda item: item[1][TOTAL])

    def tenants(self) -> dict[str, int]:
        """Recipients by tenant; those without one are in no number."""
        return self._tenants.totals()

    def campaigns(self) -> dict[str, int]:
        """Recipients by campaign; those without one are in no number."""
        return self._campaigns.totals()

    def ages(self) -> dict[tuple[str, int], int]:
        """Recipients by zone and time of birth, in units of AGE_SLOT_MS."""
        return self._ages

    def copy(self) -> Counts:
        """All counts of this moment."""
        destinations = {
            (zone, name): list(row)
            for zone in self._destinations
            for name, row in self.destinations(zone)
        }
        zones = {name: list(row) for name, row in self.zones().items()}
        return Counts(zones, destinations, self.tenants(), self.campaigns(), dict(self._ages))


def _empty() -> Row:
    return [0] * (TOTAL + 1)


def differences(counted: Counts, on_disk: Counts) -> Iterator[str]:
    """The differences between two censuses of one moment, one text each."""
    for field in Counts.__struct_fields__:
        census, keys_have = getattr(counted, field), getattr(on_disk, field)
        for name in sorted({*census, *keys_have}):
            if census.get(name) != keys_have.get(name):
                yield f"census: {field} {name}: {census.get(name)}, the keys have {keys_have.get(name)}"


# ---- Counts the recipients that are on disk: after a start while intake and delivery run, and of a queue that is not running.

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
            meta: EnvelopeRecord | None = read_meta(value) if value is not None else None
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
    """Counts the recipients of earlier boots, while intake and delivery run."""

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


# ---- The zones of which something is on disk.


def zones_on_disk(store: View) -> set[str]:
    """The zones that have recipients."""
    return _zones_in(store, (keys.WAITING, keys.DEFERRED))


def zones_to_scan(store: View) -> set[str]:
    """The zones that have waiting recipients, or keys of spilled mail that may have none any more."""
    return _zones_in(store, (keys.WAITING, keys.SPILL))


def _zones_in(store: View, spaces: Iterable[bytes]) -> set[str]:
    """The zones of the keys in ``spaces``, found by skipping from one to the next."""
    zones = set()
    for space in spaces:
        cursor = space
        while (key := next(store.keys(cursor, keys.end_of(space)), None)) is not None:
            zone = key.split(b"/", 2)[1].decode()
            zones.add(zone)
            cursor = keys.end_of(keys.zone_prefix(space, zone))
    return zones
