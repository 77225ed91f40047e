"""The ready windows of all zones: where new and woken mail goes, and how a window is filled again.

A placement is planned before a commit (so that its spill keys are in the same batch) and carried
out after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from zonemta_py.queue import keys
from zonemta_py.queue.commit import Batch, GroupCommit
from zonemta_py.queue.leveldb import LevelStore
from zonemta_py.queue.ready import ReadyWindow, Recipient
from zonemta_py.queue.records import Waiting, read_waiting

REFILL_MESSAGES = 500  # spilled messages read at a time: about 5 ms

DestinationOf = Callable[[str, str], str]  # (zone, domain) → the queue its mail waits in
OnReady = Callable[[str, str], None]  # (zone, destination): there is mail to send


@dataclass(slots=True)
class Placement:
    """Where the recipients of one commit will go: groups in the window, and what spills."""

    groups: list[tuple[str, str, list[Recipient]]] = field(default_factory=list)
    spills: list[tuple[str, str, str]] = field(default_factory=list)  # zone, destination, message


class Windows:
    """One ReadyWindow per zone, made when first needed."""

    def __init__(
        self, store: LevelStore, commits: GroupCommit, limit: int, destination_of: DestinationOf
    ) -> None:
        self._store = store
        self._commits = commits
        self._limit = limit
        self.destination_of = destination_of
        self.on_ready: OnReady = lambda zone, destination: None
        self._zones: dict[str, ReadyWindow] = {}

    def zone(self, zone: str) -> ReadyWindow:
        """The window of ``zone``."""
        window = self._zones.get(zone)
        if window is None:
            window = self._zones[zone] = ReadyWindow(zone, self._limit)
        return window

    def plan(self, recipients: Sequence[Recipient]) -> Placement:
        """Reserve room for ``recipients``, which are about to be committed as waiting."""
        placement = Placement()
        groups: dict[tuple[str, str, str], list[Recipient]] = {}
        for recipient in recipients:
            destination = self.destination_of(recipient.zone, recipient.record.domain)
            groups.setdefault((recipient.zone, destination, recipient.message), []).append(recipient)
        for (zone, destination, message), members in groups.items():
            if self.zone(zone).reserve(destination, len(members)):
                placement.groups.append((zone, destination, members))
            else:
                placement.spills.append((zone, destination, message))
        return placement

    def place(self, placement: Placement) -> None:
        """The commit is on disk."""
        for zone, destination, members in placement.groups:
            window = self.zone(zone)
            window.unreserve(destination, len(members))
            window.add(destination, members)
            self.on_ready(zone, destination)
        for zone, destination, message in placement.spills:
            self.zone(zone).note_spill(destination, message)
            self.on_ready(zone, destination)

    def abandon(self, placement: Placement) -> None:
        """The commit failed."""
        for zone, destination, members in placement.groups:
            self.zone(zone).unreserve(destination, len(members))

    def offer_scanned(self, batch: Batch, recipient: Recipient) -> str | None:
        """Put a recipient found by the start-up scan into its window, or note its spill in ``batch``.

        Returns the destination that got mail, None if it spilled or was known.
        """
        window = self.zone(recipient.zone)
        if recipient.key in window:
            return None
        destination = self.destination_of(recipient.zone, recipient.record.domain)
        if window.has_room(destination) and window.wants_refill(destination) is None:
            window.add(destination, [recipient])
            return destination
        batch.put(keys.spill_key(recipient.zone, destination, recipient.message), b"")
        window.note_spill(destination, recipient.message)
        return None

    def refill(self, zone: str, destination: str) -> None:
        """Read spilled mail of ``destination`` into the window, oldest first, if it runs low."""
        window = self.zone(zone)
        resume_at = window.wants_refill(destination)
        if resume_at is None:
            return
        start = keys.spill_key(zone, destination, resume_at)
        stop = keys.end_of(keys.spill_key(zone, destination, ""))
        batch = Batch()
        resume_at = None
        for count, key in enumerate(self._store.keys(start, stop)):
            message = keys.parse_spill(key)[2]
            if count == REFILL_MESSAGES or not window.has_room(destination):
                resume_at = message
                break
            window.add(destination, self._spilled_recipients(zone, destination, message))
            batch.delete(key)
        window.refilled(destination, resume_at)
        if batch.ops:
            self._commits.submit(batch)

    def feed_starving(self, zone: str) -> None:
        """Give destinations whose mail is all spilled their part of a window that has room again."""
        window = self.zone(zone)
        if window.size > window.limit // 2:
            return
        for destination in window.starving():
            self.refill(zone, destination)
            if window.waiting(destination):
                self.on_ready(zone, destination)

    def _spilled_recipients(self, zone: str, destination: str, message: str) -> list[Recipient]:
        prefix = keys.zone_prefix(keys.WAITING, zone, message)
        found = []
        for key, value in self._store.scan(prefix, keys.end_of(prefix)):
            record: Waiting = read_waiting(value)
            if self.destination_of(zone, record.domain) == destination:
                found.append(Recipient(key, zone, message, keys.parse_recipient(key)[2], record))
        return found
