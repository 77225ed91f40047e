"""The recipients that wait for one destination: a queue for each submitter, served round-robin (decision 29).

A million recipients of one customer do not delay the one message of another. A tenant with a weight has as
many turns in a row. Within a submitter, urgent mail comes first and nonurgent mail last; the flows of one priority
are served round-robin: those of the users of a tenant, and of the domains from which a host without a user sends.

The mail of a submitter that leaves from one pool is a stream. A worker may have mail of one pool only, because the
addresses of another have no room: then the streams of that pool have the turns (decision 103).
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from zonemta_py.core.model import USUAL_KEY, PoolKey
from zonemta_py.queue.format.records import NONURGENT_FLOW, URGENT_FLOW, RecipientRecord


class MailPools(Protocol):
    """Names the mail that leaves from another pool than that of its destination, or from a part of its pool's addresses only.

    All recipients of a message that have had no attempt share one key.
    """

    def pool_key(self, zone: str, destination: str, record: RecipientRecord) -> PoolKey:
        """The addresses from which mail for a recipient leaves; USUAL_KEY for those of its destination."""

    def share_divisor(self, pool_key: PoolKey) -> int:
        """The number by which the share of this mail in a window is divided: 1 for a whole pool."""


class OnePool:
    """All mail leaves from the pool of its destination."""

    def pool_key(self, zone: str, destination: str, record: RecipientRecord) -> PoolKey:
        return USUAL_KEY

    def share_divisor(self, pool_key: PoolKey) -> int:
        return 1


ONE_POOL = OnePool()


class Stream(NamedTuple):
    """The mail of a submitter (``RecipientRecord.submitter``) that leaves from the same addresses."""

    submitter: str
    pool_key: PoolKey = USUAL_KEY


NO_STREAM = Stream("")


class QueuedRecipient:
    """A waiting recipient in a ready window or a lease. ``key`` is its ``delivery-zone/`` key.

    ``withdrawn``: still in its submitter queue, but taken by an operator; it is skipped. ``stream``: in which it waits, once it does.
    """

    __slots__ = ("address", "key", "message", "record", "stream", "submitter", "withdrawn", "zone")

    def __init__(
        self, key: bytes, zone: str, message: str, address: str, record: RecipientRecord
    ) -> None:
        self.key = key
        self.zone = zone
        self.message = message
        self.address = address
        self.record = record
        self.submitter = record.submitter
        self.stream = NO_STREAM
        self.withdrawn = False


Weights = Mapping[str, int]  # by ``RecipientRecord.submitter``; 1 for those that it lacks
EQUAL: Weights = {}

Flows = OrderedDict[str, deque[QueuedRecipient]]


def rank_of(flow: str) -> int:
    """0 for urgent mail, 1 for normal, 2 for nonurgent."""
    return 0 if flow.endswith(URGENT_FLOW) else 2 if flow.endswith(NONURGENT_FLOW) else 1


class _Flows:
    """The flows of a stream by rank; ``turn``: the lowest of all streams has the next one."""

    __slots__ = ("by_rank", "turn")

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.by_rank: dict[int, Flows] = {}

    def flows(self, flow: str) -> Flows:
        """The flows that have the rank of ``flow``."""
        rank = rank_of(flow)
        found = self.by_rank.get(rank)
        if found is None:
            found = self.by_rank[rank] = OrderedDict()
        return found


class _PoolStreams:
    """The streams that leave from one pool, the next one first; ``length``: of their recipients.

    ``turn_of`` has had the last turn, the last ``turns`` in a row.
    """

    __slots__ = ("length", "streams", "turn_of", "turns")

    def __init__(self) -> None:
        self.length = 0
        self.streams: OrderedDict[Stream, _Flows] = OrderedDict()
        self.turn_of = NO_STREAM
        self.turns = 0


class SubmitterQueues:
    """One destination's recipients; in each flow the oldest comes first. ``length`` counts all."""

    __slots__ = (
        "_counts",
        "_first_turn",
        "_last",
        "_last_name",
        "_last_pool",
        "_last_stream",
        "_last_turn",
        "_pools",
        "_weights",
        "length",
    )

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._pools: dict[PoolKey, _PoolStreams] = {}
        self._counts: dict[Stream, int] = {}  # of recipients, by stream
        self._first_turn = self._last_turn = 0
        # Of the last ``append``, until anything else: the recipients of a message share them.
        self._last_name: str | None = None
        self._last_stream = NO_STREAM
        self._last_pool = _PoolStreams()
        self._last: deque[QueuedRecipient] = deque()
        self.length = 0

    def count(self, stream: Stream) -> int:
        """The number of recipients of ``stream``."""
        return self._counts.get(stream, 0)

    def waiting(self, pool_key: PoolKey) -> int:
        """The number of recipients with this ``pool_key``."""
        found = self._pools.get(pool_key)
        return found.length if found is not None else 0

    @property
    def pool_keys(self) -> tuple[PoolKey, ...]:
        """Those of the recipients, the one with the next turn first."""
        return tuple(self._pools) if len(self._pools) < 2 else tuple(sorted(self._pools, key=self._turn))

    def _turn(self, pool_key: PoolKey) -> int:
        """The turn of its first stream."""
        return next(iter(self._pools[pool_key].streams.values())).turn

    @property
    def submitters(self) -> int:
        """How many submitters have recipients here; one that uses two pools counts twice."""
        return len(self._counts)

    def _add(self, pool: _PoolStreams, stream: Stream, change: int) -> None:
        self.length += change
        pool.length += change
        count = self._counts[stream] = self._counts.get(stream, 0) + change
        if not count:
            del self._counts[stream]

    def append(self, recipient: QueuedRecipient) -> None:
        """Put ``recipient`` at the end of its flow."""
        name, stream = recipient.record.flow, recipient.stream
        if name is not self._last_name or stream != self._last_stream:
            pool, found = self._stream(stream)
            self._last = found.flows(name).setdefault(name, deque())
            self._last_name, self._last_stream, self._last_pool = name, stream, pool
        self._last.append(recipient)
        self._add(self._last_pool, stream, 1)

    def _stream(self, stream: Stream) -> tuple[_PoolStreams, _Flows]:
        pool = self._pools.get(stream.pool_key)
        if pool is None:
            pool = self._pools[stream.pool_key] = _PoolStreams()
        found = pool.streams.get(stream)
        if found is None:
            self._last_turn += 1
            found = pool.streams[stream] = _Flows(self._last_turn)
        return pool, found

    def put_back(self, recipients: Iterable[QueuedRecipient]) -> None:
        """Put recipients at the front of their flow, in order, and make that flow the next."""
        self._last_name = None
        for recipient in reversed(list(recipients)):
            name, stream = recipient.record.flow, recipient.stream
            pool, found = self._stream(stream)
            flows = found.flows(name)
            flows.setdefault(name, deque()).appendleft(recipient)
            flows.move_to_end(name, last=False)
            self._is_next(pool, stream, found)
            self._add(pool, stream, 1)

    def _is_next(self, pool: _PoolStreams, stream: Stream, flows: _Flows) -> None:
        self._first_turn -= 1
        flows.turn = self._first_turn
        pool.streams.move_to_end(stream, last=False)

    def take(
        self, limit: int, pool_key: PoolKey | None = None
    ) -> tuple[list[QueuedRecipient], list[Stream]]:
        """Remove up to ``limit`` recipients of the oldest message in the next flow that has any.

        All have this ``pool_key``; None: any. The second value: the streams that had a turn, the last one with the recipients.
        """
        self._last_name = None
        taken: list[QueuedRecipient] = []
        turns: list[Stream] = []
        while self._pools and not taken:
            name = pool_key if pool_key is not None else self.pool_keys[0]
            found = self._pools.get(name)
            if found is None:
                break
            taken = self._take(found, limit, turns)
            if not found.streams:
                del self._pools[name]
        return taken, turns

    def _take(self, pool: _PoolStreams, limit: int, turns: list[Stream]) -> list[QueuedRecipient]:
        """One turn of the next stream in ``pool``."""
        stream, found = pool.streams.popitem(last=False)
        turns.append(stream)
        rank = min(found.by_rank)
        flows = found.by_rank[rank]
        flow_name, flow = flows.popitem(last=False)
        before = len(flow)
        taken: list[QueuedRecipient] = []
        while flow and len(taken) < limit and (not taken or flow[0].message == taken[0].message):
            recipient = flow.popleft()
            if not recipient.withdrawn:
                taken.append(recipient)
        self._add(pool, stream, len(flow) - before)
        if flow:
            flows[flow_name] = flow
        elif not flows:
            del found.by_rank[rank]
        if found.by_rank:
            self._last_turn += 1
            found.turn = self._last_turn
            pool.streams[stream] = found
            if self._weights and taken and self._has_another_turn(pool, stream):
                self._is_next(pool, stream, found)
        return taken

    def _has_another_turn(self, pool: _PoolStreams, stream: Stream) -> bool:
        """True if the stream, which has just had a turn, has the next one of its pool, too."""
        pool.turns = pool.turns + 1 if stream == pool.turn_of else 1
        pool.turn_of = stream
        if pool.turns < self._weights.get(stream.submitter, 1):
            return True
        pool.turns = 0
        return False

    def __iter__(self) -> Iterator[QueuedRecipient]:
        for pool in self._pools.values():
            for stream in pool.streams.values():
                for flows in stream.by_rank.values():
                    for flow in flows.values():
                        yield from flow
