"""How many recipients a ready window has room for: in all, of one destination, of one submitter. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping

SHARES = 8  # a destination gets at most 1/8 of the window
HEADROOM = 4  # the last 1/4 of the window is for low-volume submitters
URGENT_SHARES = 2  # shares of a destination that may be filled when urgent mail comes
LOW_VOLUME = 16  # recipients in the window: up to this many find room at any destination, and go first


class WindowRoom:
    """The room of a window of at most ``limit`` recipients.

    ``size`` counts the recipients in it and those reserved for commits under way.
    """

    __slots__ = ("_by_submitter", "_reserved", "limit", "low_volume", "share", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.share = max(1, limit // SHARES)
        self.low_volume = min(LOW_VOLUME, max(1, self.share // 2))
        self.size = 0
        self._reserved: Counter[tuple[str, str]] = Counter()  # by destination and submitter
        self._by_submitter: Counter[str] = Counter()  # of ``size``

    @property
    def is_full(self) -> bool:
        """Whether there is no room for anything."""
        return self.size >= self.limit

    def has_room(self, destination: str, submitter: str, waiting: int, *, urgent: bool) -> bool:
        """Whether one more recipient may enter a destination where ``waiting`` are; urgent mail has larger shares."""
        low_volume = self._by_submitter.get(submitter, 0) < self.low_volume
        if self.size >= (self.limit if low_volume else self.limit - self.limit // HEADROOM):
            return False
        if low_volume or not waiting:
            return True
        share = self.share * URGENT_SHARES if urgent else self.share
        return waiting + self._reserved.get((destination, submitter), 0) < share

    def is_low_volume(self, submitter: str) -> bool:
        """Whether the submitter has so little here that its mail goes first."""
        return self._by_submitter.get(submitter, 0) <= self.low_volume

    def is_low(self, waiting: int, own: int) -> bool:
        """Whether ``own`` of the ``waiting`` recipients of a destination are little: up to half of what finds room."""
        return own <= (self.low_volume // 2 if waiting > self.share // 2 else self.share // 2)

    def reserve(self, destination: str, submitter: str, count: int) -> None:
        """A commit under way brings this number."""
        self._reserved[destination, submitter] += count
        self.count(submitter, count)

    def unreserve(self, destination: str, submitter: str, count: int) -> None:
        """The commit has ended."""
        self.count(submitter, -count)
        remaining = self._reserved[destination, submitter] - count
        if remaining:
            self._reserved[destination, submitter] = remaining
        else:
            del self._reserved[destination, submitter]

    def count(self, submitter: str, change: int) -> None:
        """This number of recipients has entered; negative: has left."""
        self.size += change
        count = self._by_submitter[submitter] + change
        if count:
            self._by_submitter[submitter] = count
        else:
            del self._by_submitter[submitter]

    def problems(self, queued: Mapping[str, int]) -> Iterator[str]:
        """What does not agree with ``queued``, the recipients of each submitter in the window; for tests."""
        counts = Counter(queued)
        for (_, submitter), count in self._reserved.items():
            counts[submitter] += count
        if self.size != counts.total():
            yield f"size {self.size}: {counts.total()} queued or reserved"
        if counts != self._by_submitter:
            yield f"by submitter {self._by_submitter}, counted {counts}"
