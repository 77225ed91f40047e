"""At which gates the destinations of a zone wait. Pure; times are ms.

A destination whose mail leaves from several pools waits for the addresses of each at a gate of its own (decision 103).
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from zonemta_py.schedule.admission import Admitted
from zonemta_py.schedule.gate import Gate, GateKey
from zonemta_py.schedule.gates import Gates
from zonemta_py.schedule.paths import Refusal
from zonemta_py.schedule.permits import Permit


def ignore_change(provider: str, change: int) -> None:
    """An ``on_change`` that does nothing."""


class ZoneGates:
    """The gates of one zone's destinations. ``ready``: a destination may be served; returns whether it has mail.

    ``on_change`` is called with a provider and by how many more (or, negative, fewer) destinations wait there.
    """

    def __init__(
        self,
        gates: Gates,
        ready: Callable[[str], bool],
        on_change: Callable[[str, int], None] = ignore_change,
    ) -> None:
        self._gates = gates
        self._ready = ready
        self._on_change = on_change
        self._offered: set[GateKey] = set()  # that were offered the capacity of an address
        self._of: dict[str, tuple[GateKey, ...]] = {}  # by destination; tuples are small

    def __len__(self) -> int:
        return len(self._of)

    def _add(self, destination: str, key: GateKey) -> None:
        known = self._of.get(destination, ())
        if key not in known:
            self._of[destination] = (*known, key)
            self._on_change(key.provider, 1)

    def _remove(self, destination: str, key: GateKey) -> bool:
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

    def may_try(self, destination: str, key: GateKey) -> bool:
        """Whether it is its turn at ``key``; if others wait there, it waits behind them."""
        if self.is_at_own_gate(destination, key):
            return False
        gate = self._gates.get(key)
        if gate is None or gate.awake == destination:
            return True
        if key in self._of.get(destination, ()):
            return False
        if not self._gates.join(key, destination):
            return True
        self._add(destination, key)
        return False

    def admit_first(
        self, destination: str, keys: Mapping[str, GateKey], admit: Callable[[str], Permit | None]
    ) -> Admitted | None:
        """What the first pool in turn allows. ``keys``: the gate of each pool; it leaves all others."""
        self.keep(destination, keys.values())
        for pool in keys:
            permit = admit(pool)
            if permit is not None:
                return Admitted(permit, pool)
        return None

    def wait(self, destination: str, key: GateKey, refusal: Refusal, now_ms: int) -> None:
        """Wait at ``key`` until ``refusal`` may end; at a gate of its own if ``refusal.is_alone``: it does not concern the others."""
        at = _own_gate(destination, key) if refusal.is_alone else key
        self._add(destination, at)
        self._offered.discard(at)
        self._gates.wait(at, destination, self, refusal, now_ms)
        if at != key and self._remove(destination, key):
            self._gates.emptied(key, destination)

    def leave_own_gate(self, destination: str) -> None:
        """What refused ``destination`` alone has ended."""
        for key in self._of.get(destination, ()):
            if key == _own_gate(destination, key) and self._remove(destination, key):
                self._gates.emptied(key, destination)

    def is_at_own_gate(self, destination: str, key: GateKey) -> bool:
        """Whether it waits at a gate of its own instead of at ``key``."""
        known = self._of.get(destination)
        return known is not None and _own_gate(destination, key) in known

    def release(self, destination: str, key: GateKey) -> None:
        """See ``Waiter``."""
        if self._remove(destination, key):
            self._ready(destination)

    def wake(self, destination: str, key: GateKey) -> bool:
        """See ``Waiter``."""
        if self._ready(destination):
            gate = self._gates.get(key)
            if gate is not None and gate.for_address:
                self._offered.add(key)
            return True
        self._remove(destination, key)
        return False

    def granted(self, destination: str, key: GateKey) -> None:
        """It got what it waited for at ``key``."""
        if self._remove(destination, key):
            self._offered.discard(key)
            self._gates.granted(key, destination)

    def granted_all(self, destination: str) -> None:
        """Nothing limits it any more."""
        for key in self._of.get(destination, ()):
            self.granted(destination, key)

    def keep(self, destination: str, keys: Collection[GateKey]) -> None:
        """Leave all gates but ``keys`` and its own ones; where it had the turn, the next destination gets it."""
        for key in self._of.get(destination, ()):
            if key not in keys and key._replace(cause="") not in keys and self._remove(destination, key):
                self._gates.emptied(key, destination)

    def pass_capacity(self) -> None:
        """The zone can serve nothing now: offer the capacity of addresses to other zones."""
        if not self._offered:  # the scheduler asks after each start
            return
        offered, self._offered = self._offered, set()
        for key in offered:
            self._gates.pass_capacity_of(key)

    def give_up_turns(self, destination: str) -> None:
        """Leave the gates at which it has its turn; the next destinations get it."""
        for key in self._of.get(destination, ()):
            gate = self._gates.get(key)
            if gate is None or gate.awake == destination:
                self._remove(destination, key)
                self._gates.emptied(key, destination)

    def leave(self, destination: str) -> None:
        """It waits nowhere."""
        self.keep(destination, ())

    def leave_all(self) -> list[str]:
        """No destination waits. Returns those that did."""
        waited = list(self._of)
        for destination in waited:
            self.leave(destination)
        return waited

    def gate(self, destination: str, key: GateKey) -> Gate | None:
        """The gate at which ``destination`` waits for ``key``, if it does."""
        known = self._of.get(destination)
        if known is None:
            return None
        return self._gates.get(key if key in known else _own_gate(destination, key))

    def waiting(self) -> Iterator[tuple[str, GateKey, Refusal]]:
        """Each destination that waits, where, and why."""
        for destination, keys in list(self._of.items()):
            for key in keys:
                gate = self._gates.get(key)
                if gate is not None and gate.refusal is not None:
                    yield destination, key, gate.refusal


def _own_gate(destination: str, key: GateKey) -> GateKey:
    """The gate at which ``destination`` waits alone."""
    return key._replace(cause=f"session:{destination}")
