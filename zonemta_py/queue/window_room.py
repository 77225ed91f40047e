"""How many recipients a ready window has room for: in all, of one destination and pool, of one stream of mail. Pure.

A stream is the mail of a submitter that leaves from one pool, see ``submitter_queues``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from zonemta_py.core.model import PoolKey
from zonemta_py.queue.submitter_queues import ONE_POOL, MailPools, pool_key_of, whole_stream

SHARES = 8  # a destination gets at most 1/8 of the window
HEADROOM = 4  # the last 1/4 of the window is for streams of low volume
URGENT_SHARES = 2  # shares of a destination that may be filled when urgent mail comes
LOW_VOLUME = 16  # recipients in the window: up to this many find room at any destination, and go first


class WindowRoom:
    """The room of a window of at most ``limit`` recipients.

    ``size`` counts the recipients in it and those reserved for commits under way. ``pools``: which pools are parts of one.
    """

    __slots__ = ("_by_stream", "_reserved", "_share", "limit", "low_volume", "pools", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._share = max(1, limit // SHARES)
        self.low_volume = min(LOW_VOLUME, max(1, self._share // 2))
        self.pools: MailPools = ONE_POOL
        self.size = 0
        self._reserved: Counter[tuple[str, str]] = Counter()  # by destination and stream
        self._by_stream: Counter[str] = Counter()  # of ``size``; parts of a pool count together

    @property
    def is_full(self) -> bool:
        """Whether there is no room for anything."""
        return self.size >= self.limit

    def share(self, pool_key: PoolKey) -> int:
        """How many recipients of a destination may leave from ``pool_key``; a part of a pool has part of a share."""
        return max(1, self._share // self.pools.share_divisor(pool_key))

    def has_room(self, destination: str, stream: str, waiting: int, *, urgent: bool) -> bool:
        """Whether one more recipient may enter a destination where ``waiting`` leave from its pool; urgent mail has larger shares."""
        low_volume = self._by_stream.get(whole_stream(stream), 0) < self.low_volume
        if self.size >= (self.limit if low_volume else self.limit - self.limit // HEADROOM):
            return False
        if low_volume:
            return True
        share = self.share(pool_key_of(stream)) * (URGENT_SHARES if urgent else 1)
        return waiting + self._reserved.get((destination, stream), 0) < share

    def is_low_volume(self, stream: str) -> bool:
        """Whether the stream has so little here that its mail goes first."""
        return self._by_stream.get(whole_stream(stream), 0) <= self.low_volume

    def is_low(self, pool_key: PoolKey, waiting: int, own: int) -> bool:
        """Whether ``own`` of the recipients that are ``waiting`` to leave from ``pool_key`` are little: up to half of what finds room."""
        half = self.share(pool_key) // 2
        return own <= (self.low_volume // 2 if waiting > half else half)

    def reserve(self, destination: str, stream: str, count: int) -> None:
        """A commit under way brings this number."""
        self._reserved[destination, stream] += count
        self.count(stream, count)

    def unreserve(self, destination: str, stream: str, count: int) -> None:
        """The commit has ended."""
        self.count(stream, -count)
        remaining = self._reserved[destination, stream] - count
        if remaining:
            self._reserved[destination, stream] = remaining
        else:
            del self._reserved[destination, stream]

    def count(self, stream: str, change: int) -> None:
        """This number of recipients has entered; negative: has left."""
        self.size += change
        stream = whole_stream(stream)
        count = self._by_stream[stream] + change
        if count:
            self._by_stream[stream] = count
        else:
            del self._by_stream[stream]

    def problems(self, queued: Mapping[str, int]) -> Iterator[str]:
        """What does not agree with ``queued``, the recipients of each stream in the window; for tests."""
        counts = Counter[str]()
        for stream, count in queued.items():
            counts[whole_stream(stream)] += count
        for (_, stream), count in self._reserved.items():
            counts[whole_stream(stream)] += count
        if self.size != counts.total():
            yield f"size {self.size}: {counts.total()} queued or reserved"
        if counts != self._by_stream:
            yield f"by stream {self._by_stream}, counted {counts}"
