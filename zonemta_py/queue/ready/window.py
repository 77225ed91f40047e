"""The ready window of a zone: the recipients that may be sent next, in memory, bounded.

Each waiting recipient is in the window, or under a ``spill/`` key of its destination, or not yet
reached by the start-up scan. A destination gets a share of the window, so that a blocked one does not fill it; the
last quarter is reserved for streams of low volume (decision 29). A stream is the mail of a submitter that leaves from one pool;
mail for each pool has a share of its own, so that what waits for the addresses of one leaves room for the others.

Plain ``def`` throughout: ``windows.py`` reads the store and writes the batches.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from zonemta_py.core.model import USUAL_KEY, PoolKey
from zonemta_py.queue.ready.spill import SpillIndex
from zonemta_py.queue.ready.streams import (
    EQUAL,
    NO_STREAM,
    ONE_POOL,
    MailPools,
    QueuedRecipient,
    Stream,
    SubmitterQueues,
    Weights,
)

# ---- How many recipients a ready window has room for: in all, of one destination and pool, of one stream of mail. Pure.

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
        self._reserved: Counter[tuple[str, Stream]] = Counter()  # by destination and stream
        # Of ``size``, by submitter and pool: parts of a pool count together.
        self._by_stream: Counter[tuple[str, str]] = Counter()

    @property
    def is_full(self) -> bool:
        """True if there is no room for anything."""
        return self.size >= self.limit

    def share(self, pool_key: PoolKey) -> int:
        """How many recipients of a destination may leave from ``pool_key``; a part of a pool has part of a share."""
        return max(1, self._share // self.pools.share_divisor(pool_key))

    def has_room(self, destination: str, stream: Stream, waiting: int, *, urgent: bool) -> bool:
        """True if one more recipient may enter a destination where ``waiting`` leave from its pool; urgent mail has larger shares."""
        low_volume = self._by_stream.get((stream.submitter, stream.pool_key.pool), 0) < self.low_volume
        if self.size >= (self.limit if low_volume else self.limit - self.limit // HEADROOM):
            return False
        if low_volume:
            return True
        share = self.share(stream.pool_key) * (URGENT_SHARES if urgent else 1)
        return waiting + self._reserved.get((destination, stream), 0) < share

    def is_low_volume(self, stream: Stream) -> bool:
        """True if the stream has so little here that its mail goes first."""
        return self._by_stream.get((stream.submitter, stream.pool_key.pool), 0) <= self.low_volume

    def is_low(self, pool_key: PoolKey, waiting: int, own: int) -> bool:
        """True if ``own`` of the recipients that are ``waiting`` to leave from ``pool_key`` are little: up to half of what finds room."""
        half = self.share(pool_key) // 2
        return own <= (self.low_volume // 2 if waiting > half else half)

    def reserve(self, destination: str, stream: Stream, count: int) -> None:
        """A commit under way brings this number."""
        self._reserved[destination, stream] += count
        self.count(stream, count)

    def unreserve(self, destination: str, stream: Stream, count: int) -> None:
        """The commit has ended."""
        self.count(stream, -count)
        remaining = self._reserved[destination, stream] - count
        if remaining:
            self._reserved[destination, stream] = remaining
        else:
            del self._reserved[destination, stream]

    def count(self, stream: Stream, change: int) -> None:
        """This number of recipients has entered; negative: has left."""
        self.size += change
        whole = stream.submitter, stream.pool_key.pool
        count = self._by_stream[whole] + change
        if count:
            self._by_stream[whole] = count
        else:
            del self._by_stream[whole]

    def problems(self, queued: Mapping[Stream, int]) -> Iterator[str]:
        """The differences from ``queued``, the recipients of each stream in the window; for tests."""
        counts = Counter[tuple[str, str]]()
        for stream, count in queued.items():
            counts[stream.submitter, stream.pool_key.pool] += count
        for (_, stream), count in self._reserved.items():
            counts[stream.submitter, stream.pool_key.pool] += count
        if self.size != counts.total():
            yield f"size {self.size}: {counts.total()} queued or reserved"
        if counts != self._by_stream:
            yield f"by stream {self._by_stream}, counted {counts}"


# ---- Which spilled mail of a zone is read into its window next, and from which message on. Pure.

HasRoom = Callable[[str, Stream], bool]  # (destination, stream): whether one more recipient may enter


class RefillChoice:
    """``spilled``: what is on disk. ``queues``: what is in the window, by destination.

    ``unreachable``: destinations whose mail stays on disk.
    """

    def __init__(
        self,
        spilled: SpillIndex,
        room: WindowRoom,
        queues: Mapping[str, SubmitterQueues],
        has_room: HasRoom,
    ) -> None:
        self._spilled = spilled
        self._room = room
        self._queues = queues
        self._has_room = has_room
        self.unreachable: set[str] = set()
        # Destinations whose mail on disk is to be read as a whole, and from which message on.
        self._unsorted: dict[str, str] = {}
        # Destinations where a submitter may have little, and spilled mail.
        self._may_be_low: set[str] = set()

    # ---- what changes the choice

    def note_spill(self, destination: str, stream: Stream, message: str) -> None:
        """``message`` has spilled recipients; the next refill begins there or earlier."""
        self._spilled.note(destination, stream, message)
        if destination in self._unsorted:
            self._unsorted[destination] = min(message, self._unsorted[destination])
        self._may_be_low.add(destination)
        self.note_starved(destination, [stream])

    def note_starved(self, destination: str, streams: Iterable[Stream]) -> None:
        """Those of ``streams`` that have spilled mail and nothing in the window wait for their turn."""
        queues = self._queues.get(destination)
        for stream in streams:
            if queues is None or not queues.count(stream):
                self._spilled.note_starved(destination, stream)

    def note_low(self, destination: str, queues: SubmitterQueues, streams: Iterable[Stream]) -> None:
        """These streams of a destination have less than before in ``queues``."""
        for stream in streams:
            if self._is_low(queues, stream) and self._spilled.has(destination, stream):
                self._may_be_low.add(destination)
                if not queues.count(stream):
                    self._spilled.note_starved(destination, stream)
            pool_key = stream.pool_key
            if queues.waiting(pool_key) <= self._room.share(pool_key) // 2:
                self._may_be_low.add(destination)

    def set_reachable(self, destination: str) -> None:
        """The destination has answered again."""
        self.unreachable.discard(destination)
        self.note_starved(destination, self._spilled.streams(destination))

    def begin_again(self) -> None:
        """Mail leaves from other pools than before: the streams of what is on disk are not known."""
        self._unsorted = self._spilled.begin_again()
        for destination in self._unsorted:
            self.note_starved(destination, self._spilled.streams(destination))

    def refilled(self, destination: str, resume_at: str | None) -> None:
        """A refill has ended before message ``resume_at``: remember the streams that it did not reach, see ``SpillIndex``."""
        self._may_be_low.add(destination)
        if resume_at is None:
            self._unsorted.pop(destination, None)
        elif destination in self._unsorted:
            self._unsorted[destination] = resume_at
        self.note_starved(destination, self._spilled.streams(destination))

    # ---- the choice

    def next_starved(self) -> str | None:
        """The destination to refill next, round-robin by stream; None without room or starved mail."""
        if self._room.is_full:
            return None
        return self._spilled.next_starved(self._may_enter)

    def _may_enter(self, destination: str, stream: Stream) -> bool | None:
        """True if a starved stream finds room; None: not while the destination is unreachable."""
        if destination in self.unreachable:
            return None
        return self._has_room(destination, stream)

    def begins_at(self, destination: str) -> str | None:
        """The message id to resume at, when a stream with spilled mail has little in the window, and room.

        Little is half of what finds room: otherwise each lease would read many keys for one. After ``begin_again``
        all messages are read once.
        """
        if destination in self._unsorted:
            return self._unsorted[destination]
        queues = self._queues.get(destination)
        if queues is not None and destination not in self._may_be_low:
            return None
        low = {
            stream: message
            for stream, message in self._spilled.streams(destination).items()
            if self._is_low(queues, stream)
        }
        if not low:
            self._may_be_low.discard(destination)
        # One without room would hide what is behind its mail.
        entering = [low[stream] for stream in low if self._may_enter(destination, stream) is not False]
        return min(entering, default=None)

    def _is_low(self, queues: SubmitterQueues | None, stream: Stream) -> bool:
        if queues is None:
            return True
        pool_key = stream.pool_key
        return self._room.is_low(pool_key, queues.waiting(pool_key), queues.count(stream))

    def is_unsorted(self, destination: str) -> bool:
        """True if the streams of what it has on disk are not known."""
        return destination in self._unsorted

    def may_refill(self, destination: str) -> bool:
        """True if there is spilled mail and room for it."""
        return any(self._has_room(destination, stream) for stream in self._spilled.streams(destination))


# ---- ready


class ReadyWindow:
    """One zone's window of at most ``limit`` recipients; ``room`` counts them."""

    def __init__(self, zone: str, limit: int, weights: Weights = EQUAL) -> None:
        self.zone = zone
        self._weights = weights
        self.room = WindowRoom(limit)
        self.spilled = SpillIndex()
        self._last_stream = NO_STREAM  # most recipients share that of the one before
        self._queues: dict[str, SubmitterQueues] = {}
        # By key: the queued recipient, or None while it is leased or withdrawn.
        self._known: dict[bytes, QueuedRecipient | None] = {}
        self._leased: dict[bytes, str] = {}  # with the destination
        self._withdrawn: set[bytes] = set()  # taken by an operator
        self.refills = RefillChoice(self.spilled, self.room, self._queues, self.has_room)

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    # ---- room

    @property
    def has_pools(self) -> bool:
        """True if some mail leaves from another pool than that of its destination."""
        return self.room.pools is not ONE_POOL

    def stream(self, destination: str, recipient: QueuedRecipient) -> Stream:
        pools, last = self.room.pools, self._last_stream
        pool_key = USUAL_KEY
        if pools is not ONE_POOL:
            pool_key = pools.pool_key(self.zone, destination, recipient.record)
        if recipient.submitter != last.submitter or pool_key != last.pool_key:
            last = self._last_stream = Stream(recipient.submitter, pool_key)
        return last

    def has_room(self, destination: str, stream: Stream, *, urgent: bool = False) -> bool:
        """True if one more recipient of ``stream`` may enter; urgent mail has larger shares."""
        queues = self._queues.get(destination)
        waiting = queues.waiting(stream.pool_key) if queues is not None else 0
        return self.room.has_room(destination, stream, waiting, urgent=urgent)

    def reserve(self, destination: str, stream: Stream, count: int, *, urgent: bool = False) -> bool:
        """Reserve room for ``count`` recipients of a commit under way; False: they are to be spilled.

        Mail of a stream that has spilled mail at the destination is queued behind that, unless it is urgent.
        """
        if destination in self.refills.unreachable or not self.has_room(
            destination, stream, urgent=urgent
        ):
            return False
        if not urgent and self.spilled.has(destination, stream):
            return False
        self.room.reserve(destination, stream, count)
        return True

    # ---- recipients

    def add(self, destination: str, recipients: Iterable[QueuedRecipient]) -> None:
        """Queue recipients; those already known are skipped."""
        queues = self._queues.get(destination)
        if queues is None:
            queues = self._queues[destination] = SubmitterQueues(self._weights)
        for recipient in recipients:
            if recipient.key not in self._known:
                self._known[recipient.key] = recipient
                recipient.stream = self.stream(destination, recipient)
                queues.append(recipient)
                self.room.count(recipient.stream, 1)
        if not queues.length:
            del self._queues[destination]

    def take(
        self, destination: str, limit: int, pool_key: PoolKey | None = None
    ) -> list[QueuedRecipient]:
        """Lease up to ``limit`` recipients of one message, streams in turn. ``pool_key``: see ``SubmitterQueues.take``."""
        queues = self._queues.get(destination)
        if queues is None:
            return []
        taken, turns = queues.take(limit, pool_key)
        for recipient in taken:
            self._known[recipient.key] = None
            self._leased[recipient.key] = destination
        if taken:
            self.room.count(turns[-1], -len(taken))
        if self.spilled.has(destination):
            self.refills.note_low(destination, queues, turns)
        if not queues.length:
            del self._queues[destination]
        return taken

    def put_back(self, destination: str, recipients: Iterable[QueuedRecipient]) -> None:
        """Put leased recipients back at the front, in order."""
        returned = list(recipients)
        for recipient in returned:
            self._leased.pop(recipient.key, None)
            self._known[recipient.key] = recipient
            recipient.stream = self.stream(destination, recipient)
            self.room.count(recipient.stream, 1)
        if returned and destination not in self._queues:
            self._queues[destination] = SubmitterQueues(self._weights)
        if returned:
            self._queues[destination].put_back(returned)

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
            self.room.count(queued.stream, -1)
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
            self.room.count(queued.stream, 1)
            queued.withdrawn = False

    # ---- unreachable destinations

    def set_unreachable(self, destination: str) -> list[QueuedRecipient]:
        """Remove the destination's mail, which is to be spilled, and admit none until ``set_reachable``."""
        self.refills.unreachable.add(destination)
        evicted = []
        for recipient in self._queues.pop(destination, ()):
            if not recipient.withdrawn:
                self.room.count(recipient.stream, -1)
                self._known.pop(recipient.key, None)
            elif recipient.key in self._withdrawn:
                self._known[recipient.key] = (
                    None  # if it is restored, a refill finds it by its spill key
                )
            else:
                continue  # it was deleted
            evicted.append(recipient)
        return evicted

    def set_reachable(self, destination: str) -> None:
        """The destination has answered again."""
        self.refills.set_reachable(destination)

    def is_unreachable(self, destination: str) -> bool:
        """True if its mail stays on disk: it was set unreachable, and has not answered since."""
        return destination in self.refills.unreachable

    # ---- queries

    def is_leased(self, key: bytes) -> bool:
        """True if a worker holds the recipient."""
        return key in self._leased

    def leased(self) -> Counter[str]:
        """How many recipients workers hold, by destination."""
        return Counter(self._leased.values())

    def unreachable(self) -> list[str]:
        return list(self.refills.unreachable)

    def waiting(self, destination: str) -> int:
        """How many recipients of ``destination`` are in the window."""
        queues = self._queues.get(destination)
        return queues.length if queues is not None else 0

    def submitters(self, destination: str) -> int:
        """How many submitters have recipients of ``destination`` in the window."""
        queues = self._queues.get(destination)
        return queues.submitters if queues is not None else 0

    def has_mail(self, destination: str, pool_key: PoolKey | None = None) -> bool:
        """True if there is mail of ``destination`` to lease, in the window or spilled; with a ``pool_key``: that leaves from there."""
        queues = self._queues.get(destination)
        if pool_key is None:
            return queues is not None or self.spilled.has(destination)
        return bool(queues is not None and queues.waiting(pool_key)) or self.spilled.has_pool_key(
            destination, pool_key
        )

    def pool_keys(self, destination: str) -> tuple[PoolKey, ...]:
        """The pools from which the mail of ``destination`` in the window leaves, the next one first."""
        queues = self._queues.get(destination)
        return queues.pool_keys if queues is not None else ()

    def destinations(self) -> list[str]:
        """Destinations that have mail in the window."""
        return list(self._queues)

    def use(self, pools: MailPools) -> None:
        """Mail leaves from other pools than before."""
        self.room.pools = pools
        for destination, queues in list(self._queues.items()):
            self._queues[destination] = moved = SubmitterQueues(self._weights)
            for recipient in queues:
                stream = self.stream(destination, recipient)
                if not recipient.withdrawn:
                    self.room.count(recipient.stream, -1)
                    self.room.count(stream, 1)
                recipient.stream = stream
                moved.append(recipient)
        self.refills.begin_again()

    def problems(self) -> Iterator[str]:
        """Violations of the invariants of this class, for tests."""
        queued = [r for queues in self._queues.values() for r in queues]
        active = [r for r in queued if not r.withdrawn]
        yield from self.room.problems(Counter(r.stream for r in active))
        for recipient in active:
            if self._known.get(recipient.key) is not recipient or recipient.key in self._leased:
                yield f"{recipient.key!r} is queued, and not known as queued"
        for destination, queues in self._queues.items():
            if queues.length != sum(1 for _ in queues):
                yield f"{destination}: length {queues.length}"
