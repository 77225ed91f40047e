"""The ready window of a zone: the recipients that may be sent next, in memory, bounded.

Each waiting recipient is in the window, or under a ``spill/`` key of its destination, or not yet
reached by the start-up scan. A destination gets a share of the window, so that a blocked one does not fill it; the
last quarter is reserved for streams of low volume (decision 29). A stream is the mail of a submitter that leaves from one pool;
mail for each pool has a share of its own, so that what waits for the addresses of one leaves room for the others.

Plain ``def`` throughout: ``windows.py`` reads the store and writes the batches.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from zonemta_py.queue.spill import SpillIndex
from zonemta_py.queue.submitter_queues import (
    EQUAL,
    ONE_POOL,
    MailPools,
    QueuedRecipient,
    SubmitterQueues,
    Weights,
    pool_of,
    stream_of,
)
from zonemta_py.queue.window_room import WindowRoom


class ReadyWindow:
    """One zone's window of at most ``limit`` recipients; ``room`` counts them."""

    def __init__(self, zone: str, limit: int, weights: Weights = EQUAL) -> None:
        self.zone = zone
        self._weights = weights
        self.room = WindowRoom(limit)
        self.spilled = SpillIndex()
        self.pools: MailPools = ONE_POOL
        self._queues: dict[str, SubmitterQueues] = {}
        # By key: the queued recipient, or None while it is leased or withdrawn.
        self._known: dict[bytes, QueuedRecipient | None] = {}
        self._leased: dict[bytes, str] = {}  # with the destination
        self._withdrawn: set[bytes] = set()  # taken by an operator
        self._suspended: set[str] = set()  # destinations whose mail stays on disk
        # Destinations whose mail on disk is to be read as a whole, and from which message on.
        self._unsorted: dict[str, str] = {}
        self._may_be_low: set[str] = (
            set()
        )  # destinations where a submitter may have little, and spilled mail

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    # ---- room

    @property
    def has_pools(self) -> bool:
        """Whether some mail leaves from another pool than that of its destination."""
        return self.pools is not ONE_POOL

    def stream(self, destination: str, recipient: QueuedRecipient) -> str:
        """The stream of a recipient."""
        if self.pools is ONE_POOL:
            return recipient.submitter
        return stream_of(recipient.submitter, self.pools.of(self.zone, destination, recipient.record))

    def has_room(self, destination: str, stream: str, *, urgent: bool = False) -> bool:
        """Whether one more recipient of ``stream`` may enter; urgent mail has larger shares."""
        queues = self._queues.get(destination)
        waiting = queues.waiting(pool_of(stream)) if queues is not None else 0
        return self.room.has_room(destination, stream, waiting, urgent=urgent)

    def reserve(self, destination: str, stream: str, count: int, *, urgent: bool = False) -> bool:
        """Reserve room for ``count`` recipients of a commit under way; False: they are to be spilled.

        Mail of a stream that has spilled mail at the destination is queued behind that, unless it is urgent.
        """
        if destination in self._suspended or not self.has_room(destination, stream, urgent=urgent):
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

    def take(self, destination: str, limit: int, pool: str | None = None) -> list[QueuedRecipient]:
        """Lease up to ``limit`` recipients of one message, streams in turn. ``pool``: see ``SubmitterQueues.take``."""
        queues = self._queues.get(destination)
        if queues is None:
            return []
        taken, turns = queues.take(limit, pool)
        for recipient in taken:
            self._known[recipient.key] = None
            self._leased[recipient.key] = destination
        if taken:
            self.room.count(turns[-1], -len(taken))
        if self.spilled.has(destination):
            self._note_low(destination, queues, turns)
        if not queues.length:
            del self._queues[destination]
        return taken

    def _note_low(self, destination: str, queues: SubmitterQueues, streams: Iterable[str]) -> None:
        """These streams have less than before."""
        for stream in streams:
            if self._is_low(queues, stream) and self.spilled.has(destination, stream):
                self._may_be_low.add(destination)
                if not queues.count(stream):
                    self.spilled.note_starved(destination, stream)
            if queues.waiting(pool_of(stream)) <= self.room.share // 2:
                self._may_be_low.add(destination)

    def _is_low(self, queues: SubmitterQueues | None, stream: str) -> bool:
        """See ``WindowRoom.is_low``."""
        if queues is None:
            return True
        return self.room.is_low(queues.waiting(pool_of(stream)), queues.count(stream))

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

    # ---- suspended destinations

    def suspend(self, destination: str) -> list[QueuedRecipient]:
        """Remove the destination's mail, which is to be spilled, and admit none until ``resume``."""
        self._suspended.add(destination)
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

    def resume(self, destination: str) -> None:
        """The destination has answered again."""
        self._suspended.discard(destination)
        self._note_starved(destination, self.spilled.streams(destination))

    def is_unsorted(self, destination: str) -> bool:
        """Whether the streams of what it has on disk are not known, see ``use``."""
        return destination in self._unsorted

    def is_suspended(self, destination: str) -> bool:
        """Whether ``suspend`` was called and ``resume`` was not."""
        return destination in self._suspended

    # ---- spilled mail

    def note_spill(self, destination: str, stream: str, message: str) -> None:
        """``message`` has spilled recipients; the next refill begins there or earlier."""
        self.spilled.note(destination, stream, message)
        if destination in self._unsorted:
            self._unsorted[destination] = min(message, self._unsorted[destination])
        self._may_be_low.add(destination)
        self._note_starved(destination, [stream])

    def _note_starved(self, destination: str, streams: Iterable[str]) -> None:
        queues = self._queues.get(destination)
        for stream in streams:
            if queues is None or not queues.count(stream):
                self.spilled.note_starved(destination, stream)

    def refilled(self, destination: str, resume_at: str | None) -> None:
        """A refill has ended before message ``resume_at``: remember the streams that it did not reach, see ``SpillIndex``."""
        self._may_be_low.add(destination)
        if resume_at is None:
            self._unsorted.pop(destination, None)
        elif destination in self._unsorted:
            self._unsorted[destination] = resume_at
        self._note_starved(destination, self.spilled.streams(destination))

    def next_starved(self) -> str | None:
        """The destination to refill next, round-robin by stream; None without room or starved mail."""
        if self.room.is_full:
            return None
        return self.spilled.next_starved(self._may_enter)

    def _may_enter(self, destination: str, stream: str) -> bool | None:
        """Whether a starved stream finds room; None: not while the destination is suspended."""
        if destination in self._suspended:
            return None
        return self.has_room(destination, stream)

    def refill_from(self, destination: str) -> str | None:
        """The message id to resume at, when a stream with spilled mail has little in the window, and room.

        Little is half of what finds room: otherwise each lease would read many keys for one. After a change of pools
        all messages are read once: the streams of what is on disk are not known.
        """
        if destination in self._unsorted:
            return self._unsorted[destination]
        queues = self._queues.get(destination)
        if queues is not None and destination not in self._may_be_low:
            return None
        low = {
            stream: message
            for stream, message in self.spilled.streams(destination).items()
            if self._is_low(queues, stream)
        }
        if not low:
            self._may_be_low.discard(destination)
        # One without room would hide what is behind its mail.
        entering = [low[stream] for stream in low if self._may_enter(destination, stream) is not False]
        return min(entering, default=None)

    def may_refill(self, destination: str) -> bool:
        """Whether there is spilled mail and room for it."""
        return any(self.has_room(destination, stream) for stream in self.spilled.streams(destination))

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

    def has_mail(self, destination: str, pool: str | None = None) -> bool:
        """Whether there is mail of ``destination`` to lease, in the window or spilled; with a ``pool``: that leaves from there."""
        queues = self._queues.get(destination)
        if pool is None:
            return queues is not None or self.spilled.has(destination)
        return bool(queues is not None and queues.waiting(pool)) or self.spilled.has_pool(
            destination, pool
        )

    def pools_of(self, destination: str) -> tuple[str, ...]:
        """From which pools the mail of ``destination`` in the window leaves, the next one first."""
        queues = self._queues.get(destination)
        return queues.pools if queues is not None else ()

    def destinations(self) -> list[str]:
        """Destinations that have mail in the window."""
        return list(self._queues)

    def use(self, pools: MailPools) -> None:
        """Mail leaves from other pools than before."""
        self.pools = pools
        for destination, queues in list(self._queues.items()):
            self._queues[destination] = moved = SubmitterQueues(self._weights)
            for recipient in queues:
                stream = self.stream(destination, recipient)
                if not recipient.withdrawn:
                    self.room.count(recipient.stream, -1)
                    self.room.count(stream, 1)
                recipient.stream = stream
                moved.append(recipient)
        self._unsorted = self.spilled.begin_again()
        for destination in self._unsorted:
            self._note_starved(destination, self.spilled.streams(destination))

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
