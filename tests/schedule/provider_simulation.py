"""Permits and wait lists played on a virtual clock: destinations with mail, a provider, and what it sees."""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from zonemta_py.config.providers import ProviderLimits
from zonemta_py.config.sending import AddressLimits
from zonemta_py.egress.limits import Permit, Permits, merge_refusals
from zonemta_py.egress.paths import Refusal
from zonemta_py.egress.waiting import WaitKey, WaitLists

ZONE = "bulk"
BEGIN_MS = 1_700_000_000_000


class ProviderSimulation:
    """Workers send ``messages`` of each destination from ``addresses``; an answer takes up to ``answer_ms``.

    ``received`` are the times at which the provider accepted a message, by address, ``opened`` those of sessions. A
    worker sends ``turn`` messages in its session, which is then closed, or stays open for up to ``idle_ms`` without one: the
    next worker of its address uses it, and one of another address that needs its place closes it. The destinations are those of ``providers`` providers
    with the same limits, in turn; nothing leaves to the first ``paused`` of them for an hour.
    """

    def __init__(
        self,
        limits: ProviderLimits,
        messages: list[int],
        *,
        addresses: tuple[str, ...] = ("a",),
        own: AddressLimits | None = None,
        answer_ms: int = 40,
        turn: int = 3,
        seed: int = 0,
        providers: int = 1,
        paused: int = 0,
        idle_ms: int = 0,
    ) -> None:
        self.now_ms = BEGIN_MS
        self.random = Random(seed)
        self.left = {f"d{n}": number for n, number in enumerate(messages)}
        self.ready = deque(self.left)
        self.provider_of = {name: f"big{n % providers}" for n, name in enumerate(self.left)}
        names = {f"big{n}" for n in range(providers)}
        self.addresses = addresses
        self.answer_ms = answer_ms
        self.turn = turn
        self.idle_ms = idle_ms
        self._idle: dict[
            tuple[str, str], list[object]
        ] = {}  # sessions by provider and address, the oldest first
        self.received: dict[str, list[int]] = {each: [] for each in addresses}
        self.opened: dict[str, list[int]] = {each: [] for each in addresses}
        self.most: dict[str, int] = dict.fromkeys((*addresses, "all"), 0)
        self.open: dict[str, int] = dict.fromkeys((*addresses, "all"), 0)
        self.wakes = 0
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = count()
        self.wait_lists = WaitLists(lambda: None)
        self.permits = Permits(self.room)
        self.permits.configure(
            lambda name: limits if name in names else ProviderLimits(),
            {each: own or AddressLimits() for each in addresses},
        )
        for number in range(paused):
            for address in addresses:
                ceiling = self.permits.path(f"big{number}", address).ceiling
                ceiling.paused_ms = BEGIN_MS + 3_600_000

    def room(self, provider: str, address: str) -> None:
        """Something has ended."""
        self.wait_lists.capacity_at_provider(provider)
        self.wait_lists.capacity_at_address(address)

    def wake(self, destination: str, place: WaitKey) -> bool:
        """A wait list gives the turn to ``destination``."""
        self.wakes += 1
        if self.left[destination]:
            self.ready.append(destination)
        return bool(self.left[destination])

    def release(self, destination: str, place: WaitKey) -> None:
        """A wait list has no turns any more for ``destination``."""
        self.wake(destination, place)

    def run(self, until_ms: float = inf) -> int:
        """Until nothing happens any more, or ``until_ms``; returns the virtual milliseconds that it took."""
        while True:
            self._start()
            due_ms = self.wait_lists.due_ms
            times = [
                each for each in (due_ms, *(event[0] for event in self._events[:1])) if each is not None
            ]
            if not times or min(times) > until_ms:
                return self.now_ms - BEGIN_MS
            if self._events and (due_ms is None or self._events[0][0] <= due_ms):
                self.now_ms, _, act = heappop(self._events)
                act()
            else:
                assert due_ms is not None
                self.now_ms = max(self.now_ms, due_ms)
                self.wait_lists.run_due(self.now_ms)

    def _at(self, delay_ms: int, act: Callable[[], object]) -> None:
        heappush(self._events, (self.now_ms + delay_ms, next(self._numbers), act))

    def _start(self) -> None:
        while self.ready:
            destination = self.ready.popleft()
            provider = self.provider_of[destination]
            if not self.left[destination]:
                self.wait_lists.emptied(WaitKey(ZONE, provider), destination)
                continue
            found = self._take(provider)
            if isinstance(found, Refusal):
                self.wait_lists.wait(WaitKey(ZONE, provider), destination, self, found, self.now_ms)
                continue
            self.wait_lists.granted(WaitKey(ZONE, provider), destination)
            self.left[destination] -= 1
            self._begin(destination, found, 1)
            if self.left[destination]:
                self.ready.append(destination)  # another worker may serve it, too

    def _take(self, provider: str) -> Permit | Refusal:
        refusals = []
        for address in self.random.sample(self.addresses, len(self.addresses)):
            found = self.permits.take(provider, address, self.now_ms)
            if isinstance(found, Permit):
                return found
            refusals.append(found)
        return merge_refusals(refusals, self.now_ms)

    def _begin(self, destination: str, permit: Permit, sent: int) -> None:
        def send() -> None:
            new = sent == 1 and not self._leaves_idle(permit.provider, permit.address)
            if new:
                self._open(permit)
            self.permits.begin(permit, self.now_ms, int(new))
            answer_ms = self.random.randint(0, self.answer_ms)
            arrival_ms = self.random.randint(0, answer_ms)
            self._at(arrival_ms, lambda: self.received[permit.address].append(self.now_ms))
            self._at(answer_ms, lambda: self._answered(destination, permit, sent))

        self._at(self.random.randint(0, 20), send)  # until the session is open, or the dot is sent

    def _open(self, permit: Permit) -> None:
        most = permit.sessions_max[1]
        if 0 <= most <= self.open["all"]:
            other = next(each for each in self.addresses if self._idle.get((permit.provider, each)))
            assert self._leaves_idle(permit.provider, other)
            self._close(other)
        self.opened[permit.address].append(self.now_ms)
        for name in (permit.address, "all"):
            self.open[name] += 1
            self.most[name] = max(self.most[name], self.open[name])

    def _close(self, address: str) -> None:
        for name in (address, "all"):
            self.open[name] -= 1

    def _rest(self, provider: str, address: str) -> None:
        """A session stays open without a worker, for a time."""
        session, found = object(), self._idle.setdefault((provider, address), [])
        found.append(session)
        self.permits.set_idle(provider, address, len(found))

        def end() -> None:
            if session in found and self._leaves_idle(provider, address, session):
                self._close(address)

        self._at(self.random.randint(1, self.idle_ms), end)

    def _leaves_idle(self, provider: str, address: str, session: object = None) -> bool:
        """A session without a worker gets one, or is closed; whether there was one."""
        found = self._idle.get((provider, address))
        if not found:
            return False
        found.remove(session or found[0])
        if self.permits.set_idle(provider, address, len(found)):
            self.wait_lists.capacity_at_provider(provider)
        return True

    def _answered(self, destination: str, permit: Permit, sent: int) -> None:
        self.permits.end(permit, self.now_ms)
        if (
            self.left[destination]
            and sent < self.turn
            and self.permits.renew(permit, self.now_ms) is None
        ):
            self.left[destination] -= 1
            self._begin(destination, permit, sent + 1)
            return
        if self.idle_ms:
            self._rest(permit.provider, permit.address)
        else:
            self._close(permit.address)
        self.permits.release(permit)
        if self.left[destination]:
            self.ready.append(destination)


def most_within(times_ms: list[int], length_ms: int) -> int:
    """The greatest number of ``times_ms`` in any period of ``length_ms``."""
    times, first, most = sorted(times_ms), 0, 0
    for last, time_ms in enumerate(times):
        while times[first] <= time_ms - length_ms:
            first += 1
        most = max(most, last - first + 1)
    return most
