"""The ready windows of all zones: where new and woken mail goes, and how a window is refilled.

States of a waiting recipient::

    reserved, or to be spilled ─ its batch is on disk ─▶ in the window ─▶ leased
                                              └──▶ under a ``spill/`` key of its destination ─ refill ─▶ in the window

Invariants:

- Room is reserved before a commit, so that the ``spill/`` keys of what finds none are in the same batch, and taken after it.
- A waiting recipient is in the window, or a ``spill/`` key leads to it, or the start-up scan has not reached it yet.
- A refill does not delete a spill key that a commit under way is about to write (``pending``).
- Mail of a stream is taken in the order of its messages: one without room lets no later one of its stream pass (``skipped``).
- A refill reads about REFILL_KEYS keys at most; the next one continues where it has ended. An unreachable destination has one
  message of each pool in the window, for a probe, and the others on disk.

Callers: ``Acceptor`` and ``Deferral`` reserve room, ``Operator`` has unused keys deleted; ``Queue.lease`` refills; ``zone_workers``
calls ``feed`` and ``set_unreachable``. ``on_ready`` tells the workers.

Example: a window of 8000 gives a destination 1000 places. Of 5000 messages for it 1000 enter, and 4000 are spilled; when the window
runs low there, a lease reads the next ones.
"""

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import USUAL_KEY, PoolKey
from zonemta_py.queue.commit import GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import RecipientRecord, read_recipient_record
from zonemta_py.queue.ready.spill import SpillKey
from zonemta_py.queue.ready.streams import (
    ONE_POOL,
    MailPools,
    QueuedRecipient,
    Stream,
    rank_of,
)
from zonemta_py.queue.ready.window import ReadyWindow
from zonemta_py.smtp.address import domain_of
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)


# ---- A refill: spilled mail of a destination is read into the window, oldest first, where a stream has little there.
#
# Plain ``def`` throughout; a refill reads a limited number of keys, and the next one continues there.

REFILL_KEYS = 2000  # keys read by one refill: a few milliseconds


class Refill:
    """Of ``destination``, from message ``began`` on. ``skipped``: the first message of each stream without room."""

    def __init__(
        self,
        store: Store,
        window: ReadyWindow,
        destination: str,
        began: str,
        destination_of: Callable[[str, str], str],
    ) -> None:
        self._store = store
        self._window = window
        self._destination = destination
        self._began = began
        self._destination_of = destination_of
        self._budget = REFILL_KEYS
        self._is_probe = window.is_unreachable(destination)
        self._may_have_other_names = (
            window.has_pools
            or window.refills.is_unsorted(destination)
            or window.spilled.has_others(destination, (USUAL_KEY,))
        )
        self.skipped: dict[Stream, str] = {}

    def read(self, batch: WriteBatch, pending: Container[tuple[str, str, str]]) -> str | None:
        """Fill the window; returns the message to resume at, None at the end. ``batch`` deletes the spill keys of what was read.

        ``pending``: the places whose spill key a commit under way is about to write. Raises QueueCorrupt.
        """
        window, zone, destination = self._window, self._window.zone, self._destination
        probed: set[PoolKey] = set()
        for key, message in self._spilled():
            if self._budget <= 0 or (window.room.is_full and not self._is_probe):
                return message
            streams, found = self._streams_of(message)
            if streams and not any(self._is_next(each, message) for each in streams):
                continue
            if streams and not any(self._has_room(each) for each in streams):
                for each in streams:
                    self.skipped.setdefault(each, message)
                if not window.refills.is_unsorted(destination) and self._all_skipped():
                    return message
                continue
            window.add(destination, found if found else self._recipients(message))
            if (zone, destination, message) not in pending:
                batch.delete(key)
            if self._is_probe and streams:
                following = message + "0"  # the id after this one
                probed |= {each.pool_key for each in streams}
                if not window.spilled.has_others(destination, probed):
                    return following  # a probe needs one message of each pool
                for each in streams:
                    self.skipped.setdefault(each, following)
        return None

    def _spilled(self) -> Iterator[tuple[bytes, str]]:
        """The spill keys, and their messages."""
        zone = self._window.zone
        stop = keys.end_of(keys.spill_key(zone, self._destination, ""))
        for key in self._store.keys(keys.spill_key(zone, self._destination, self._began), stop):
            yield key, keys.parse_spill(key)[2]

    def _is_next(self, stream: Stream, message: str) -> bool:
        """True if a message of ``stream`` may be taken."""
        spilled = self._window.spilled
        if self._may_have_other_names:  # then the index may say that an older message was read
            return spilled.is_for(self._destination, stream, self._began)
        return spilled.is_next(self._destination, stream, message, self._began)

    def _has_room(self, stream: Stream) -> bool:
        if stream in self.skipped:
            return False
        return self._is_probe or self._window.has_room(self._destination, stream)

    def _all_skipped(self) -> bool:
        return self._window.spilled.all_skipped(self._destination, self._began, self.skipped)

    def _streams_of(self, message: str) -> tuple[set[Stream], list[QueuedRecipient]]:
        """The streams of a message on disk, and its recipients if they had to be read; no stream if none can be read."""
        self._budget -= 1
        if self._window.has_pools:
            found = [each for each in self._recipients(message) if each.key not in self._window]
            return {self._window.stream(self._destination, each) for each in found}, found
        submitter = self._submitter_of(message)
        return ({Stream(submitter)} if submitter is not None else set()), []

    def _submitter_of(self, message: str) -> str | None:
        """The submitter of a message; None when no record of it can be read."""
        prefix = keys.zone_prefix(keys.WAITING, self._window.zone, message)
        try:
            for _, value in self._store.scan(prefix, keys.end_of(prefix)):
                return read_recipient_record(value).submitter
        except QueueCorrupt:
            pass  # logged by _recipients
        return None

    def _recipients(self, message: str) -> list[QueuedRecipient]:
        """The recipients of a message at this destination."""
        zone = self._window.zone
        prefix = keys.zone_prefix(keys.WAITING, zone, message)
        found: list[QueuedRecipient] = []
        try:
            for key, value in self._store.scan(prefix, keys.end_of(prefix)):
                self._budget -= 1
                address = keys.parse_recipient(key)[2]
                if self._destination_of(zone, domain_of(address)) == self._destination:
                    found.append(
                        QueuedRecipient(key, zone, message, address, read_recipient_record(value))
                    )
        except QueueCorrupt as exc:
            log.critical("%s is not sent, repair the queue: %s", message, exc)
        return found


