"""The ready window of a zone: the recipients that may be sent next, in memory, bounded.

Each waiting recipient is in the window, or under a ``spill/`` key of its destination, or not yet
reached by the start-up scan. A destination gets a share of the window, so that a blocked one does not fill it; the
last quarter is reserved for low-volume submitters (decision 29).

Plain ``def`` throughout: ``windows.py`` reads the store and writes the batches.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from zonemta_py.queue.spill import SpillIndex
from zonemta_py.queue.submitter_queues import EQUAL, QueuedRecipient, SubmitterQueues, Weights

SHARES = 8  # a destination gets at most 1/8 of the window
HEADROOM = 4  # the last 1/4 of the window is for low-volume submitters
URGENT_SHARES = 2  # shares of a destination that may be filled when urgent mail comes
LOW_VOLUME = 16  # recipients in the window: up to this many find room at any destination, and go first


class ReadyWindow:
    """One zone's window of at most ``limit`` recipients.

    ``size`` counts the recipients in it and those reserved for commits under way.
    """

    def __init__(self, zone: str, limit: int, weights: Weights = EQUAL) -> None:
        self.zone = zone
        self._weights = weights
        self.limit = limit
        self.share = max(1, limit // SHARES)
        self.low_volume = min(LOW_VOLUME, max(1, self.share // 2))
        self.size = 0
        self.spilled = SpillIndex()
        self._queues: dict[str, SubmitterQueues] = {}  # by destination
        self._reserved: Counter[tuple[str, str]] = Counter()  # by destination and submitter
        self._by_submitter: Counter[str] = Counter()  # of ``size``
        # By key: the queued recipient, or None while it is leased or withdrawn.
        self._known: dict[bytes, QueuedRecipient | None] = {}
        self._leased: dict[bytes, str] = {}  # with the destination
        self._withdrawn: set[bytes] = set()  # taken by an operator
        self._suspended: set[str] = set()  # destinations whose mail stays on disk
        self._may_be_low: set[str] = (
            set()
        )  # destinations where a submitter may have little, and spilled mail

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    # ---- room

    def has_room(self, destination: str, submitter: str, *, urgent: bool = False) -> bool:
        """Whether one more recipient of ``submitter`` may enter; urgent mail has larger shares."""
        low_volume = self._by_submitter.get(submitter, 0) < self.low_volume
        if self.size >= (self.limit if low_volume else self.limit - self.limit // HEADROOM):
            return False
        queues = self._queues.get(destination)
        if low_volume or queues is None:
            return True
        share = self.share * URGENT_SHARES if urgent else self.share
        return queues.length + self._reserved.get((destination, submitter), 0) < share

    def is_low_volume(self, submitter: str) -> bool:
        """Whether the submitter has so little here that its mail goes first."""
        return self._by_submitter.get(submitter, 0) <= self.low_volume

    def reserve(self, destination: str, submitter: str, count: int, *, urgent: bool = False) -> bool:
        """Reserve room for ``count`` recipients of a commit under way; False: they are to be spilled.

        Mail of a submitter that has spilled mail at the destination is queued behind that, unless it is urgent.
        """
        if destination in self._suspended or not self.has_room(destination, submitter, urgent=urgent):
            return False
        if not urgent and self.spilled.has(destination, submitter):
            return False
        self._reserved[destination, submitter] += count
        self._by_submitter[submitter] += count
        self.size += count
        return True

    def unreserve(self, destination: str, submitter: str, count: int) -> None:
        """The commit has ended; ``add`` follows if it succeeded."""
        self.size -= count
        self._count(submitter, -count)
        remaining = self._reserved[destination, submitter] - count
        if remaining:
            self._reserved[destination, submitter] = remaining
        else:
            del self._reserved[destination, submitter]

    def _count(self, submitter: str, change: int) -> None:
        count = self._by_submitter[submitter] + change
        if count:
            self._by_submitter[submitter] = count
        else:
            del self._by_submitter[submitter]

    # ---- recipients

    def add(self, destination: str, recipients: Iterable[QueuedRecipient]) -> None:
        """Queue recipients; those already known are skipped."""
        queues = self._queues.get(destination)
        if queues is None:
            queues = self._queues[destination] = SubmitterQueues(self._weights)
        for recipient in recipients:
            if recipient.key not in self._known:
                self._known[recipient.key] = recipient
                queues.append(recipient)
                self._by_submitter[recipient.submitter] += 1
                self.size += 1
        if not queues.length:
            del self._queues[destination]

    def take(self, destination: str, limit: int) -> list[QueuedRecipient]:
        """Lease up to ``limit`` recipients of one message, submitters in turn."""
        queues = self._queues.get(destination)
        if queues is None:
            return []
        taken, turns = queues.take(limit)
        for recipient in taken:
            self._known[recipient.key] = None
            self._leased[recipient.key] = destination
        if taken:
            self.size -= len(taken)
            self._count(taken[0].submitter, -len(taken))
        if self.spilled.has(destination):
            self._note_low(destination, queues, turns)
        if not queues.length:
            del self._queues[destination]
        return taken

    def _note_low(self, destination: str, queues: SubmitterQueues, submitters: Iterable[str]) -> None:
        """These submitters have less than before."""
        low = self._low(queues)
        for submitter in submitters:
            if queues.count(submitter) <= low and self.spilled.has(destination, submitter):
                self._may_be_low.add(destination)
                if not queues.count(submitter):
                    self.spilled.note_starved(destination, submitter)
        if queues.length <= self.share // 2:
            self._may_be_low.add(destination)

    def _low(self, queues: SubmitterQueues) -> int:
        """Up to how many recipients of a submitter are little: half of what finds room."""
        return self.low_volume // 2 if queues.length > self.share // 2 else self.share // 2

    def put_back(self, destination: str, recipients: Iterable[QueuedRecipient]) -> None:
        """Put leased recipients back at the front, in order."""
        returned = list(recipients)
        for recipient in returned:
            self._leased.pop(recipient.key, None)
            self._known[recipient.key] = recipient
            self._by_submitter[recipient.submitter] += 1
        if destination not in self._queues:
            self._queues[destination] = SubmitterQueues(self._weights)
        self._queues[destination].put_back(returned)
        self.size += len(returned)

    def forget(self, keys: Iterable[bytes]) -> None:
        """These recipients are settled, deferred or deleted."""
        for key in keys:
            self._known.pop(key, None)
            self._leased.pop(key, None)
            self._withdrawn.discard(key)

    def withdraw(self, key: bytes) -> bool:
        """Take a waiting recipient out, for an operator; False: it is leased or withdrawn already.

        A queued one is skipped at its turn. ``forget`` or ``restore`` follows.
        """
        if key in self._leased or key in self._withdrawn:
            return False
        queued = self._known.get(key)
        if queued is not None:
            self.size -= 1
            self._count(queued.submitter, -1)
            queued.withdrawn = True
        self._known[key] = queued
        self._withdrawn.add(key)
        return True

    def restore(self, key: bytes) -> None:
        """A withdrawn recipient stays in the queue after all."""
        queued = self._known.get(key)
        self._withdrawn.discard(key)
        if queued is None:
            self._known.pop(key, None)
        else:
            self.size += 1
            self._by_submitter[queued.submitter] += 1
            queued.withdrawn = False

    # ---- suspended destinations

    def suspend(self, destination: str) -> list[QueuedRecipient]:
        """Remove the destination's mail, which is to be spilled, and admit none until ``resume``."""
        self._suspended.add(destination)
        evicted = list(self._queues.pop(destination, ()))
        for recipient in evicted:
            if not recipient.withdrawn:
                self.size -= 1
                self._count(recipient.submitter, -1)
                self._known.pop(recipient.key, None)
            elif recipient.key in self._withdrawn:
                self._known[recipient.key] = (
                    None  # if it is restored, a refill finds it by its spill key
                )
        return evicted

    def resume(self, destination: str) -> None:
        """The destination has answered again."""
        self._suspended.discard(destination)

    def is_suspended(self, destination: str) -> bool:
        """Whether ``suspend`` was called and ``resume`` was not."""
        return destination in self._suspended

    # ---- spilled mail

    def note_spill(self, destination: str, submitter: str, message: str) -> None:
        """``message`` has spilled recipients; the next refill begins there or earlier."""
        self.spilled.note(destination, submitter, message)
        self._may_be_low.add(destination)
        queues = self._queues.get(destination)
        if queues is None or not queues.count(submitter):
            self.spilled.note_starved(destination, submitter)

    def refilled(self, destination: str) -> None:
        """A refill has ended: remember the submitters that it did not reach, see ``SpillIndex``."""
        self._may_be_low.add(destination)
        queues = self._queues.get(destination)
        for submitter in self.spilled.submitters(destination):
            if queues is None or not queues.count(submitter):
                self.spilled.note_starved(destination, submitter)

    def next_starved(self) -> str | None:
        """The destination to refill next, round-robin by submitter; None without room or starved mail."""
        if self.size >= self.limit:
            return None
        return self.spilled.next_starved(self._may_enter)

    def _may_enter(self, destination: str, submitter: str) -> bool | None:
        """Whether a starved submitter finds room; None: not while the destination is suspended."""
        if destination in self._suspended:
            return None
        return self.has_room(destination, submitter)

    def refill_from(self, destination: str) -> str | None:
        """The message id to resume at, when a submitter with spilled mail has little in the window.

        That is half of what finds room: otherwise each lease would read many keys for one.
        """
        queues = self._queues.get(destination)
        if queues is not None and destination not in self._may_be_low:
            return None
        low = self._low(queues) if queues is not None else 0
        found = min(
            (
                message
                for submitter, message in self.spilled.submitters(destination).items()
                if queues is None or queues.count(submitter) <= low
            ),
            default=None,
        )
        if found is None:
            self._may_be_low.discard(destination)
        return found

    def may_refill(self, destination: str) -> bool:
        """Whether there is spilled mail and room for it."""
        return any(self.has_room(destination, who) for who in self.spilled.submitters(destination))

    # ---- queries

    def is_leased(self, key: bytes) -> bool:
        """Whether a worker holds the recipient."""
        return key in self._leased

    def leased(self) -> Counter[str]:
        """How many recipients workers hold, by destination."""
        return Counter(self._leased.values())

    def suspended(self) -> list[str]:
        """The suspended destinations."""
        return list(self._suspended)

    def waiting(self, destination: str) -> int:
        """How many recipients of ``destination`` are in the window."""
        queues = self._queues.get(destination)
        return queues.length if queues is not None else 0

    def submitters(self, destination: str) -> int:
        """How many submitters have recipients of ``destination`` in the window."""
        queues = self._queues.get(destination)
        return queues.submitters if queues is not None else 0

    def has_mail(self, destination: str) -> bool:
        """Whether there is mail of ``destination`` to lease, in the window or spilled."""
        return destination in self._queues or self.spilled.has(destination)

    def destinations(self) -> list[str]:
        """Destinations that have mail in the window."""
        return list(self._queues)

    def problems(self) -> Iterator[str]:
        """Violations of the invariants of this class, for tests."""
        queued = [r for queues in self._queues.values() for r in queues]
        active = [r for r in queued if not r.withdrawn]
        if self.size != len(active) + self._reserved.total():
            yield f"size {self.size}: {len(active)} queued, {self._reserved.total()} reserved"
        counts = Counter(r.submitter for r in active)
        for (_, submitter), count in self._reserved.items():
            counts[submitter] += count
        if counts != self._by_submitter:
            yield f"by submitter {self._by_submitter}, counted {counts}"
        for recipient in active:
            if self._known.get(recipient.key) is not recipient or recipient.key in self._leased:
                yield f"{recipient.key!r} is queued, and not known as queued"
        for destination, queues in self._queues.items():
            if queues.length != sum(1 for _ in queues):
                yield f"{destination}: length {queues.length}"
