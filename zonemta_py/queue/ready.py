"""The ready window of a zone: the recipients that may be sent next, in memory, bounded.

Each waiting recipient is in the window, or under a ``spill/`` key of its destination, or not yet
reached by the start-up scan. A destination gets a share of the window, so that a blocked one does not fill it; the
last quarter is reserved for low-volume submitters (decision 29). Mail for each pool has a share of its own: what waits for
the addresses of one leaves room for the others.

Plain ``def`` throughout: ``windows.py`` reads the store and writes the batches.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from zonemta_py.queue.spill import SpillIndex
from zonemta_py.queue.submitter_queues import (
    EQUAL,
    ONE_POOL,
    DestinationQueues,
    MailPools,
    QueuedRecipient,
    Weights,
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
        self._queues: dict[str, DestinationQueues] = {}
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

    def has_room(
        self, destination: str, submitter: str, *, urgent: bool = False, pool: str | None = None
    ) -> bool:
        """Whether one more recipient of ``submitter`` may enter; urgent mail has larger shares.

        ``pool``: from which it leaves; None: from that of its submitter.
        """
        queues, waiting = self._queues.get(destination), 0
        if queues is not None:
            waiting = queues.waiting(self.pools.of_submitter(submitter) if pool is None else pool)
        return self.room.has_room(destination, submitter, waiting, urgent=urgent)

    def reserve(
        self,
        destination: str,
        submitter: str,
        count: int,
        *,
        urgent: bool = False,
        pool: str | None = None,
    ) -> bool:
        """Reserve room for ``count`` recipients of a commit under way; False: they are to be spilled.

        Mail of a submitter that has spilled mail at the destination is queued behind that, unless it is urgent or
        leaves from another ``pool``.
        """
        if destination in self._suspended:
            return False
        if not self.has_room(destination, submitter, urgent=urgent, pool=pool):
            return False
        moved = pool is not None and pool != self.pools.of_submitter(submitter)
        if not (urgent or moved) and self.spilled.has(destination, submitter):
            return False
        self.room.reserve(destination, submitter, count)
        return True

    # ---- recipients

    def add(self, destination: str, recipients: Iterable[QueuedRecipient]) -> None:
        """Queue recipients; those already known are skipped."""
        queues = self._queues.get(destination)
        if queues is None:
            queues = self._queues[destination] = DestinationQueues(self._weights)
        for recipient in recipients:
            if recipient.key not in self._known:
                self._known[recipient.key] = recipient
                queues.append(self._pool_of(destination, recipient), recipient)
                self.room.count(recipient.submitter, 1)
        if not queues.length:
            del self._queues[destination]

    def _pool_of(self, destination: str, recipient: QueuedRecipient) -> str:
        return self.pools.of(self.zone, destination, recipient.record)

    def take(self, destination: str, limit: int, pool: str | None = None) -> list[QueuedRecipient]:
        """Lease up to ``limit`` recipients of one message, submitters in turn. ``pool``: see ``DestinationQueues.take``."""
        queues = self._queues.get(destination)
        if queues is None:
            return []
        taken, turns = queues.take(limit, pool)
        for recipient in taken:
            self._known[recipient.key] = None
            self._leased[recipient.key] = destination
        if taken:
            self.room.count(taken[0].submitter, -len(taken))
        if self.spilled.has(destination):
            self._note_low(destination, queues, turns)
        if not queues.length:
            del self._queues[destination]
        return taken

    def _note_low(self, destination: str, queues: DestinationQueues, submitters: Iterable[str]) -> None:
        """These submitters have less than before."""
        for submitter in submitters:
            if self._is_low(queues, submitter) and self.spilled.has(destination, submitter):
                self._may_be_low.add(destination)
                self._note_starved(destination, queues, submitter)
        if any(queues.waiting(pool) <= self.room.share // 2 for pool in queues.pools):
            self._may_be_low.add(destination)

    def _is_low(self, queues: DestinationQueues | None, submitter: str) -> bool:
        """See ``WindowRoom.is_low``."""
        if queues is None:
            return True
        pool = self.pools.of_submitter(submitter)
        return self.room.is_low(queues.waiting(pool), queues.count(pool, submitter))

    def _note_starved(self, destination: str, queues: DestinationQueues | None, submitter: str) -> None:
        if queues is None or not queues.count(self.pools.of_submitter(submitter), submitter):
            self.spilled.note_starved(destination, submitter)

    def put_back(self, destination: str, recipients: Iterable[QueuedRecipient]) -> None:
        """Put leased recipients back at the front, in order."""
        returned = list(recipients)
        for recipient in returned:
            self._leased.pop(recipient.key, None)
            self._known[recipient.key] = recipient
            self.room.count(recipient.submitter, 1)
        if not returned:
            return
        if destination not in self._queues:
            self._queues[destination] = DestinationQueues(self._weights)
        self._queues[destination].put_back(self._pool_of(destination, returned[0]), returned)

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
            self.room.count(queued.submitter, -1)
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
            self.room.count(queued.submitter, 1)
            queued.withdrawn = False

    # ---- suspended destinations

    def suspend(self, destination: str) -> list[QueuedRecipient]:
        """Remove the destination's mail, which is to be spilled, and admit none until ``resume``."""
        self._suspended.add(destination)
        evicted = list(self._queues.pop(destination, ()))
        for recipient in evicted:
            if not recipient.withdrawn:
                self.room.count(recipient.submitter, -1)
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
        self._note_starved(destination, self._queues.get(destination), submitter)

    def refilled(self, destination: str) -> None:
        """A refill has ended: remember the submitters that it did not reach, see ``SpillIndex``."""
        self._may_be_low.add(destination)
        queues = self._queues.get(destination)
        for submitter in self.spilled.submitters(destination):
            self._note_starved(destination, queues, submitter)

    def next_starved(self) -> str | None:
        """The destination to refill next, round-robin by submitter; None without room or starved mail."""
        if self.room.is_full:
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
        found = min(
            (
                message
                for submitter, message in self.spilled.submitters(destination).items()
                if self._is_low(queues, submitter)
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

    def has_mail(self, destination: str, pool: str | None = None) -> bool:
        """Whether there is mail of ``destination`` to lease, in the window or spilled.

        With a ``pool``: mail that leaves from there, or from where is not known while nothing is in the window.
        """
        queues = self._queues.get(destination)
        if queues is None:
            return self.spilled.has(destination)
        return pool is None or pool in queues

    def pools_of(self, destination: str) -> tuple[str, ...]:
        """From which pools the mail of ``destination`` in the window leaves, the next one first."""
        queues = self._queues.get(destination)
        return queues.pools if queues is not None else ()

    def use(self, pools: MailPools) -> None:
        """Mail leaves from other pools than before."""
        self.pools = pools
        for destination, queues in list(self._queues.items()):
            self._queues[destination] = moved = DestinationQueues(self._weights)
            for recipient in queues:
                moved.append(self._pool_of(destination, recipient), recipient)

    def destinations(self) -> list[str]:
        """Destinations that have mail in the window."""
        return list(self._queues)

    def problems(self) -> Iterator[str]:
        """Violations of the invariants of this class, for tests."""
        queued = [r for queues in self._queues.values() for r in queues]
        active = [r for r in queued if not r.withdrawn]
        yield from self.room.problems(Counter(r.submitter for r in active))
        for recipient in active:
            if self._known.get(recipient.key) is not recipient or recipient.key in self._leased:
                yield f"{recipient.key!r} is queued, and not known as queued"
        for destination, queues in self._queues.items():
            if queues.length != sum(1 for _ in queues):
                yield f"{destination}: length {queues.length}"
