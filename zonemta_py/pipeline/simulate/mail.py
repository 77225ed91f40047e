"""The queue, the clock and the sessions of a simulated relay. Pure.

States of a message (``SimulatedMail``): waiting, by destination and pool ─ lease ─▶ in use ─▶ put back, added again when it is due, or gone.
States of a session (``SimulatedSessions``): used by a worker ─ leave ─▶ idle ─▶ used again, expired, or closed for another one.

Invariants:

- ``messages`` is the number of waiting messages; a destination without any is not in ``_queues``.
- The pools of a destination have their turn one after the other; in a pool the oldest is next, and before it what was put back.
- A session is one of a provider and a source address, whichever host it is with. A worker has at most one.
- The permits know how many idle sessions a path has (``_count``). Idle ones are closed for a new one that exceeds the limits of the
  provider.
- Events of the same time happen in the order in which they were added, and all that is to be called ``soon`` before the next event.

Callers: ``simulate.egress`` has the sessions and the mail of all zones, ``simulate.zone`` adds and leases messages and runs the clock.

Example::

    clock = VirtualClock()
    clock.at(5.0, lambda: print(clock.now_s))
    clock.run_next()  # prints 5.0
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.zones import DestinationTable, Zone
from zonemta_py.core.model import USUAL_KEY, PathKey, PoolKey
from zonemta_py.egress.admission import WorkerSlot
from zonemta_py.egress.limits import ANY, FREE, Permit, Permits
from zonemta_py.egress.sources import LastAttempt, addresses_of, pool_key_after
from zonemta_py.pipeline.simulate.prediction import SimulatedMessage


class Earlier(NamedTuple):
    """The earlier attempts of a message: how many count; of the last one the class of the reply, and our address.

    ``blocked``: how many were refused for good because of our address.
    """

    attempts: int = 0
    reply_class: str = ""
    source: str = ""
    blocked: int = 0


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
        self._queues: dict[str, dict[PoolKey, deque[WaitingMessage]]] = {}  # by destination and pool
        self.messages = 0

    def has(self, name: str) -> bool:
        """True if there is mail of a destination."""
        return name in self._queues

    def pool_keys(self, name: str) -> tuple[PoolKey, ...]:
        """The keys of the pools from which mail of a destination leaves, the next one first."""
        return tuple(self._queues.get(name, ()))

    def pool_key(self, name: str, earlier: Earlier) -> PoolKey:
        """The key of the pool, or part of one, from which a message leaves after its last attempt."""
        last = LastAttempt(earlier.attempts, earlier.source, earlier.reply_class)
        return pool_key_after(self._table.settings(name), self._addresses, last)

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

    def lease(self, name: str, pool: PoolKey | None) -> WaitingMessage | None:
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


class SimulatedMails(dict[str, SimulatedMail]):
    """The mail of each zone."""

    def zone(self, name: str) -> SimulatedMail:
        """The mail of a zone that is in the scenario."""
        return self[name]

    def pool_keys(self, zone: str, destination: str) -> tuple[PoolKey, ...]:
        """The keys of the pools from which mail leaves, at least one; for ``WaitingMail``."""
        return self[zone].pool_keys(destination) or (USUAL_KEY,)


Act = Callable[[], None]


class VirtualClock:
    """``now_s`` counts from the first arrival, which is at ``begin_ms`` (unix ms)."""

    def __init__(self, begin_ms: int = 0) -> None:
        self.begin_ms = begin_ms
        self.now_s = 0.0
        self._events: list[tuple[float, int, Act]] = []
        self._sequence = 0  # orders events of the same time
        self._soon: deque[Act] = deque()

    @property
    def now_ms(self) -> int:
        """The time in unix ms."""
        return self.begin_ms + round(self.now_s * 1000)

    @property
    def next_s(self) -> float | None:
        """The time of the next event; None without one."""
        return self._events[0][0] if self._events else None

    def at(self, due_s: float, act: Act) -> None:
        """Call ``act`` at a time that is not before now."""
        self._sequence += 1
        heappush(self._events, (due_s, self._sequence, act))

    def at_ms(self, due_ms: int, act: Act) -> None:
        """As ``at``, of unix ms; a time that is over is now."""
        self.at(max(self.now_s, (due_ms - self.begin_ms) / 1000), act)

    def soon(self, act: Act) -> None:
        """Call ``act`` when what happens now is over."""
        self._soon.append(act)

    def run_next(self) -> None:
        """Advance to the next event, of which there is one."""
        due_s, _, act = heappop(self._events)
        self.run_at(due_s, act)

    def run_at(self, now_s: float, act: Act) -> None:
        """Advance to ``now_s`` and call ``act``, then all that is to be called soon."""
        self.now_s = now_s
        act()
        while self._soon:
            self._soon.popleft()()


class SimulatedSession:
    """An open session; ``left``: how many messages it takes yet."""

    __slots__ = ("expires_s", "left", "path")

    def __init__(self, path: PathKey, left: int) -> None:
        self.path = path
        self.left = left
        self.expires_s = 0.0


class SimulatedSessions:
    """Those of workers, and those without one, whose number the permits know."""

    def __init__(self, permits: Permits, clock: VirtualClock) -> None:
        self._permits = permits
        self._clock = clock
        self._idle: dict[PathKey, deque[SimulatedSession]] = {}
        self._used: dict[WorkerSlot, SimulatedSession] = {}

    def open(self, slot: WorkerSlot, messages_max: int, idle_s: float) -> bool | None:
        """Give a worker a session for its message: True for a new one, False for an open one; None: none may be opened now.

        ``messages_max``: of a new one. ``idle_s``: the time for which the session that it leaves for this stays open.
        """
        permit, session = slot.permit, self._used.get(slot)
        if permit is FREE:
            return False
        path, is_new = (permit.provider, permit.address), False
        if session is not None and session.path != path:
            self.leave(slot, idle_s)
            session = None
        if session is None or not session.left:
            session = self._take(path)
        if session is None:
            if permit.connects == 0:
                return None
            session, is_new = SimulatedSession(path, messages_max), True
            self._make_room(permit)
        self._used[slot] = session
        session.left -= 1
        return is_new

    def leave(self, slot: WorkerSlot, idle_s: float) -> None:
        """The worker leaves its session, which stays open for ``idle_s`` if it takes more messages."""
        session = self._used.pop(slot, None)
        if session is not None and session.left:
            session.expires_s = self._clock.now_s + idle_s
            self._idle.setdefault(session.path, deque()).append(session)
            self._count(session.path)

    def _take(self, path: PathKey) -> SimulatedSession | None:
        """An idle session, the newest one."""
        idle = self._idle.get(path)
        while idle and idle[0].expires_s <= self._clock.now_s:
            idle.popleft()
        session = idle.pop() if idle else None
        self._count(path)
        return session

    def _make_room(self, permit: Permit) -> None:
        """Close idle sessions beyond the limits of the provider: the worker of ``permit`` opens one."""
        for address in (permit.address, ANY):
            path = self._permits.path(permit.provider, address)
            most = path.most()
            while most is not None and path.sessions + self._number(permit.provider, address) > most:
                if not self._close_oldest(permit.provider, address):
                    break

    def _paths(self, provider: str, address: str) -> list[PathKey]:
        return [
            path for path, idle in self._idle.items() if idle and path[0] == provider and address in ("", path[1])
        ]  # fmt: skip

    def _number(self, provider: str, address: str) -> int:
        return sum(len(self._idle[path]) for path in self._paths(provider, address))

    def _close_oldest(self, provider: str, address: str) -> bool:
        paths = self._paths(provider, address)
        if not paths:
            return False
        path = min(paths, key=lambda each: self._idle[each][0].expires_s)
        self._idle[path].popleft()
        self._count(path)
        return True

    def _count(self, path: PathKey) -> None:
        idle = self._idle.get(path)
        self._permits.path(*path).idle = len(idle) if idle else 0
        if not idle:
            self._idle.pop(path, None)
