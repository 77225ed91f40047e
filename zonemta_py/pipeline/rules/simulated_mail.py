"""The messages of one simulated zone that could be sent now, by destination and pool. Pure; follows ``queue.ready``."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from zonemta_py.config.destinations import DestinationTable
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.zones import Zone
from zonemta_py.core.model import USUAL_POOL
from zonemta_py.pipeline.rules.prediction import SimulatedMessage
from zonemta_py.schedule.sources import addresses_of, fallback_pool, part_after


class Earlier(NamedTuple):
    """The earlier attempts of a message: how many count; of the last one the class of the reply, and our address."""

    attempts: int = 0
    reply_class: str = ""
    source: str = ""


@dataclass(slots=True)
class WaitingMessage:
    """``recipients`` of a message at its destination. ``attempt``: the next one, from 1."""

    number: int
    message: SimulatedMessage
    recipients: int
    attempt: int
    ready_s: float
    earlier: Earlier = Earlier()


class SimulatedMail:
    """``pools``: all of them. ``messages``: how many there are."""

    def __init__(self, zone: Zone, pools: Mapping[str, Sequence[PoolAddress]]) -> None:
        self._table = DestinationTable(zone)
        self._addresses = addresses_of(pools)
        self._queues: dict[str, dict[str, deque[WaitingMessage]]] = {}  # by destination and pool
        self.messages = 0

    def has(self, name: str) -> bool:
        """Whether there is mail of a destination."""
        return name in self._queues

    def pools(self, name: str) -> tuple[str, ...]:
        """The pools from which mail of a destination leaves, the next one first; USUAL_POOL: that of the destination."""
        return tuple(self._queues.get(name, ())) or (USUAL_POOL,)

    def pool_key(self, name: str, earlier: Earlier) -> str:
        """From which pool, or part of one, a message leaves after its last attempt."""
        pool = fallback_pool(self._table.settings(name), earlier.attempts, earlier.reply_class)
        addresses = self._addresses.get(pool, ())
        return part_after(pool, addresses, earlier.source, earlier.reply_class).key

    def add(self, name: str, waiting: WaitingMessage) -> None:
        """Mail has arrived, or is due again."""
        self._queue(name, waiting).append(waiting)
        self.messages += 1

    def put_back(self, name: str, waiting: WaitingMessage) -> None:
        """It is the next of its destination again."""
        self._queue(name, waiting).appendleft(waiting)
        self.messages += 1

    def _queue(self, name: str, waiting: WaitingMessage) -> deque[WaitingMessage]:
        pool = self.pool_key(name, waiting.earlier)
        return self._queues.setdefault(name, {}).setdefault(pool, deque())

    def lease(self, name: str, pool: str | None) -> WaitingMessage | None:
        """The next recipients of one message for a destination, up to the limit of a transaction.

        They leave from ``pool``, or from that whose turn it is (None).
        """
        queues = self._queues.get(name)
        if not queues:
            return None
        turn = pool if pool is not None else next(iter(queues))
        queue = queues.pop(turn, None)
        if queue is None:
            return None
        waiting = queue.popleft()
        self.messages -= 1
        if queue:
            queues[turn] = queue  # the others are next
        elif not queues:
            del self._queues[name]
        return self.split(name, waiting, self._table.settings(name).recipients_per_transaction)

    def split(self, name: str, waiting: WaitingMessage, most: int) -> WaitingMessage:
        """``waiting`` with ``most`` recipients at most; the others are the next message of its queue."""
        if waiting.recipients <= most:
            return waiting
        self.put_back(name, replace(waiting, recipients=waiting.recipients - most))
        return replace(waiting, recipients=most)
