"""A gate, where the destinations of a zone wait for a provider, and the line of gates that wait for a source address. Pure."""

from collections import OrderedDict
from typing import NamedTuple, Protocol

from zonemta_py.schedule.paths import Refusal


class GateKey(NamedTuple):
    """Identifies a gate. ``zone`` includes the name of the source addresses.

    ``cause``: the suspension that all its destinations wait for, as ``zone:NAME``; empty: they wait for capacity.
    """

    zone: str
    provider: str
    cause: str = ""


class Waiter(Protocol):
    """A zone whose destinations wait at gates; see ``ZoneGates``."""

    def wake(self, destination: str, key: GateKey) -> bool:
        """``destination`` has its turn at the gate. Returns whether it has mail."""

    def release(self, destination: str, key: GateKey) -> None:
        """``destination`` no longer waits at the gate."""


class Gate:
    """What waits in a zone for one provider. ``refusal``: why; ``awake``: the destination whose turn it is.

    ``for_address``: the source address whose capacity it may use, while it is awake for that reason.
    """

    __slots__ = (
        "awake", "for_address", "is_chained", "key", "refusal", "since_ms", "timer_ms", "turns", "waiter", "waiting",
    )  # fmt: skip

    def __init__(self, key: GateKey, waiter: Waiter) -> None:
        self.key = key
        self.waiter = waiter
        self.waiting: OrderedDict[str, None] = OrderedDict()
        self.awake = ""
        self.is_chained = False  # it is awake because another one got a permit
        self.turns = 0  # permits in a row, before other gates of the provider
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
        address, self.awake, self.for_address = self.for_address, "", ""
        return address


class Line:
    """The gates that wait for a source address, in order. ``with_turn``: those removed from the order while their destination tries."""

    __slots__ = ("address", "gates", "timer_ms", "with_turn")

    def __init__(self, address: str) -> None:
        self.address = address
        self.gates: OrderedDict[Gate, None] = OrderedDict()
        self.with_turn: set[Gate] = set()
        self.timer_ms = 0

    def join(self, gate: Gate) -> None:
        """Append ``gate``, unless it is in the line already."""
        self.with_turn.discard(gate)
        self.gates.setdefault(gate)

    def put_first(self, gate: Gate) -> None:
        """Move ``gate`` to the front, if it is in the line."""
        if gate in self.gates:
            self.gates.move_to_end(gate, last=False)
