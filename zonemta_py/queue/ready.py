"""The ready window of a zone: the recipients that may be sent next, in memory, bounded.

Each waiting recipient is in the window, or under a ``spill/`` key of its destination, or not yet
reached by the start-up scan. A destination gets a share of the window, so that a blocked one does not fill it; the
last quarter is reserved for streams of low volume (decision 29). A stream is the mail of a submitter that leaves from one pool;
mail for each pool has a share of its own, so that what waits for the addresses of one leaves room for the others.

Plain ``def`` throughout: ``windows.py`` reads the store and writes the batches.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from zonemta_py.core.model import PoolKey
from zonemta_py.queue.refill_choice import RefillChoice
from zonemta_py.queue.spill import SpillIndex
from zonemta_py.queue.submitter_queues import (
    EQUAL,
    ONE_POOL,
    MailPools,
    QueuedRecipient,
    SubmitterQueues,
    Weights,
    pool_key_of,
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
        """Whether some mail leaves from another pool than that of its destination."""
        return self.room.pools is not ONE_POOL

    def stream(self, destination: str, recipient: QueuedRecipient) -> str:
        """The stream of a recipient."""
        pools = self.room.pools
        if pools is ONE_POOL:
            return recipient.submitter
        return stream_of(recipient.submitter, pools.pool_key(self.zone, destination, recipient.record))

    def has_room(self, destination: str, stream: str, *, urgent: bool = False) -> bool:
        """Whether one more recipient of ``stream`` may enter; urgent mail has larger shares."""
        queues = self._queues.get(destination)
        waiting = queues.waiting(pool_key_of(stream)) if queues is not None else 0
        return self.room.has_room(destination, stream, waiting, urgent=urgent)

    def reserve(self, destination: str, stream: str, count: int, *, urgent: bool = False) -> bool:
        """Reserve room for ``count`` recipients of a commit under way; False: they are to be spilled.

        Mail of a stream that has spilled mail at the destination is queued behind that, unless it is urgent.
        """
        if destination in self.refills.suspended or not self.has_room(
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

    # ---- suspended destinations

    def suspend(self, destination: str) -> list[QueuedRecipient]:
        """Remove the destination's mail, which is to be spilled, and admit none until ``resume``."""
        self.refills.suspended.add(destination)
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
        self.refills.resume(destination)

    def is_suspended(self, destination: str) -> bool:
        """Whether ``suspend`` was called and ``resume`` was not."""
        return destination in self.refills.suspended

    # ---- queries

    def is_leased(self, key: bytes) -> bool:
        """Whether a worker holds the recipient."""
        return key in self._leased

    def leased(self) -> Counter[str]:
        """How many recipients workers hold, by destination."""
        return Counter(self._leased.values())

    def suspended(self) -> list[str]:
        """The suspended destinations."""
        return list(self.refills.suspended)

    def waiting(self, destination: str) -> int:
        """How many recipients of ``destination`` are in the window."""
        queues = self._queues.get(destination)
        return queues.length if queues is not None else 0

    def submitters(self, destination: str) -> int:
        """How many submitters have recipients of ``destination`` in the window."""
        queues = self._queues.get(destination)
        return queues.submitters if queues is not None else 0

    def has_mail(self, destination: str, pool_key: PoolKey | None = None) -> bool:
        """Whether there is mail of ``destination`` to lease, in the window or spilled; with a ``pool_key``: that leaves from there."""
        queues = self._queues.get(destination)
        if pool_key is None:
            return queues is not None or self.spilled.has(destination)
        return bool(queues is not None and queues.waiting(pool_key)) or self.spilled.has_pool_key(
            destination, pool_key
        )

    def pool_keys(self, destination: str) -> tuple[str, ...]:
        """From which pools the mail of ``destination`` in the window leaves, the next one first."""
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
