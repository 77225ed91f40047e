"""A gate, where the destinations of a zone wait for a provider, and the line of gates that wait for an address of ours. Pure."""

from collections import OrderedDict
from typing import NamedTuple, Protocol

from zonemta_py.schedule.paths import Refusal


class Place(NamedTuple):
    """Where destinations wait. ``zone``: with the addresses; ``cause``: what ends for all of them, as ``zone:NAME``; empty: room."""

    zone: str
    provider: str
    cause: str = ""


class Waiter(Protocol):
    """Whose destinations wait: a zone, see ``Places``."""

    def wake(self, destination: str, place: Place) -> bool:
        """It has its turn at ``place``; returns whether it has mail."""

    def release(self, destination: str, place: Place) -> None:
        """It waits at ``place`` no more."""


class Gate:
    """What waits in a zone for one provider. ``refusal``: why; ``awake``: the destination whose turn it is.

    ``for_address``: the address of ours whose room it may use, while it is awake for that reason.
    """

    __slots__ = (
        "awake", "for_address", "is_chained", "place", "refusal", "since_ms", "timer_ms", "turns", "waiter", "waiting",
    )  # fmt: skip

    def __init__(self, place: Place, waiter: Waiter) -> None:
        self.place = place
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
        """The provider that it is about."""
        return self.place.provider

    def end_turn(self) -> str:
        """It has had its turn; returns the address whose room it could use."""
        address, self.awake, self.for_address = self.for_address, "", ""
        return address


class Line:
    """The gates that wait for an address: those that stand in line, and those that have left it while they have a turn."""

    __slots__ = ("address", "gates", "timer_ms", "with_turn")

    def __init__(self, address: str) -> None:
        self.address = address
        self.gates: OrderedDict[Gate, None] = OrderedDict()
        self.with_turn: set[Gate] = set()
        self.timer_ms = 0

    def join(self, gate: Gate) -> None:
        """``gate`` stands behind the others, unless it has its place."""
        self.with_turn.discard(gate)
        self.gates.setdefault(gate)

    def put_first(self, gate: Gate) -> None:
        """``gate`` stands before the others, if it stands in line."""
        if gate in self.gates:
            self.gates.move_to_end(gate, last=False)
