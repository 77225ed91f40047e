"""Where the recipients of one commit will go: into a window, or under a ``spill/`` key.

The ready windows of all zones: where new and woken mail goes, and how a window is filled again.

A placement is planned before a commit (so that its spill keys are in the same batch) and carried
out after it. A spill key that a commit under way is about to write is not deleted by a refill that
cannot see it yet.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.batch import GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import read_waiting
from zonemta_py.queue.ready import ReadyWindow
from zonemta_py.queue.submitter_queues import Recipient
from zonemta_py.smtp.address import domain_of
from zonemta_py.storage.interface import Store


class SpillKey(NamedTuple):
    """What a ``spill/`` key names, and whose message it is."""

    zone: str
    destination: str
    message: str
    submitter: str

    @property
    def key(self) -> bytes:
        """The key."""
        return keys.spill_key(self.zone, self.destination, self.message)


@dataclass(slots=True)
class Reservation:
    """Where the recipients of one commit will go: groups in the window, and what spills."""

    groups: list[tuple[str, str, list[Recipient]]] = field(default_factory=list)
    spills: list[SpillKey] = field(default_factory=list)


REFILL_KEYS = 2000  # keys read in one refill: a few milliseconds
FEED_AT_ONCE = 4  # starved destinations that one lease may feed

DestinationOf = Callable[[str, str], str]  # (zone, domain) → the queue its mail waits in
OnReady = Callable[[str, str, bool], None]  # (zone, destination, light): there is mail to send

log = logging.getLogger(__name__)


def ignore_ready(zone: str, destination: str, light: bool) -> None:
    """The OnReady of a queue that nothing is delivered from."""


class ReadyWindows:
    """One ReadyWindow per zone, made when first needed."""

    def __init__(
        self,
        store: Store,
        commits: GroupCommit,
        limit: int,
        destination_of: DestinationOf,
        on_ready: OnReady,
    ) -> None:
        self._store = store
        self._commits = commits
        self._limit = limit
        self.destination_of = destination_of
        self.on_ready = on_ready
        self._zones: dict[str, ReadyWindow] = {}
        self._planned: Counter[SpillKey] = Counter()

    def zone(self, zone: str) -> ReadyWindow:
        """The window of ``zone``."""
        window = self._zones.get(zone)
        if window is None:
            window = self._zones[zone] = ReadyWindow(zone, self._limit)
        return window

    # ---- new and woken mail

    def plan(self, recipients: Sequence[Recipient]) -> Reservation:
        """Reserve room for ``recipients``, which are about to be committed as waiting."""
        placement = Reservation()
        groups: dict[SpillKey, list[Recipient]] = {}
        spill, last = None, ("", "", "")
        for recipient in recipients:
            zone, domain, message = recipient.zone, recipient.record.domain, recipient.message
            if (
                spill is None or (zone, domain, message) != last
            ):  # mostly one group, or one after the other
                last = zone, domain, message
                destination = self.destination_of(zone, domain)
                spill = SpillKey(zone, destination, message, recipient.record.submitter)
            groups.setdefault(spill, []).append(recipient)
        for spill, members in groups.items():
            if self.zone(spill.zone).reserve(spill.destination, spill.submitter, len(members)):
                placement.groups.append((spill.zone, spill.destination, members))
            else:
                placement.spills.append(spill)
                self._planned[spill] += 1
        return placement

    def place(self, placement: Reservation) -> None:
        """The commit is on disk."""
        for zone, destination, members in placement.groups:
            window, submitter = self.zone(zone), members[0].record.submitter
            window.unreserve(destination, submitter, len(members))
            window.add(destination, members)
            self.on_ready(zone, destination, window.is_light(submitter))
        self._unplan(placement.spills)
        for spill in placement.spills:
            self.zone(spill.zone).note_spill(spill.destination, spill.submitter, spill.message)
            self.on_ready(spill.zone, spill.destination, False)

    def abandon(self, placement: Reservation) -> None:
        """The commit failed."""
        for zone, destination, members in placement.groups:
            self.zone(zone).unreserve(destination, members[0].record.submitter, len(members))
        self._unplan(placement.spills)

    def _unplan(self, spills: Sequence[SpillKey]) -> None:
        for spill in spills:
            self._planned[spill] -= 1
            if not self._planned[spill]:
                del self._planned[spill]

    def offer_scanned(self, recipient: Recipient, placement: Reservation) -> None:
        """Put a recipient found by the start-up scan into its window, or plan its spill."""
        zone, destination = recipient.zone, self.destination_of(recipient.zone, recipient.record.domain)
        window, submitter = self.zone(zone), recipient.record.submitter
        if recipient.key in window:
            return
        if window.has_room(destination, submitter) and not window.has_spilled(destination, submitter):
            window.add(destination, [recipient])
            placement.groups.append((zone, destination, [recipient]))
            return
        spill = SpillKey(zone, destination, recipient.message, submitter)
        if not placement.spills or placement.spills[-1] != spill:
            placement.spills.append(spill)
            self._planned[spill] += 1

    def stale_spills(self, placement: Reservation) -> list[SpillKey]:
        """``spill/`` keys of the previous life whose mail a scan has put into the window.

        A destination that has spilled mail by now keeps them: its refill looks there and removes them.
        """
        stale = []
        placed = {
            SpillKey(zone, destination, r.message, r.record.submitter)
            for zone, destination, of in placement.groups
            for r in of
        }
        for spill in sorted(placed - self._planned.keys()):
            window = self.zone(spill.zone)
            if self._store.get(spill.key) is None:
                continue
            if window.has_spilled(spill.destination, spill.submitter):
                window.note_spill(spill.destination, spill.submitter, spill.message)
            else:
                stale.append(spill)
        return stale

    def placed_scanned(self, placement: Reservation) -> None:
        """The spill keys of a scan are on disk."""
        self._unplan(placement.spills)
        for spill in placement.spills:
            self.zone(spill.zone).note_spill(spill.destination, spill.submitter, spill.message)
        touched = {spill[:2] for spill in placement.spills} | {group[:2] for group in placement.groups}
        for zone, destination in touched:
            self.on_ready(zone, destination, False)

    def unspill(self, batch: WriteBatch, taken: Iterable[bytes], all_keys: Iterable[bytes]) -> None:
        """Waiting recipients of a message are ``taken`` out: its ``spill/`` keys go where none is left.

        ``all_keys`` are those of all its recipients.
        """
        gone = set(taken)
        places = {self._place_of(key) for key in gone}
        planned = {spill[:3] for spill in self._planned}
        kept = {
            self._place_of(key) for key in all_keys if key.startswith(keys.WAITING) and key not in gone
        }
        for place in places - kept - planned:
            batch.delete(keys.spill_key(*place))

    def _place_of(self, key: bytes) -> tuple[str, str, str]:
        zone, message, address = keys.parse_recipient(key)
        return zone, self.destination_of(zone, domain_of(address)), message

    # ---- filling the window again

    def refill(self, zone: str, destination: str) -> None:
        """Read spilled mail of ``destination`` into the window, oldest first, if it runs low.

        It reads REFILL_KEYS at most; ``has_spilled`` says whether there may be more.
        """
        window = self.zone(zone)
        began = window.wants_refill(destination)
        if began is None:
            return
        batch = WriteBatch()
        left: dict[str, str] = {}
        try:
            resume_at = self._read_spilled(zone, destination, began, batch, left)
        except QueueCorrupt as exc:
            resume_at = None  # what is behind the damage waits for a repair
            log.critical("spilled mail of %s in zone %s is left alone: %s", destination, zone, exc)
        window.refilled(destination, began, resume_at, left)
        if batch.ops:
            self._commits.submit(batch)

    def _read_spilled(
        self, zone: str, destination: str, began: str, batch: WriteBatch, left: dict[str, str]
    ) -> str | None:
        """Fill the window from ``began``; returns where to go on next time, None at the end.

        ``left`` gets the first message of each submitter for whom there was no room.
        """
        window, budget = self.zone(zone), REFILL_KEYS
        stop = keys.end_of(keys.spill_key(zone, destination, ""))
        for key in self._store.keys(keys.spill_key(zone, destination, began), stop):
            message = keys.parse_spill(key)[2]
            if budget <= 0 or window.size >= window.limit:
                return message
            budget -= 1
            submitter = self._submitter_of(zone, message)
            if submitter is not None and not window.is_next(destination, submitter, message, began):
                continue
            if submitter is not None and (
                submitter in left or not window.has_room(destination, submitter)
            ):
                left.setdefault(submitter, message)
                if window.all_left(destination, began, left):
                    return message
                continue
            found, read = self._spilled_recipients(zone, destination, message)
            window.add(destination, found)
            budget -= read
            if SpillKey(zone, destination, message, submitter or "") not in self._planned:
                batch.delete(key)
            if window.rests(destination) and found:
                return self._after(message)  # a probe: one message is enough
        return None

    @staticmethod
    def _after(message: str) -> str:
        return message + "0"

    def _submitter_of(self, zone: str, message: str) -> str | None:
        """Who submitted a message that waits in ``zone``; None when nobody of it can be read."""
        prefix = keys.zone_prefix(keys.WAITING, zone, message)
        try:
            for _, value in self._store.scan(prefix, keys.end_of(prefix)):
                return read_waiting(value).submitter
        except QueueCorrupt:
            pass  # whoever reads its recipients says so
        return None

    def _spilled_recipients(
        self, zone: str, destination: str, message: str
    ) -> tuple[list[Recipient], int]:
        """The recipients of a message that wait for this destination, and how many keys were read."""
        prefix = keys.zone_prefix(keys.WAITING, zone, message)
        found: list[Recipient] = []
        read = 0
        try:
            for key, value in self._store.scan(prefix, keys.end_of(prefix)):
                read += 1
                address = keys.parse_recipient(key)[2]
                if self.destination_of(zone, domain_of(address)) == destination:
                    found.append(Recipient(key, zone, message, address, read_waiting(value)))
        except QueueCorrupt as exc:
            log.critical("%s is left alone, repair the queue: %s", message, exc)
        return found, read

    def feed(self, zone: str) -> None:
        """Give starved destinations their part of a window that has room again."""
        window = self.zone(zone)
        for _ in range(FEED_AT_ONCE):
            destination = window.next_starved()
            if destination is None:
                return
            self.refill(zone, destination)
            self.on_ready(zone, destination, False)

    # ---- destinations that do not answer

    def rest(self, zone: str, destination: str) -> None:
        """Put the mail of a destination that does not answer back on disk: others need the room."""
        evicted = self.zone(zone).evict(destination)
        if not evicted:
            return
        placement = Reservation()
        batch = WriteBatch()
        for message, submitter in dict.fromkeys((r.message, r.record.submitter) for r in evicted):
            spill = SpillKey(zone, destination, message, submitter)
            placement.spills.append(spill)
            self._planned[spill] += 1
            batch.put(spill.key, b"")
        batch.future.add_done_callback(lambda _: self._evicted(zone, placement))
        self._commits.submit(batch)

    def _evicted(self, zone: str, placement: Reservation) -> None:
        self._unplan(placement.spills)
        for spill in placement.spills:
            self.zone(zone).note_spill(spill.destination, spill.submitter, spill.message)
        self.feed(zone)
