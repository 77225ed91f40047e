"""Destinations that wait for a limit of their provider or of our addresses. Pure; times are ms.

All destinations of a zone at one provider wait at one gate, in the order in which they came. Room at the provider or
the address, or the time of the limit, wakes one of them; each that gets a permit wakes the next. So the work is bounded
by permits and events, whatever waits, and a gate with room and mail is never asleep.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from zonemta_py.schedule.paths import Refusal
from zonemta_py.schedule.rate_windows import UNKNOWN

Wake = Callable[[str], bool]  # a destination may be served: returns whether it has mail


class Gate:
    """What waits in a zone for one provider. ``refusal``: why; ``awake``: the destination whose turn it is."""

    __slots__ = ("awake", "provider", "refusal", "since_ms", "timer_ms", "waiting", "wake", "zone")

    def __init__(self, zone: str, provider: str, wake: Wake) -> None:
        self.zone = zone
        self.provider = provider
        self.wake = wake
        self.waiting: OrderedDict[str, None] = OrderedDict()
        self.awake = ""
        self.refusal: Refusal | None = None
        self.since_ms = 0
        self.timer_ms = 0  # of the earliest timer that is set


class Gates:
    """The gates of all zones. ``on_timer`` is called when ``due_ms`` has changed to an earlier time."""

    def __init__(self, on_timer: Callable[[], None]) -> None:
        self._gates: dict[tuple[str, str], Gate] = {}
        self._by_provider: dict[str, OrderedDict[tuple[str, str], Gate]] = {}
        self._timers: list[tuple[int, int, Gate]] = []
        self._numbers = count()
        self._on_timer = on_timer

    @property
    def due_ms(self) -> int | None:
        """When ``run_due`` has something to do."""
        return self._timers[0][0] if self._timers else None

    def __contains__(self, provider: object) -> bool:
        return provider in self._by_provider

    def get(self, zone: str, provider: str) -> Gate | None:
        """The gate, if something waits there."""
        return self._gates.get((zone, provider))

    def join(self, zone: str, provider: str, destination: str) -> bool:
        """``destination`` waits behind the others; False: none waits."""
        gate = self._gates.get((zone, provider))
        if gate is None or not gate.waiting:
            return False
        gate.waiting.setdefault(destination)
        return True

    def wait(
        self, zone: str, provider: str, destination: str, wake: Wake, refusal: Refusal, now_ms: int
    ) -> None:
        """``destination`` waits until ``refusal`` may be over."""
        gate = self._gates.get((zone, provider))
        if gate is None:
            gate = self._gates[zone, provider] = Gate(zone, provider, wake)
            gate.since_ms = now_ms
            self._by_provider.setdefault(provider, OrderedDict())[zone, provider] = gate
        if gate.awake == destination:
            gate.awake = ""
        gate.waiting.setdefault(destination)
        gate.refusal = refusal
        if refusal.until_ms != UNKNOWN:
            self._set_timer(gate, refusal.until_ms)

    def _set_timer(self, gate: Gate, until_ms: int) -> None:
        if gate.timer_ms and gate.timer_ms <= until_ms:
            return
        gate.timer_ms = until_ms
        first = self._timers[0][0] if self._timers else None
        heappush(self._timers, (until_ms, next(self._numbers), gate))
        if first is None or until_ms < first:
            self._on_timer()

    def granted(self, zone: str, provider: str, destination: str) -> None:
        """``destination`` got its permit: the next one may try."""
        gate = self._gates.get((zone, provider))
        if gate is not None:
            gate.waiting.pop(destination, None)
            if gate.awake in ("", destination):
                gate.awake = ""
                self._wake(gate)

    def emptied(self, zone: str, provider: str, destination: str) -> None:
        """``destination`` has no mail any more."""
        gate = self._gates.get((zone, provider))
        if gate is None:
            return
        gate.waiting.pop(destination, None)
        if gate.awake == destination:
            gate.awake = ""
            self._wake(gate)
        self._drop_if_empty(gate)

    def _drop_if_empty(self, gate: Gate) -> None:
        if not gate.waiting and not gate.awake:
            self._gates.pop((gate.zone, gate.provider), None)
            gates = self._by_provider.get(gate.provider)
            if gates is not None:
                gates.pop((gate.zone, gate.provider), None)
                if not gates:
                    del self._by_provider[gate.provider]

    def room_at(self, provider: str) -> None:
        """Something has ended at ``provider``."""
        for gate in list(self._by_provider.get(provider, {}).values()):
            self._wake(gate)

    def room_for_one(self) -> None:
        """Something has ended at an address: one gate of any provider may try, in turn."""
        for name in list(self._by_provider):
            gates = self._by_provider.pop(name, None)
            if gates is None:
                continue
            self._by_provider[name] = gates
            for gate in list(gates.values()):
                if self._wake(gate):
                    return

    def all(self) -> list[Gate]:
        """Every gate at which something waits."""
        return list(self._gates.values())

    def run_due(self, now_ms: int) -> None:
        """Wake where the time of the limit has come."""
        while self._timers and self._timers[0][0] <= now_ms:
            until_ms, _, gate = heappop(self._timers)
            if until_ms == gate.timer_ms:
                gate.timer_ms = 0
                if self._gates.get((gate.zone, gate.provider)) is gate:
                    self._wake(gate)

    def _wake(self, gate: Gate) -> bool:
        """Give the turn to the first that has mail; returns whether there was one."""
        if gate.awake:
            return False
        while gate.waiting:
            destination, _ = gate.waiting.popitem(last=False)
            gate.awake = destination
            if gate.wake(destination):
                return True
            gate.awake = ""
        self._drop_if_empty(gate)
        return False