# ---- windows

ONLY_USUAL = (USUAL_KEY,)
FEED_AT_ONCE = 4  # starved destinations that one lease refills

DestinationOf = Callable[[str, str], str]  # (zone, domain) → the destination where its mail waits
OnReady = Callable[[str, str, bool], None]  # (zone, destination, low volume): there is mail to send


def ignore_ready(zone: str, destination: str, low_volume: bool) -> None:
    """The OnReady of a queue without delivery."""


class _WindowsOfZones(dict[str, ReadyWindow]):
    """By zone; one that is not there is made."""

    def __init__(self, make: Callable[[str], ReadyWindow]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, zone: str) -> ReadyWindow:
        window = self[zone] = self._make(zone)
        return window


class ReadyWindows:
    """One ReadyWindow per zone, created when first needed: ``zone(name)``."""

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
        self._zones = _WindowsOfZones(self._make)
        self.zone = self._zones.__getitem__  # a message asks for it a dozen times: no call of Python
        self._weights: dict[str, int] = {}
        self._pools: MailPools = ONE_POOL
        self.pending: Counter[tuple[str, str, str]] = Counter()  # places that commits under way write

    def _make(self, zone: str) -> ReadyWindow:
        window = ReadyWindow(zone, self._limit, self._weights)
        window.use(self._pools)
        return window

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Serve these submitters as often as ``weights`` says, and the others once; see ``SubmitterQueues``."""
        self._weights.clear()  # the windows share it
        self._weights.update(weights)

    def set_pools(self, pools: MailPools) -> None:
        """Use these pools, from which mail leaves from now on; nothing happens if they are the same."""
        if pools == self._pools:
            return
        self._pools = pools
        for window in self._zones.values():
            window.use(pools)

    def pool_key(self, zone: str, destination: str, record: RecipientRecord) -> PoolKey:
        """The pool of a recipient, see ``MailPools``."""
        return self._pools.pool_key(zone, destination, record)

    def pool_keys(self, zone: str, destination: str) -> tuple[PoolKey, ...]:
        """The pools from which mail of a destination leaves, the next one first; at least one, see ``MailPools``."""
        if self._pools is ONE_POOL:
            return ONLY_USUAL
        window = self.zone(zone)
        if window.spilled.has(destination):
            self.refill(zone, destination)
        return window.pool_keys(destination) or ONLY_USUAL

    # ---- new and woken mail

    def reserve(self, recipients: Sequence[QueuedRecipient]) -> "Reservation":
        """Reserve room for ``recipients``, which a commit is about to write as waiting."""
        reservation = Reservation(self)
        groups: dict[SpillKey, list[QueuedRecipient]] = {}
        spill, last, has_pools = None, ("", "", "", False), self._pools is not ONE_POOL
        for recipient in recipients:
            record = recipient.record
            # The pool may follow from the last attempt; one that does not count has a source.
            attempted = has_pools and bool(record.attempts or record.source)
            group = zone, domain, message, _ = (
                recipient.zone,
                record.domain,
                recipient.message,
                attempted,
            )
            if spill is None or group != last or attempted:  # most messages have one group
                last = group
                destination = self.destination_of(zone, domain)
                stream = self.zone(zone).stream(destination, recipient)
                spill = SpillKey(zone, destination, message, stream)
            groups.setdefault(spill, []).append(recipient)
        for spill, members in groups.items():
            urgent, window = rank_of(members[0].record.flow) == 0, self.zone(spill.zone)
            if window.reserve(spill.destination, spill.stream, len(members), urgent=urgent):
                reservation.groups.append((spill, members))
            else:
                reservation.spills.append(spill)
                self.pending[spill.place] += 1
        return reservation

    def spilled(self, spills: Sequence[SpillKey]) -> None:
        """The commit with these spill keys is on disk."""
        self.not_pending(spills)
        for spill in spills:
            self.zone(spill.zone).refills.note_spill(spill.destination, spill.stream, spill.message)

    def not_pending(self, spills: Iterable[SpillKey]) -> None:
        """The commit with these spill keys has ended."""
        for spill in spills:
            self.pending[spill.place] -= 1
            if not self.pending[spill.place]:
                del self.pending[spill.place]

    def delete_unused_spills(
        self,
        batch: WriteBatch,
        message: str,
        destinations: Set[tuple[str, str]],
        removed: Container[bytes],
    ) -> None:
        """Waiting recipients at ``destinations`` (zone, destination) were removed from ``message``.

        Deletes the spill keys that lead to no other. ``removed``: the keys that ``batch`` removes.
        """
        for zone in {zone for zone, _ in destinations}:
            unused = {
                destination
                for in_zone, destination in destinations
                if in_zone == zone
                and (zone, destination, message) not in self.pending
                and self._store.get(keys.spill_key(zone, destination, message)) is not None
            }
            prefix = keys.zone_prefix(keys.WAITING, zone, message)
            for key in self._store.keys(prefix, keys.end_of(prefix)) if unused else ():
                if key not in removed:
                    unused.discard(self.destination_of_key(key)[1])
                if not unused:
                    break
            for destination in unused:
                batch.delete(keys.spill_key(zone, destination, message))

    def destination_of_key(self, key: bytes) -> tuple[str, str]:
        """The zone and the destination of a waiting recipient."""
        zone, _, address = keys.parse_recipient(key)
        return zone, self.destination_of(zone, domain_of(address))

    # ---- refill

    def refill(self, zone: str, destination: str) -> None:
        """Read spilled mail of ``destination`` into the window, if the window runs low: see ``Refill``.

        ``spilled.has`` says whether there may be more.
        """
        window = self.zone(zone)
        began = window.refills.begins_at(destination)
        if began is None:
            return
        batch = WriteBatch()
        refill = Refill(self._store, window, destination, began, self.destination_of)
        try:
            resume_at = refill.read(batch, self.pending)
        except QueueCorrupt as exc:
            resume_at = None  # mail behind the damage waits for `zonemta queue repair`
            log.critical("spilled mail of %s in zone %s is not sent: %s", destination, zone, exc)
        window.spilled.refilled(destination, began, resume_at, refill.skipped)
        window.refills.refilled(destination, resume_at)
        if batch.ops:
            self._commits.submit(batch)

    def feed(self, zone: str) -> None:
        """Refill starved destinations of a window that has room again."""
        window = self.zone(zone)
        for _ in range(FEED_AT_ONCE):
            destination = window.refills.next_starved()
            if destination is None:
                return
            self.refill(zone, destination)
            self.on_ready(zone, destination, False)

    def set_unreachable(self, zone: str, destination: str) -> None:
        """Spill the mail of a destination that does not answer: others need the room."""
        evicted = self.zone(zone).set_unreachable(destination)
        if not evicted:
            return
        batch = WriteBatch()
        spills = [
            SpillKey(zone, destination, message, stream)
            for message, stream in dict.fromkeys((r.message, r.stream) for r in evicted)
        ]
        for spill in spills:
            self.pending[spill.place] += 1
            batch.put(spill.key, b"")

        def written(_: Exception | None) -> None:
            self.spilled(spills)
            self.feed(zone)
            self.on_ready(zone, destination, False)  # an operator may have ended the suspension before

        batch.future.add_done_callback(written)
        self._commits.submit(batch)


class Reservation:
    """The places of the recipients of one commit: ``groups`` into the windows, ``spills`` to disk."""

    __slots__ = ("_windows", "groups", "spills")

    def __init__(self, windows: ReadyWindows) -> None:
        self._windows = windows
        self.groups: list[tuple[SpillKey, list[QueuedRecipient]]] = []
        self.spills: list[SpillKey] = []

    def write(self, batch: WriteBatch) -> None:
        """Put the spill keys into ``batch``."""
        for spill in self.spills:
            batch.put(spill.key, b"")

    def commit(self) -> None:
        """``batch`` is on disk."""
        windows = self._windows
        for place, members in self.groups:
            window, stream = windows.zone(place.zone), place.stream
            window.room.unreserve(place.destination, stream, len(members))
            window.add(place.destination, members)
            windows.on_ready(place.zone, place.destination, window.room.is_low_volume(stream))
        if self.spills:
            windows.spilled(self.spills)
        for spill in self.spills:
            windows.on_ready(spill.zone, spill.destination, False)

    def rollback(self) -> None:
        """``batch`` was not written."""
        for place, members in self.groups:
            window = self._windows.zone(place.zone)
            window.room.unreserve(place.destination, place.stream, len(members))
        self._windows.not_pending(self.spills)
