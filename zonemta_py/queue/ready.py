"""The ready window of a zone: what may be sent next, in memory, bounded.

Every waiting recipient is in the window, or under a ``spill/`` key of its destination, or ahead of
the start-up scan. Each destination has a share of the window, so that a blocked one does not keep
others out. Order within a destination is oldest first as far as the window reaches.

Plain ``def`` throughout: the caller reads the database and writes the batches.
"""

from collections import deque
from collections.abc import Iterable

from zonemta_py.queue.records import Waiting

SHARES = 8  # a destination gets at most 1/8 of the window, unless the window is nearly empty


class Recipient:
    """A waiting recipient in the window or in a lease. ``key`` is its ``delivery-zone/`` key.

    ``void``: still in a queue, but an operator has taken it out.
    """

    __slots__ = ("address", "key", "message", "record", "void", "zone")

    def __init__(self, key: bytes, zone: str, message: str, address: str, record: Waiting) -> None:
        self.key = key
        self.zone = zone
        self.message = message
        self.address = address
        self.record = record
        self.void = False


class ReadyWindow:
    """One zone's window of at most ``limit`` recipients."""

    def __init__(self, zone: str, limit: int) -> None:
        self.zone = zone
        self.limit = limit
        self.share = max(1, limit // SHARES)
        self.size = 0  # in queues, plus reserved by accepts whose commit is under way
        self._reserved: dict[str, int] = {}
        self._queues: dict[str, deque[Recipient]] = {}
        # Keys in a queue, leased or being taken out by an operator; with the object of one in a queue.
        self._known: dict[bytes, Recipient | None] = {}
        self._leased: set[bytes] = set()
        self._withdrawn: set[bytes] = set()  # being deleted by an operator
        self._resting: set[str] = set()  # destinations that do not answer: their mail stays on disk
        self._starved: dict[str, None] = {}  # spilled mail and an empty queue, in order of waiting
        self._spilled: dict[str, str] = {}  # destination: message id where its refill resumes

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def reserve(self, destination: str, count: int) -> bool:
        """Make room for ``count`` recipients that are being committed; False: write a spill key.

        Mail for a destination with spilled mail goes behind it.
        """
        queued = len(self._queues.get(destination, ())) + self._reserved.get(destination, 0)
        full = queued >= self.share or self.size >= self.limit
        if full or destination in self._spilled or destination in self._resting:
            return False
        self._reserved[destination] = self._reserved.get(destination, 0) + count
        self.size += count
        return True

    def unreserve(self, destination: str, count: int) -> None:
        """The commit is over; the recipients come by ``add``, or not at all if it failed."""
        self.size -= count
        left = self._reserved[destination] - count
        if left:
            self._reserved[destination] = left
        else:
            del self._reserved[destination]

    def has_room(self, destination: str) -> bool:
        """Whether the scan may put another recipient of ``destination`` here."""
        return self.size < self.limit and len(self._queues.get(destination, ())) < self.share

    def add(self, destination: str, recipients: Iterable[Recipient]) -> None:
        """Put recipients at the end of their destination's queue; known ones are passed over."""
        queue = self._queues.get(destination)
        if queue is None:
            queue = self._queues[destination] = deque()
        for recipient in recipients:
            if recipient.key not in self._known:
                self._known[recipient.key] = recipient
                queue.append(recipient)
                self.size += 1
        if not queue:
            del self._queues[destination]

    def take(self, destination: str, most: int) -> list[Recipient]:
        """Lease up to ``most`` recipients of the oldest message at ``destination``."""
        queue = self._queues.get(destination)
        taken: list[Recipient] = []
        while queue and len(taken) < most:
            if taken and queue[0].message != taken[0].message:
                break
            recipient = queue.popleft()
            if recipient.void:
                continue
            self._known[recipient.key] = None
            taken.append(recipient)
            self._leased.add(recipient.key)
        self.size -= len(taken)
        if queue is not None and not queue:
            del self._queues[destination]
        return taken

    def give_back(self, destination: str, recipients: Iterable[Recipient]) -> None:
        """Put leased recipients back in front, in their order."""
        given = list(recipients)
        for recipient in given:
            self._leased.discard(recipient.key)
            self._known[recipient.key] = recipient
        self._queues.setdefault(destination, deque()).extendleft(reversed(given))
        self.size += len(given)

    def forget(self, keys: Iterable[bytes]) -> None:
        """These recipients are settled, deferred or deleted."""
        for key in keys:
            self._known.pop(key, None)
            self._leased.discard(key)
            self._withdrawn.discard(key)

    def withdraw(self, key: bytes) -> bool:
        """Take one waiting recipient out of circulation, for an operator; False: it is leased.

        One in a queue is passed over when its turn comes. ``forget`` follows its deletion.
        """
        if key in self._leased or key in self._withdrawn:
            return False
        queued = self._known.get(key)
        if queued is not None:
            self.size -= 1
            queued.void = True
        self._known[key] = queued
        self._withdrawn.add(key)
        return True

    def restore(self, key: bytes) -> None:
        """A withdrawn recipient stays after all."""
        queued = self._known.get(key)
        self._withdrawn.discard(key)
        if queued is None:
            self._known.pop(key, None)
        else:
            self.size += 1
            queued.void = False

    def evict(self, destination: str) -> list[Recipient]:
        """Take a destination's queue out of the window, to be spilled; it rests until ``awake``."""
        self._resting.add(destination)
        queue = self._queues.pop(destination, ())
        for recipient in queue:
            if recipient.void:
                if recipient.key in self._withdrawn:
                    self._known[recipient.key] = (
                        None  # should it stay after all, its spill key leads to it
                    )
            else:
                self.size -= 1
                self._known.pop(recipient.key, None)
        return list(queue)

    def awake(self, destination: str) -> None:
        """The destination answers again."""
        self._resting.discard(destination)

    def rests(self, destination: str) -> bool:
        """Whether the destination was evicted and has not answered since."""
        return destination in self._resting

    def note_starved(self, destination: str) -> None:
        """Remember a destination that has spilled mail and an empty queue, until there is room."""
        if destination in self._spilled and destination not in self._queues:
            self._starved[destination] = None

    def next_starved(self) -> str | None:
        """The destination that has waited longest for room, if there is any room now."""
        while self._starved and self.size < self.limit:
            destination = next(iter(self._starved))
            del self._starved[destination]
            if destination in self._spilled and destination not in self._resting:
                return destination
        return None

    def note_spill(self, destination: str, message: str) -> None:
        """``message`` has spilled recipients for ``destination``; its refill resumes no later."""
        at = self._spilled.get(destination)
        if at is None or message < at:
            self._spilled[destination] = message
        self.note_starved(destination)

    def wants_refill(self, destination: str) -> str | None:
        """The message id to resume at, when the destination runs low and has spilled mail."""
        at = self._spilled.get(destination)
        if at is None or len(self._queues.get(destination, ())) > self.share // 2:
            return None
        return at

    def has_spilled(self, destination: str) -> bool:
        """Whether mail of the destination may be on disk and not here."""
        return destination in self._spilled

    def refilled(self, destination: str, resume_at: str | None) -> None:
        """The spill was read up to ``resume_at``; None: there is nothing more."""
        if resume_at is None:
            self._spilled.pop(destination, None)
        else:
            self._spilled[destination] = resume_at

    def waiting(self, destination: str) -> int:
        """How many recipients of ``destination`` are in the window."""
        return len(self._queues.get(destination, ()))

    def has_mail(self, destination: str) -> bool:
        """Whether there is mail of ``destination`` to lease, here or on disk."""
        return destination in self._queues or destination in self._spilled

    def destinations(self) -> list[str]:
        """Destinations that have mail in the window."""
        return list(self._queues)
