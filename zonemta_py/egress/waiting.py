"""Destinations that wait for a limit of their provider or of a source address, and whose turn it is. Pure; times are ms.

All destinations of a zone at one provider whose mail leaves from the same addresses wait at one ``WaitList``, in the order in
which they came. States of a wait list:

- nothing has happened: all its destinations wait, for its ``refusal``;
- ``on_turn``: one of them was woken and tries now; ``wait`` (refused again), ``granted`` or ``emptied`` (without mail) end its
  turn, and ``granted`` wakes the next one;
- empty: it is dropped.

Capacity at the provider, or the end of the limit, gives the turn to one destination. The wait lists that wait for a source address
form an ``AddressQueue``: capacity at the address gives the first list its turn, then the next, until the address has none left. A
wait list whose zone cannot serve it now keeps its turn, and passes the capacity to the next one (``pass_capacity_of``).

Invariants: a destination is at most once at a wait list; at most one has the turn there; a wait list that has the turn for an
address is in ``with_turn`` of its queue and not in the order. So the work is bounded by permits and events, whatever waits.

A wait list with a ``cause`` has no turns: its destinations wait for something that ends for all of them, such as a suspension by
an operator, and all leave then.

Callers: ``ZoneEgress`` through the ``ZoneWaits`` of its zone; ``Permits`` when something has ended (``capacity_on_path``); the timer
(``run_due``). For example, of two destinations at a provider with one session the second waits; when the session ends it has the
turn, takes the permit in ``admit``, and ``granted`` wakes a third.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain, count, islice
from typing import NamedTuple, Protocol

from zonemta_py.core.model import USUAL_KEY, PoolKey
from zonemta_py.egress.admission import Admitted
from zonemta_py.egress.limits import Permit
from zonemta_py.egress.paths import UNTIL_EVENT, Refusal
from zonemta_py.egress.sources import BOTH


class WaitKey(NamedTuple):
    """Identifies a wait list. Mail waits for source ``addresses`` of the zone, over which ``families``.

    ``cause``: the suspension that all its destinations wait for, as ``zone:NAME``; empty: they wait for capacity.
    """

    zone: str
    provider: str
    cause: str = ""
    addresses: PoolKey = USUAL_KEY
    families: str = BOTH


class Waiter(Protocol):
    """A zone whose destinations wait at wait lists; see ``ZoneWaits``."""

    def wake(self, destination: str, key: WaitKey) -> bool:
        """``destination`` has its turn at the wait list. Returns whether it has mail."""

    def release(self, destination: str, key: WaitKey) -> None:
        """``destination`` no longer waits at the wait list."""


class WaitList:
    """The destinations of a zone that wait for one provider. ``refusal``: why; ``on_turn``: the destination whose turn it is.

    ``for_address``: the source address whose capacity it may use, while it has the turn for that reason.
    """

    __slots__ = (
        "for_address",
        "key",
        "on_turn",
        "refusal",
        "since_ms",
        "timer_ms",
        "turns",
        "waiter",
        "waiting",
        "woken_by_grant",
    )  # fmt: skip

    def __init__(self, key: WaitKey, waiter: Waiter) -> None:
        self.key = key
        self.waiter = waiter
        self.waiting: OrderedDict[str, None] = OrderedDict()
        self.on_turn = ""
        self.woken_by_grant = False  # it has the turn because another one got a permit
        self.turns = 0  # permits in a row, before other wait lists of the provider
        self.refusal: Refusal | None = None
        self.for_address = ""
        self.since_ms = 0
        self.timer_ms = 0  # of the earliest timer that is set

    @property
    def provider(self) -> str:
        """The provider that its destinations wait for."""
        return self.key.provider

    def end_turn(self) -> str:
        """End the turn. Returns the address whose capacity it could use."""
        address, self.on_turn, self.for_address = self.for_address, "", ""
        return address


class AddressQueue:
    """The wait lists that wait for a source address, in order. ``with_turn``: those removed from the order while their destination tries."""

    __slots__ = ("address", "timer_ms", "wait_lists", "with_turn")

    def __init__(self, address: str) -> None:
        self.address = address
        self.wait_lists: OrderedDict[WaitList, None] = OrderedDict()
        self.with_turn: set[WaitList] = set()
        self.timer_ms = 0

    def join(self, wait_list: WaitList) -> None:
        """Append ``wait_list``, unless it is there."""
        self.with_turn.discard(wait_list)
        self.wait_lists.setdefault(wait_list)

    def put_first(self, wait_list: WaitList) -> None:
        """Move ``wait_list`` to the front, if it is there."""
        if wait_list in self.wait_lists:
            self.wait_lists.move_to_end(wait_list, last=False)


# ---- wait lists

# Permits that a wait list gets before the other wait lists of its provider, which may have another pool: each change may cost the
# session of another address.
LIST_TURNS = 8
TIMERS_MIN = 32  # timers that are kept, whatever waits; an old one keeps its wait list
QUEUE_FRONT = 8  # wait lists of a queue that are looked at
RELEASED_AT_ONCE = 1000  # destinations


class WaitLists:
    """The wait lists of all zones. ``on_timer`` is called when ``due_ms`` has changed to an earlier time."""

    def __init__(self, on_timer: Callable[[], None]) -> None:
        self._wait_lists: dict[WaitKey, WaitList] = {}
        self._by_provider: dict[str, OrderedDict[WaitKey, WaitList]] = {}
        self._without_turns: dict[
            str, OrderedDict[WaitKey, WaitList]
        ] = {}  # those with a cause, by provider
        self._queues: dict[str, AddressQueue] = {}
        self._timers: list[tuple[int, int, WaitList | AddressQueue]] = []
        self._numbers = count()
        self._on_timer = on_timer

    @property
    def due_ms(self) -> int | None:
        """When ``run_due`` has something to do."""
        return self._timers[0][0] if self._timers else None

    def __contains__(self, provider: object) -> bool:
        return provider in self._by_provider

    def get(self, key: WaitKey) -> WaitList | None:
        """The wait list, if something waits there."""
        return self._wait_lists.get(key)

    def _index(self, key: WaitKey) -> dict[str, OrderedDict[WaitKey, WaitList]]:
        return self._without_turns if key.cause else self._by_provider

    def join(self, key: WaitKey, destination: str) -> bool:
        """``destination`` waits behind the others; False: none waits."""
        wait_list = self._wait_lists.get(key)
        if wait_list is None or not wait_list.waiting:
            return False
        wait_list.waiting.setdefault(destination)
        return True

    def wait(
        self, key: WaitKey, destination: str, waiter: Waiter, refusal: Refusal, now_ms: int
    ) -> None:
        """``destination`` waits until ``refusal`` may be over."""
        wait_list = self._wait_lists.get(key)
        if wait_list is None:
            wait_list = self._wait_lists[key] = WaitList(key, waiter)
            wait_list.since_ms = now_ms
            self._index(key).setdefault(wait_list.provider, OrderedDict())[key] = wait_list
        address = ""
        wait_list.waiting.setdefault(destination)
        is_first = wait_list.on_turn == destination and wait_list.woken_by_grant
        if wait_list.on_turn == destination:
            address = wait_list.end_turn()
        self._join_queues(wait_list, refusal)
        if is_first:  # it has its turn at the next room; one that was refused at a room has had it
            wait_list.waiting.move_to_end(destination, last=False)
            if address in self._queues:
                self._queues[address].put_first(wait_list)
        if refusal.timer_ms != UNTIL_EVENT:
            self._set_timer(wait_list, refusal.timer_ms)
        if address and all(each != address for each, _ in refusal.at):
            self.capacity_at_address(address)  # it has not used the room

    def _join_queues(self, wait_list: WaitList, refusal: Refusal) -> None:
        left = (
            {address for address, _ in wait_list.refusal.at} if wait_list.refusal is not None else set()
        )
        wait_list.refusal = refusal
        for address, until_ms in refusal.at:
            queue = self._queues.setdefault(address, AddressQueue(address))
            queue.join(wait_list)
            if until_ms != UNTIL_EVENT:
                self._set_timer(queue, until_ms)
            left.discard(address)
        for address in left:
            self._leave(wait_list, address)

    def _leave(self, wait_list: WaitList, address: str) -> None:
        queue = self._queues.get(address)
        if queue is not None:
            queue.wait_lists.pop(wait_list, None)
            queue.with_turn.discard(wait_list)
            if not queue.wait_lists and not queue.with_turn:
                del self._queues[address]

    def _set_timer(self, waiting: WaitList | AddressQueue, until_ms: int) -> None:
        if waiting.timer_ms and waiting.timer_ms <= until_ms:
            return
        waiting.timer_ms = until_ms
        first = self._timers[0][0] if self._timers else None
        heappush(self._timers, (until_ms, next(self._numbers), waiting))
        if len(self._timers) > 2 * (len(self._wait_lists) + len(self._queues)) + TIMERS_MIN:
            self._drop_old_timers()
        if first is None or until_ms < first:
            self._on_timer()

    def _drop_old_timers(self) -> None:
        """Rebuild the heap without timers of removed wait lists, and without those that an earlier one replaces."""
        alive: list[WaitList | AddressQueue] = [*self._wait_lists.values(), *self._queues.values()]
        self._timers = [(each.timer_ms, next(self._numbers), each) for each in alive if each.timer_ms]
        heapify(self._timers)

    def granted(self, key: WaitKey, destination: str) -> None:
        """``destination`` got its permit: the next one may try."""
        wait_list = self._wait_lists.get(key)
        if wait_list is None:
            return
        wait_list.waiting.pop(destination, None)
        if key.cause:
            self._drop_if_empty(wait_list)
            return
        wait_list.turns += 1
        if wait_list.turns >= LIST_TURNS:
            wait_list.turns = 0
            self._by_provider[wait_list.provider].move_to_end(key)
        if wait_list.on_turn not in ("", destination):
            return
        address = wait_list.end_turn()
        if not address:
            self._wake(wait_list, woken_by_grant=True)
            return
        for each, _ in wait_list.refusal.at if wait_list.refusal is not None else ():
            self._queues[each].join(wait_list)
        self._drop_if_empty(wait_list)
        self.capacity_at_address(address, woken_by_grant=True)

    def emptied(self, key: WaitKey, destination: str) -> None:
        """``destination`` has no mail any more."""
        wait_list = self._wait_lists.get(key)
        if wait_list is None:
            return
        wait_list.waiting.pop(destination, None)
        if wait_list.on_turn == destination:
            address = wait_list.end_turn()
            if not self._wake(wait_list, address) and address:
                self.capacity_at_address(address)
        self._drop_if_empty(wait_list)

    def _drop_if_empty(self, wait_list: WaitList) -> None:
        if not wait_list.waiting and not wait_list.on_turn:
            self._wait_lists.pop(wait_list.key, None)
            for address, _ in wait_list.refusal.at if wait_list.refusal is not None else ():
                self._leave(wait_list, address)
            index = self._index(wait_list.key)
            wait_lists = index.get(wait_list.provider)
            if wait_lists is not None:
                wait_lists.pop(wait_list.key, None)
                if not wait_lists:
                    del index[wait_list.provider]

    def set_refusal(self, wait_list: WaitList, refusal: Refusal) -> None:
        """The cause of ``wait_list`` ends at another time."""
        wait_list.refusal = refusal
        if refusal.until_ms != UNTIL_EVENT:
            self._set_timer(wait_list, refusal.until_ms)

    def release(self, wait_list: WaitList, now_ms: int) -> None:
        """The cause of ``wait_list`` has ended: its destinations leave, in batches."""
        for _ in range(min(RELEASED_AT_ONCE, len(wait_list.waiting))):
            destination, _ = wait_list.waiting.popitem(last=False)
            wait_list.waiter.release(destination, wait_list.key)
        if wait_list.waiting:
            self._set_timer(wait_list, now_ms + 1)
        self._drop_if_empty(wait_list)

    def release_at(self, provider: str, now_ms: int) -> None:
        """Mail to ``provider`` may leave by another way: destinations that wait for a cause try again."""
        for wait_list in list(self._without_turns.get(provider, {}).values()):
            self.release(wait_list, now_ms)

    def capacity_on_path(self, provider: str, address: str) -> None:
        """A session or message from ``address`` to ``provider`` has ended: wake what waits for it."""
        self.capacity_at_address(
            address
        )  # first, or the wait list at ``provider`` would have it each time
        self.capacity_at_provider(provider)

    def capacity_at_provider(self, provider: str) -> None:
        """A session or message with ``provider`` has ended: wake what waits for it."""
        for wait_list in list(self._by_provider.get(provider, {}).values()):
            self._wake(wait_list)

    def capacity_at_address(self, address: str, *, woken_by_grant: bool = False) -> None:
        """A session or message from ``address`` has ended: the next wait list in its queue may try."""
        queue = self._queues.get(address)
        while queue is not None and queue.wait_lists:
            wait_list, _ = queue.wait_lists.popitem(last=False)
            queue.with_turn.add(wait_list)
            if self._wake(wait_list, address, woken_by_grant=woken_by_grant):
                return

    def pass_capacity_of(self, key: WaitKey) -> None:
        """The wait list cannot use the capacity of its address now: it keeps its turn, and the next wait list gets the capacity."""
        wait_list = self._wait_lists.get(key)
        if wait_list is not None and wait_list.for_address:
            address, wait_list.for_address = wait_list.for_address, ""
            self.capacity_at_address(address, woken_by_grant=wait_list.woken_by_grant)

    def wait_for_session(self, provider: str, address: str) -> bool:
        """True if something waits for a session to end, at any wait list of ``provider`` or among the first in the queue for ``address``."""
        queue = self._queues.get(address)
        first = islice(queue.wait_lists, QUEUE_FRONT) if queue is not None else ()
        return any(
            wait_list.waiting and wait_list.refusal is not None and wait_list.refusal.for_session
            for wait_list in chain(self._by_provider.get(provider, {}).values(), first)
        )

    def waiting_for(self, address: str) -> int:
        """How many destinations wait for a source address, at all wait lists."""
        queue = self._queues.get(address)
        wait_lists = chain(queue.wait_lists, queue.with_turn) if queue is not None else ()
        return sum(len(wait_list.waiting) for wait_list in wait_lists)

    def all(self) -> list[WaitList]:
        """Every wait list at which something waits."""
        return list(self._wait_lists.values())

    def run_due(self, now_ms: int) -> None:
        """Wake where the time of the limit has come."""
        while self._timers and self._timers[0][0] <= now_ms:
            until_ms, _, due = heappop(self._timers)
            if until_ms != due.timer_ms:
                continue
            due.timer_ms = 0
            if isinstance(due, AddressQueue):
                self.capacity_at_address(due.address)
            elif self._wait_lists.get(due.key) is not due:
                continue
            elif due.key.cause:
                self.release(due, now_ms)
            else:
                self._wake(due)

    def _wake(self, wait_list: WaitList, address: str = "", *, woken_by_grant: bool = False) -> bool:
        """Give the turn to the first that has mail; returns whether there was one. ``woken_by_grant``: another one got a permit."""
        if wait_list.on_turn:
            return False
        wait_list.woken_by_grant = woken_by_grant
        while wait_list.waiting:
            destination, _ = wait_list.waiting.popitem(last=False)
            wait_list.on_turn, wait_list.for_address = destination, address
            if wait_list.waiter.wake(destination, wait_list.key):
                return True
            wait_list.end_turn()
        self._drop_if_empty(wait_list)
        return False


# ---- the wait lists of a zone


def ignore_change(provider: str, change: int) -> None:
    """An ``on_change`` that does nothing."""


class ZoneWaits:
    """The wait lists at which the destinations of one zone wait.

    A destination whose mail leaves from several pools waits for the addresses of each (decision 103). ``ready``: a destination may be served; returns whether it has mail.

    ``on_change`` is called with a provider and by how many more (or, negative, fewer) destinations wait there.
    """

    def __init__(
        self,
        wait_lists: WaitLists,
        ready: Callable[[str], bool],
        on_change: Callable[[str, int], None] = ignore_change,
    ) -> None:
        self._wait_lists = wait_lists
        self._ready = ready
        self._on_change = on_change
        self._offered: set[WaitKey] = set()  # that were offered the capacity of an address
        self._of: dict[str, tuple[WaitKey, ...]] = {}  # by destination; tuples are small

    def __len__(self) -> int:
        return len(self._of)

    def _add(self, destination: str, key: WaitKey) -> None:
        known = self._of.get(destination, ())
        if key not in known:
            self._of[destination] = (*known, key)
            self._on_change(key.provider, 1)

    def _remove(self, destination: str, key: WaitKey) -> bool:
        known = self._of.get(destination, ())
        if key not in known:
            return False
        rest = tuple(each for each in known if each != key)
        if rest:
            self._of[destination] = rest
        else:
            del self._of[destination]
        self._on_change(key.provider, -1)
        return True

    def may_try(self, destination: str, key: WaitKey) -> bool:
        """True if it is its turn at ``key``; if others wait there, it waits behind them."""
        if self.is_at_own_list(destination, key):
            return False
        wait_list = self._wait_lists.get(key)
        if wait_list is None or wait_list.on_turn == destination:
            return True
        if key in self._of.get(destination, ()):
            return False
        if not self._wait_lists.join(key, destination):
            return True
        self._add(destination, key)
        return False

    def admit_first(
        self,
        destination: str,
        keys: Mapping[PoolKey, WaitKey],
        admit: Callable[[PoolKey], Permit | None],
    ) -> Admitted | None:
        """Return what the first pool in turn allows. ``keys``: the wait list of each pool; it leaves all others."""
        self.keep(destination, keys.values())
        for pool in keys:
            permit = admit(pool)
            if permit is not None:
                return Admitted(permit, pool)
        return None

    def wait(self, destination: str, key: WaitKey, refusal: Refusal, now_ms: int) -> None:
        """Wait at ``key`` until ``refusal`` may end; at a wait list of its own if ``refusal.is_alone``: it does not concern the others."""
        at = _own_list(destination, key) if refusal.is_alone else key
        self._add(destination, at)
        self._offered.discard(at)
        self._wait_lists.wait(at, destination, self, refusal, now_ms)
        if at != key and self._remove(destination, key):
            self._wait_lists.emptied(key, destination)

    def leave_own_list(self, destination: str) -> None:
        """End the wait of ``destination`` for what refused it alone."""
        for key in self._of.get(destination, ()):
            if key == _own_list(destination, key) and self._remove(destination, key):
                self._wait_lists.emptied(key, destination)

    def is_at_own_list(self, destination: str, key: WaitKey) -> bool:
        """True if it waits at a wait list of its own instead of at ``key``."""
        known = self._of.get(destination)
        return known is not None and _own_list(destination, key) in known

    def release(self, destination: str, key: WaitKey) -> None:
        if self._remove(destination, key):
            self._ready(destination)

    def wake(self, destination: str, key: WaitKey) -> bool:
        if self._ready(destination):
            wait_list = self._wait_lists.get(key)
            if wait_list is not None and wait_list.for_address:
                self._offered.add(key)
            return True
        self._remove(destination, key)
        return False

    def granted(self, destination: str, key: WaitKey) -> None:
        """It got what it waited for at ``key``."""
        if self._remove(destination, key):
            self._offered.discard(key)
            self._wait_lists.granted(key, destination)

    def granted_all(self, destination: str) -> None:
        """Nothing limits it any more."""
        for key in self._of.get(destination, ()):
            self.granted(destination, key)

    def keep(self, destination: str, keys: Collection[WaitKey]) -> None:
        """Leave all wait lists but ``keys`` and its own ones; where it had the turn, the next destination gets it."""
        for key in self._of.get(destination, ()):
            if key not in keys and key._replace(cause="") not in keys and self._remove(destination, key):
                self._wait_lists.emptied(key, destination)

    def pass_on(self) -> None:
        """The zone can serve nothing now: offer the capacity of addresses to other zones."""
        if not self._offered:  # the scheduler asks after each start
            return
        offered, self._offered = self._offered, set()
        for key in offered:
            self._wait_lists.pass_capacity_of(key)

    def drop_turns(self, destination: str) -> None:
        """Leave the wait lists at which it has its turn; the next destinations get it."""
        for key in self._of.get(destination, ()):
            wait_list = self._wait_lists.get(key)
            if wait_list is None or wait_list.on_turn == destination:
                self._remove(destination, key)
                self._wait_lists.emptied(key, destination)

    def leave(self, destination: str) -> None:
        """It waits nowhere."""
        if destination in self._of:  # each message asks
            self.keep(destination, ())

    def leave_all(self) -> list[str]:
        """No destination waits. Returns those that did."""
        waited = list(self._of)
        for destination in waited:
            self.leave(destination)
        return waited

    def wait_list(self, destination: str, key: WaitKey) -> WaitList | None:
        """The wait list at which ``destination`` waits for ``key``, if it does."""
        known = self._of.get(destination)
        if known is None:
            return None
        return self._wait_lists.get(key if key in known else _own_list(destination, key))

    def waiting(self) -> Iterator[tuple[str, WaitKey, Refusal]]:
        """Each destination that waits, where, and why."""
        for destination, keys in list(self._of.items()):
            for key in keys:
                wait_list = self._wait_lists.get(key)
                if wait_list is not None and wait_list.refusal is not None:
                    yield destination, key, wait_list.refusal


def _own_list(destination: str, key: WaitKey) -> WaitKey:
    """The wait list at which ``destination`` waits alone."""
    return key._replace(cause=f"session:{destination}")
