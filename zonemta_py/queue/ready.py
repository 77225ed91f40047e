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
    """A waiting recipient in the window or in a lease. ``key`` is its ``delivery-zone/`` key."""

    __slots__ = ("address", "key", "message", "record", "zone")

    def __init__(self, key: bytes, zone: str, message: str, address: str, record: Waiting) -> None:
        self.key = key
        self.zone = zone
        self.message = message
        self.address = address
        self.record = record


class ReadyWindow:
    """One zone's window of at most ``limit`` recipients."""

    def __init__(self, zone: str, limit: int) -> None:
        self.zone = zone
        self.limit = limit
        self.share = max(1, limit // SHARES)
        self.size = 0  # in queues, plus reserved by accepts whose commit is under way
        self._reserved: dict[str, int] = {}
        self._queues: dict[str, deque[Recipient]] = {}
        self._known: set[bytes] = set()  # keys in a queue, leased or held
        self._leased: set[bytes] = set()
        self._held: set[bytes] = set()  # being deleted by an operator
        self._spilled: dict[str, str] = {}  # destination: message id where its refill resumes

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def reserve(self, destination: str, count: int) -> bool:
        """Make room for ``count`` recipients that are being committed; False: write a spill key.

        Mail for a destination with spilled mail goes behind it.
        """
        queued = len(self._queues.get(destination, ())) + self._reserved.get(destination, 0)
        if destination in self._spilled or queued >= self.share or self.size >= self.limit:
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
                self._known.add(recipient.key)
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
            if recipient.key in self._held:
                continue
            taken.append(recipient)
            self._leased.add(recipient.key)
        self.size -= len(taken)
        if queue is not None and not queue:
            del self._queues[destination]
        return taken

    def give_back(self, destination: str, recipients: Iterable[Recipient]) -> None:
        """Put leased recipients back in front, in their order."""
        given = list(recipients)
        self._leased.difference_update(recipient.key for recipient in given)
        self._queues.setdefault(destination, deque()).extendleft(reversed(given))
        self.size += len(given)

    def forget(self, keys: Iterable[bytes]) -> None:
        """These recipients are settled, deferred or deleted."""
        for key in keys:
            self._known.discard(key)
            self._leased.discard(key)
            self._held.discard(key)

    def hold(self, key: bytes) -> bool:
        """Take one waiting recipient out of circulation until ``forget``; False: it is leased.

        One that is in a queue is passed over when its turn comes.
        """
        if key in self._leased or key in self._held:
            return False
        if key in self._known:
            self.size -= 1
        self._known.add(key)
        self._held.add(key)
        return True

    def note_spill(self, destination: str, message: str) -> None:
        """``message`` has spilled recipients for ``destination``; its refill resumes no later."""
        at = self._spilled.get(destination)
        if at is None or message < at:
            self._spilled[destination] = message

    def wants_refill(self, destination: str) -> str | None:
        """The message id to resume at, when the destination runs low and has spilled mail."""
        at = self._spilled.get(destination)
        if at is None or len(self._queues.get(destination, ())) > self.share // 2:
            return None
        return at

    def refilled(self, destination: str, resume_at: str | None) -> None:
        """The spill was read up to ``resume_at``; None: there is nothing more."""
        if resume_at is None:
            self._spilled.pop(destination, None)
        else:
            self._spilled[destination] = resume_at

    def starving(self) -> list[str]:
        """Destinations that have spilled mail and none in the window."""
        return [name for name in self._spilled if name not in self._queues]

    def waiting(self, destination: str) -> int:
        """How many recipients of ``destination`` are in the window."""
        return len(self._queues.get(destination, ()))

    def destinations(self) -> list[str]:
        """Destinations that have mail in the window."""
        return list(self._queues)
