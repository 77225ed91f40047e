"""Destinations that wait for a limit of their provider or of a source address. Pure; times are ms.

All destinations of a zone at one provider whose mail leaves from the same addresses wait at one gate, in the order in
which they came. Capacity at the provider, or the end of the limit, gives the turn to one of them; each that gets a permit
passes it to the next. Gates that wait for a source address form a line: capacity at the address gives the first one its
turn, then the next, until the address has none left. A gate whose zone cannot serve it now keeps its turn, and the capacity
passes to the next gate. So the work is bounded by permits and events, whatever waits.

Destinations that wait for something that ends for all of them, such as a suspension by an operator, have no turns: all leave
when it ends.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import chain, count, islice

from zonemta_py.schedule.gate import Gate, GateKey, Line, Waiter
from zonemta_py.schedule.paths import Refusal
from zonemta_py.schedule.rate_windows import UNTIL_EVENT

# Permits that a gate gets before the other gates of its provider, which may have another pool: each change may cost the
# session of another address.
GATE_TURNS = 8
TIMERS_MIN = 1000  # timers that are kept, whatever waits
LINE_FRONT = 8  # gates of a line that are looked at
RELEASED_AT_ONCE = 1000  # destinations


class Gates:
    """The gates of all zones. ``on_timer`` is called when ``due_ms`` has changed to an earlier time."""

    def __init__(self, on_timer: Callable[[], None]) -> None:
        self._gates: dict[GateKey, Gate] = {}
        self._by_provider: dict[str, OrderedDict[GateKey, Gate]] = {}
        self._without_turns: dict[
            str, OrderedDict[GateKey, Gate]
        ] = {}  # those with a cause, by provider
        self._lines: dict[str, Line] = {}
        self._timers: list[tuple[int, int, Gate | Line]] = []
        self._numbers = count()
        self._on_timer = on_timer

    @property
    def due_ms(self) -> int | None:
        """When ``run_due`` has something to do."""
        return self._timers[0][0] if self._timers else None

    def __contains__(self, provider: object) -> bool:
        return provider in self._by_provider

    def get(self, key: GateKey) -> Gate | None:
        """The gate, if something waits there."""
        return self._gates.get(key)

    def _index(self, key: GateKey) -> dict[str, OrderedDict[GateKey, Gate]]:
        return self._without_turns if key.cause else self._by_provider

    def join(self, key: GateKey, destination: str) -> bool:
        """``destination`` waits behind the others; False: none waits."""
        gate = self._gates.get(key)
        if gate is None or not gate.waiting:
            return False
        gate.waiting.setdefault(destination)
        return True

    def wait(
        self, key: GateKey, destination: str, waiter: Waiter, refusal: Refusal, now_ms: int
    ) -> None:
        """``destination`` waits until ``refusal`` may be over."""
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(key, waiter)
            gate.since_ms = now_ms
            self._index(key).setdefault(gate.provider, OrderedDict())[key] = gate
        address = ""
        gate.waiting.setdefault(destination)
        is_first = gate.awake == destination and gate.is_chained
        if gate.awake == destination:
            address = gate.end_turn()
        self._stand_in_line(gate, refusal)
        if is_first:  # it has its turn at the next room; one that was refused at a room has had it
            gate.waiting.move_to_end(destination, last=False)
            if address in self._lines:
                self._lines[address].put_first(gate)
        if refusal.timer_ms != UNTIL_EVENT:
            self._set_timer(gate, refusal.timer_ms)
        if address and all(each != address for each, _ in refusal.at):
            self.capacity_at_address(address)  # it has not used the room

    def _stand_in_line(self, gate: Gate, refusal: Refusal) -> None:
        left = {address for address, _ in gate.refusal.at} if gate.refusal is not None else set()
        gate.refusal = refusal
        for address, until_ms in refusal.at:
            line = self._lines.setdefault(address, Line(address))
            line.join(gate)
            if until_ms != UNTIL_EVENT:
                self._set_timer(line, until_ms)
            left.discard(address)
        for address in left:
            self._leave(gate, address)

    def _leave(self, gate: Gate, address: str) -> None:
        line = self._lines.get(address)
        if line is not None:
            line.gates.pop(gate, None)
            line.with_turn.discard(gate)
            if not line.gates and not line.with_turn:
                del self._lines[address]

    def _set_timer(self, waiting: Gate | Line, until_ms: int) -> None:
        if waiting.timer_ms and waiting.timer_ms <= until_ms:
            return
        waiting.timer_ms = until_ms
        first = self._timers[0][0] if self._timers else None
        heappush(self._timers, (until_ms, next(self._numbers), waiting))
        if len(self._timers) > 2 * (len(self._gates) + len(self._lines)) + TIMERS_MIN:
            self._drop_old_timers()
        if first is None or until_ms < first:
            self._on_timer()

    def _drop_old_timers(self) -> None:
        """Rebuild the heap without timers of removed gates, and without those that an earlier one replaces."""
        alive: list[Gate | Line] = [*self._gates.values(), *self._lines.values()]
        self._timers = [(each.timer_ms, next(self._numbers), each) for each in alive if each.timer_ms]
        heapify(self._timers)

    def granted(self, key: GateKey, destination: str) -> None:
        """``destination`` got its permit: the next one may try."""
        gate = self._gates.get(key)
        if gate is None:
            return
        gate.waiting.pop(destination, None)
        if key.cause:
            self._drop_if_empty(gate)
            return
        gate.turns += 1
        if gate.turns >= GATE_TURNS:
            gate.turns = 0
            self._by_provider[gate.provider].move_to_end(key)
        if gate.awake not in ("", destination):
            return
        address = gate.end_turn()
        if not address:
            self._wake(gate, is_chained=True)
            return
        for each, _ in gate.refusal.at if gate.refusal is not None else ():
            self._lines[each].join(gate)
        self._drop_if_empty(gate)
        self.capacity_at_address(address, is_chained=True)

    def emptied(self, key: GateKey, destination: str) -> None:
        """``destination`` has no mail any more."""
        gate = self._gates.get(key)
        if gate is None:
            return
        gate.waiting.pop(destination, None)
        if gate.awake == destination:
            address = gate.end_turn()
            if not self._wake(gate, address) and address:
                self.capacity_at_address(address)
        self._drop_if_empty(gate)

    def _drop_if_empty(self, gate: Gate) -> None:
        if not gate.waiting and not gate.awake:
            self._gates.pop(gate.key, None)
            for address, _ in gate.refusal.at if gate.refusal is not None else ():
                self._leave(gate, address)
            index = self._index(gate.key)
            gates = index.get(gate.provider)
            if gates is not None:
                gates.pop(gate.key, None)
                if not gates:
                    del index[gate.provider]

    def put_off(self, gate: Gate, refusal: Refusal) -> None:
        """The cause of ``gate`` ends at another time."""
        gate.refusal = refusal
        if refusal.until_ms != UNTIL_EVENT:
            self._set_timer(gate, refusal.until_ms)

    def release(self, gate: Gate, now_ms: int) -> None:
        """The cause of ``gate`` has ended: its destinations leave, in batches."""
        for _ in range(min(RELEASED_AT_ONCE, len(gate.waiting))):
            destination, _ = gate.waiting.popitem(last=False)
            gate.waiter.release(destination, gate.key)
        if gate.waiting:
            self._set_timer(gate, now_ms + 1)
        self._drop_if_empty(gate)

    def release_at(self, provider: str, now_ms: int) -> None:
        """Mail to ``provider`` may leave by another way: destinations that wait for a cause try again."""
        for gate in list(self._without_turns.get(provider, {}).values()):
            self.release(gate, now_ms)

    def capacity_on_path(self, provider: str, address: str) -> None:
        """A session or message from ``address`` to ``provider`` has ended: wake what waits for it."""
        self.capacity_at_address(address)  # first, or the gate at ``provider`` would have it each time
        self.capacity_at_provider(provider)

    def capacity_at_provider(self, provider: str) -> None:
        """A session or message with ``provider`` has ended: wake what waits for it."""
        for gate in list(self._by_provider.get(provider, {}).values()):
            self._wake(gate)

    def capacity_at_address(self, address: str, *, is_chained: bool = False) -> None:
        """A session or message from ``address`` has ended: the next gate in its line may try."""
        line = self._lines.get(address)
        while line is not None and line.gates:
            gate, _ = line.gates.popitem(last=False)
            line.with_turn.add(gate)
            if self._wake(gate, address, is_chained=is_chained):
                return

    def pass_capacity_of(self, key: GateKey) -> None:
        """The gate cannot use the capacity of its address now: it keeps its turn, and the next gate gets the capacity."""
        gate = self._gates.get(key)
        if gate is not None and gate.for_address:
            address, gate.for_address = gate.for_address, ""
            self.capacity_at_address(address, is_chained=gate.is_chained)

    def wait_for_session(self, provider: str, address: str) -> bool:
        """Whether something waits for a session to end, at any gate of ``provider`` or first in line for ``address``."""
        line = self._lines.get(address)
        first = islice(line.gates, LINE_FRONT) if line is not None else ()
        return any(
            gate.waiting and gate.refusal is not None and gate.refusal.for_session
            for gate in chain(self._by_provider.get(provider, {}).values(), first)
        )

    def waiting_for(self, address: str) -> int:
        """How many destinations wait for a source address, at all gates."""
        line = self._lines.get(address)
        gates = chain(line.gates, line.with_turn) if line is not None else ()
        return sum(len(gate.waiting) for gate in gates)

    def all(self) -> list[Gate]:
        """Every gate at which something waits."""
        return list(self._gates.values())

    def run_due(self, now_ms: int) -> None:
        """Wake where the time of the limit has come."""
        while self._timers and self._timers[0][0] <= now_ms:
            until_ms, _, due = heappop(self._timers)
            if until_ms != due.timer_ms:
                continue
            due.timer_ms = 0
            if isinstance(due, Line):
                self.capacity_at_address(due.address)
            elif self._gates.get(due.key) is not due:
                continue
            elif due.key.cause:
                self.release(due, now_ms)
            else:
                self._wake(due)

    def _wake(self, gate: Gate, address: str = "", *, is_chained: bool = False) -> bool:
        """Give the turn to the first that has mail; returns whether there was one. ``is_chained``: another one got a permit."""
        if gate.awake:
            return False
        gate.is_chained = is_chained
        while gate.waiting:
            destination, _ = gate.waiting.popitem(last=False)
            gate.awake, gate.for_address = destination, address
            if gate.waiter.wake(destination, gate.key):
                return True
            gate.end_turn()
        self._drop_if_empty(gate)
        return False
