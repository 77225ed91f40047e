"""The recipients that wait for one destination: a queue for each submitter, served round-robin (decision 29).

A million recipients of one customer do not delay the one message of another. A tenant with a weight has as
many turns in a row. Within a submitter, urgent mail comes first and nonurgent mail last; the lanes of one priority
are served round-robin: those of the users of a tenant, and of the domains from which a host without a user sends.

Mail that leaves from another pool than that of its destination has queues of its own: it does not wait for the addresses of
that (decision 102).
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from zonemta_py.core.model import USUAL_POOL
from zonemta_py.queue.format.records import NONURGENT_LANE, URGENT_LANE, Waiting


class MailPools(Protocol):
    """Which mail leaves from another pool than that of its destination; USUAL_POOL for all other mail."""

    def of_submitter(self, submitter: str) -> str:
        """The pool of all mail of a submitter."""

    def of(self, zone: str, destination: str, record: Waiting) -> str:
        """The pool of a recipient."""


class OnePool:
    """All mail leaves from the pool of its destination."""

    def of_submitter(self, submitter: str) -> str:
        """See ``MailPools``."""
        return USUAL_POOL

    def of(self, zone: str, destination: str, record: Waiting) -> str:
        """See ``MailPools``."""
        return USUAL_POOL


ONE_POOL = OnePool()


class QueuedRecipient:
    """A waiting recipient in a ready window or a lease. ``key`` is its ``delivery-zone/`` key.

    ``withdrawn``: still in its submitter queue, but taken by an operator; it is skipped.
    """

    __slots__ = ("address", "key", "message", "record", "submitter", "withdrawn", "zone")

    def __init__(self, key: bytes, zone: str, message: str, address: str, record: Waiting) -> None:
        self.key = key
        self.zone = zone
        self.message = message
        self.address = address
        self.record = record
        self.submitter = record.submitter
        self.withdrawn = False


Weights = Mapping[str, int]  # by ``Waiting.submitter``; 1 for those that it lacks
EQUAL: Weights = {}

Lanes = OrderedDict[str, deque[QueuedRecipient]]


def rank_of(lane: str) -> int:
    """0 for urgent mail, 1 for normal, 2 for nonurgent."""
    return 0 if lane.endswith(URGENT_LANE) else 2 if lane.endswith(NONURGENT_LANE) else 1


class SubmitterQueues:
    """The recipients of a destination that leave from one pool; in each lane the oldest comes first.

    ``length`` counts all.
    """

    __slots__ = (
        "_counts",
        "_last",
        "_last_name",
        "_submitters",
        "_turn_of",
        "_turns",
        "_weights",
        "length",
    )

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._turn_of = ""
        self._turns = 0  # that it has had in a row
        self._submitters: OrderedDict[str, dict[int, Lanes]] = OrderedDict()  # the next one first
        self._counts: dict[str, int] = {}  # of recipients, by submitter
        self._last_name: str | None = None  # of the lane of the last ``append``, until anything else
        self._last: deque[QueuedRecipient] = deque()
        self.length = 0

    def count(self, submitter: str) -> int:
        """The number of recipients of ``submitter``."""
        return self._counts.get(submitter, 0)

    @property
    def submitters(self) -> int:
        """How many submitters have recipients here."""
        return len(self._counts)

    def _add(self, submitter: str, change: int) -> None:
        self.length += change
        count = self._counts[submitter] = self._counts.get(submitter, 0) + change
        if not count:
            del self._counts[submitter]

    def append(self, recipient: QueuedRecipient) -> None:
        """Put ``recipient`` at the end of its lane."""
        name = recipient.record.lane
        if name is not self._last_name:  # the recipients of a message share it
            self._last = self._lanes(recipient.submitter, name).setdefault(name, deque())
            self._last_name = name
        self._last.append(recipient)
        self._add(recipient.submitter, 1)

    def _lanes(self, submitter: str, lane: str) -> Lanes:
        """The lanes of a submitter that have the rank of ``lane``."""
        by_rank = self._submitters.get(submitter)
        if by_rank is None:
            by_rank = self._submitters[submitter] = {}
        rank = rank_of(lane)
        lanes = by_rank.get(rank)
        if lanes is None:
            lanes = by_rank[rank] = OrderedDict()
        return lanes

    def put_back(self, recipients: Iterable[QueuedRecipient]) -> None:
        """Put recipients at the front of their lane, in order, and make that lane the next."""
        self._last_name = None
        for recipient in reversed(list(recipients)):
            name = recipient.record.lane
            lanes = self._lanes(recipient.submitter, name)
            lanes.setdefault(name, deque()).appendleft(recipient)
            lanes.move_to_end(name, last=False)
            self._submitters.move_to_end(recipient.submitter, last=False)
            self._add(recipient.submitter, 1)

    def take(self, limit: int) -> tuple[list[QueuedRecipient], list[str]]:
        """Remove up to ``limit`` recipients of the oldest message in the next lane that has any.

        The second value: the submitters that had a turn, the last one with the recipients.
        """
        self._last_name = None
        taken: list[QueuedRecipient] = []
        turns: list[str] = []
        while self._submitters and not taken:
            submitter, by_rank = self._submitters.popitem(last=False)
            turns.append(submitter)
            rank = min(by_rank)
            lanes = by_rank[rank]
            name, lane = lanes.popitem(last=False)
            before = len(lane)
            while lane and len(taken) < limit and (not taken or lane[0].message == taken[0].message):
                recipient = lane.popleft()
                if not recipient.withdrawn:
                    taken.append(recipient)
            self._add(submitter, len(lane) - before)
            if lane:
                lanes[name] = lane
            elif not lanes:
                del by_rank[rank]
            if by_rank:
                self._submitters[submitter] = by_rank
                if self._weights and taken and self._has_another_turn(submitter):
                    self._submitters.move_to_end(submitter, last=False)
        return taken, turns

    def _has_another_turn(self, submitter: str) -> bool:
        """Whether the submitter, which has just had a turn, has the next one, too."""
        self._turns = self._turns + 1 if submitter == self._turn_of else 1
        self._turn_of = submitter
        if self._turns < self._weights.get(submitter, 1):
            return True
        self._turns = 0
        return False

    def __iter__(self) -> Iterator[QueuedRecipient]:
        for by_rank in self._submitters.values():
            for lanes in by_rank.values():
                for lane in lanes.values():
                    yield from lane


class DestinationQueues:
    """The recipients of one destination: the queues of each pool from which they leave, served round-robin."""

    __slots__ = ("_pools", "_weights", "length")

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._pools: OrderedDict[str, SubmitterQueues] = OrderedDict()  # the next one first
        self.length = 0

    def __contains__(self, pool: object) -> bool:
        return pool in self._pools

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools from which mail leaves, the next one first."""
        return tuple(self._pools)

    @property
    def submitters(self) -> int:
        """How many submitters have recipients here; one that uses two pools counts twice."""
        return sum(each.submitters for each in self._pools.values())

    def waiting(self, pool: str) -> int:
        """The number of recipients that leave from ``pool``."""
        queues = self._pools.get(pool)
        return queues.length if queues is not None else 0

    def count(self, pool: str, submitter: str) -> int:
        """The number of recipients of ``submitter`` that leave from ``pool``."""
        queues = self._pools.get(pool)
        return queues.count(submitter) if queues is not None else 0

    def _of(self, pool: str) -> SubmitterQueues:
        queues = self._pools.get(pool)
        if queues is None:
            queues = self._pools[pool] = SubmitterQueues(self._weights)
        return queues

    def append(self, pool: str, recipient: QueuedRecipient) -> None:
        """Put ``recipient`` at the end of its lane."""
        self._of(pool).append(recipient)
        self.length += 1

    def put_back(self, pool: str, recipients: list[QueuedRecipient]) -> None:
        """Put recipients at the front of their lane, in order, and make that lane the next."""
        self._of(pool).put_back(recipients)
        self._pools.move_to_end(pool, last=False)
        self.length += len(recipients)

    def take(self, limit: int, pool: str | None) -> tuple[list[QueuedRecipient], list[str]]:
        """As ``SubmitterQueues.take``: of ``pool``, or of the next one that has any (None)."""
        taken: list[QueuedRecipient] = []
        turns: list[str] = []
        while self._pools and not taken:
            name = next(iter(self._pools)) if pool is None else pool
            queues = self._pools.get(name)
            if queues is None:
                break
            before = queues.length
            taken, had_turns = queues.take(limit)
            turns += had_turns
            self.length -= before - queues.length
            if not queues.length:
                del self._pools[name]
            elif len(self._pools) > 1:
                self._pools.move_to_end(name)
        return taken, turns

    def __iter__(self) -> Iterator[QueuedRecipient]:
        for queues in self._pools.values():
            yield from queues
