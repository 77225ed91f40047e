"""The ready windows of all zones: where new and woken mail goes, and how a window is filled again.

A placement is planned before a commit (so that its spill keys are in the same batch) and carried
out after it. A spill key that a commit under way is about to write is not deleted by a refill that
cannot see it yet.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from zonemta_py.errors import QueueCorrupt
from zonemta_py.queue import keys
from zonemta_py.queue.commit import Batch, GroupCommit
from zonemta_py.queue.ready import ReadyWindow, Recipient
from zonemta_py.queue.records import read_waiting
from zonemta_py.queue.store import Store
from zonemta_py.smtp.address import domain_of

REFILL_KEYS = 2000  # keys read in one refill: a few milliseconds
FEED_AT_ONCE = 4  # starved destinations that one lease may feed

DestinationOf = Callable[[str, str], str]  # (zone, domain) → the queue its mail waits in
OnReady = Callable[[str, str], None]  # (zone, destination): there is mail to send
Spill = tuple[str, str, str]  # zone, destination, message

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Placement:
    """Where the recipients of one commit will go: groups in the window, and what spills."""

    groups: list[tuple[str, str, list[Recipient]]] = field(default_factory=list)
    spills: list[Spill] = field(default_factory=list)


class Windows:
    """One ReadyWindow per zone, made when first needed."""

    def __init__(
        self, store: Store, commits: GroupCommit, limit: int, destination_of: DestinationOf
    ) -> None:
        self._store = store
        self._commits = commits
        self._limit = limit
        self.destination_of = destination_of
        self.on_ready: OnReady = lambda zone, destination: None
        self._zones: dict[str, ReadyWindow] = {}
        self._planned: Counter[Spill] = Counter()

    def zone(self, zone: str) -> ReadyWindow:
        """The window of ``zone``."""
        window = self._zones.get(zone)
        if window is None:
            window = self._zones[zone] = ReadyWindow(zone, self._limit)
        return window

    # ---- new and woken mail

    def plan(self, recipients: Sequence[Recipient]) -> Placement:
        """Reserve room for ``recipients``, which are about to be committed as waiting."""
        placement = Placement()
        groups: dict[Spill, list[Recipient]] = {}
        for recipient in recipients:
            destination = self.destination_of(recipient.zone, recipient.record.domain)
            groups.setdefault((recipient.zone, destination, recipient.message), []).append(recipient)
        for spill, members in groups.items():
            zone, destination, _ = spill
            if self.zone(zone).reserve(destination, len(members)):
                placement.groups.append((zone, destination, members))
            else:
                placement.spills.append(spill)
                self._planned[spill] += 1
        return placement

    def place(self, placement: Placement) -> None:
        """The commit is on disk."""
        for zone, destination, members in placement.groups:
            window = self.zone(zone)
            window.unreserve(destination, len(members))
            window.add(destination, members)
            self.on_ready(zone, destination)
        self._unplan(placement.spills)
        for zone, destination, message in placement.spills:
            self.zone(zone).note_spill(destination, message)
            self.on_ready(zone, destination)

    def abandon(self, placement: Placement) -> None:
        """The commit failed."""
        for zone, destination, members in placement.groups:
            self.zone(zone).unreserve(destination, len(members))
        self._unplan(placement.spills)

    def _unplan(self, spills: Sequence[Spill]) -> None:
        for spill in spills:
            self._planned[spill] -= 1
            if not self._planned[spill]:
                del self._planned[spill]

    def offer_scanned(self, recipient: Recipient, placement: Placement) -> None:
        """Put a recipient found by the start-up scan into its window, or plan its spill."""
        zone, destination = recipient.zone, self.destination_of(recipient.zone, recipient.record.domain)
        window = self.zone(zone)
        if recipient.key in window:
            return
        if window.has_room(destination) and not window.has_spilled(destination):
            window.add(destination, [recipient])
            placement.groups.append((zone, destination, [recipient]))
            return
        spill = (zone, destination, recipient.message)
        if not placement.spills or placement.spills[-1] != spill:
            placement.spills.append(spill)
            self._planned[spill] += 1

    def stale_spills(self, placement: Placement) -> list[Spill]:
        """``spill/`` keys of the previous life whose mail a scan has put into the window.

        A destination that has spilled mail by now keeps them: its refill looks there and removes them.
        """
        stale = []
        placed = {
            (zone, destination, r.message) for zone, destination, of in placement.groups for r in of
        }
        for zone, destination, message in sorted(placed - self._planned.keys()):
            if self._store.get(keys.spill_key(zone, destination, message)) is None:
                continue
            if self.zone(zone).has_spilled(destination):
                self.zone(zone).note_spill(destination, message)
            else:
                stale.append((zone, destination, message))
        return stale

    def placed_scanned(self, placement: Placement) -> None:
        """The spill keys of a scan are on disk."""
        self._unplan(placement.spills)
        for zone, destination, message in placement.spills:
            self.zone(zone).note_spill(destination, message)
        touched = {spill[:2] for spill in placement.spills} | {group[:2] for group in placement.groups}
        for zone, destination in touched:
            self.on_ready(zone, destination)

    # ---- filling the window again

    def refill(self, zone: str, destination: str) -> None:
        """Read spilled mail of ``destination`` into the window, oldest first, if it runs low.

        It reads REFILL_KEYS at most; ``has_spilled`` says whether there may be more.
        """
        window = self.zone(zone)
        resume_at = window.wants_refill(destination)
        if resume_at is None:
            return
        batch = Batch()
        try:
            resume_at = self._read_spilled(zone, destination, resume_at, batch)
        except QueueCorrupt as exc:
            resume_at = None  # what is behind the damage waits for a repair
            log.critical("spilled mail of %s in zone %s is left alone: %s", destination, zone, exc)
        window.refilled(destination, resume_at)
        if batch.ops:
            self._commits.submit(batch)

    def _read_spilled(self, zone: str, destination: str, resume_at: str, batch: Batch) -> str | None:
        """Fill the window from ``resume_at``; returns where to go on next time, None at the end."""
        window, budget = self.zone(zone), REFILL_KEYS
        stop = keys.end_of(keys.spill_key(zone, destination, ""))
        for key in self._store.keys(keys.spill_key(zone, destination, resume_at), stop):
            message = keys.parse_spill(key)[2]
            if budget <= 0 or not window.has_room(destination):
                return message
            found, read = self._spilled_recipients(zone, destination, message)
            window.add(destination, found)
            budget -= read + 1
            if (zone, destination, message) not in self._planned:
                batch.delete(key)
            if window.rests(destination) and found:
                return self._after(message)  # a probe: one message is enough
        return None

    @staticmethod
    def _after(message: str) -> str:
        return message + "0"

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
            self.on_ready(zone, destination)

    # ---- destinations that do not answer

    def rest(self, zone: str, destination: str) -> None:
        """Put the mail of a destination that does not answer back on disk: others need the room."""
        evicted = self.zone(zone).evict(destination)
        if not evicted:
            return
        placement = Placement()
        batch = Batch()
        for message in dict.fromkeys(recipient.message for recipient in evicted):
            spill = (zone, destination, message)
            placement.spills.append(spill)
            self._planned[spill] += 1
            batch.put(keys.spill_key(*spill), b"")
        batch.then(lambda _: self._evicted(zone, placement))
        self._commits.submit(batch)

    def _evicted(self, zone: str, placement: Placement) -> None:
        self._unplan(placement.spills)
        for _, destination, message in placement.spills:
            self.zone(zone).note_spill(destination, message)
        self.feed(zone)
