"""At which gates the destinations of a zone wait. Pure; times are ms.

A destination whose mail leaves from several pools waits for the addresses of each at a gate of its own (decision 103).
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from zonemta_py.schedule.admission import Admitted
from zonemta_py.schedule.gate import Gate, Place
from zonemta_py.schedule.gates import Gates
from zonemta_py.schedule.paths import Refusal
from zonemta_py.schedule.permits import Permit


def ignore_change(provider: str, change: int) -> None:
    """The ``on_change`` of what does not count."""


class Places:
    """The places of one zone's destinations. ``ready``: a destination may be served; returns whether it has mail.

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
        self._offered: set[Place] = set()  # that have the room of an address
        self._of: dict[str, tuple[Place, ...]] = {}  # by destination; tuples are small

    def __len__(self) -> int:
        return len(self._of)

    def _add(self, destination: str, place: Place) -> None:
        known = self._of.get(destination, ())
        if place not in known:
            self._of[destination] = (*known, place)
            self._on_change(place.provider, 1)

    def _remove(self, destination: str, place: Place) -> bool:
        known = self._of.get(destination, ())
        if place not in known:
            return False
        rest = tuple(each for each in known if each != place)
        if rest:
            self._of[destination] = rest
        else:
            del self._of[destination]
        self._on_change(place.provider, -1)
        return True

    def may_try(self, destination: str, place: Place) -> bool:
        """Whether it is its turn at ``place``; if others wait there, it waits behind them."""
        if self.is_apart(destination, place):
            return False
        gate = self._gates.get(place)
        if gate is None or gate.awake == destination:
            return True
        if place in self._of.get(destination, ()):
            return False
        if not self._gates.join(place, destination):
            return True
        self._add(destination, place)
        return False

    def first_admitted(
        self, destination: str, places: Mapping[str, Place], admit: Callable[[str], Permit | None]
    ) -> Admitted | None:
        """What the first pool in turn allows; ``places``: where the mail of each waits, and nothing waits elsewhere."""
        self.keep(destination, places.values())
        for pool in places:
            permit = admit(pool)
            if permit is not None:
                return Admitted(permit, pool)
        return None

    def wait(self, destination: str, place: Place, refusal: Refusal, now_ms: int) -> None:
        """It waits at ``place`` until ``refusal`` may be over; apart from it, if that says nothing of others there."""
        at = _apart(destination, place) if refusal.is_alone else place
        self._add(destination, at)
        self._offered.discard(at)
        self._gates.wait(at, destination, self, refusal, now_ms)
        if at != place and self._remove(destination, place):
            self._gates.emptied(place, destination)

    def leave_apart(self, destination: str) -> None:
        """What refused it alone is over."""
        for place in self._of.get(destination, ()):
            if place == _apart(destination, place) and self._remove(destination, place):
                self._gates.emptied(place, destination)

    def is_apart(self, destination: str, place: Place) -> bool:
        """Whether what refused it alone at ``place`` is not over."""
        known = self._of.get(destination)
        return known is not None and _apart(destination, place) in known

    def release(self, destination: str, place: Place) -> None:
        """See ``Waiter``."""
        if self._remove(destination, place):
            self._ready(destination)

    def wake(self, destination: str, place: Place) -> bool:
        """See ``Waiter``."""
        if self._ready(destination):
            gate = self._gates.get(place)
            if gate is not None and gate.for_address:
                self._offered.add(place)
            return True
        self._remove(destination, place)
        return False

    def granted(self, destination: str, place: Place) -> None:
        """It got what it waited for at ``place``."""
        if self._remove(destination, place):
            self._offered.discard(place)
            self._gates.granted(place, destination)

    def granted_all(self, destination: str) -> None:
        """Nothing limits it any more."""
        for place in self._of.get(destination, ()):
            self.granted(destination, place)

    def keep(self, destination: str, places: Collection[Place]) -> None:
        """It waits at no other than ``places``, or apart from them; where it had the turn, the next one has it."""
        for place in self._of.get(destination, ()):
            if (
                place not in places
                and place._replace(cause="") not in places
                and self._remove(destination, place)
            ):
                self._gates.emptied(place, destination)

    def pass_rooms(self) -> None:
        """The zone can serve nothing now: other zones have the room of addresses that is offered here."""
        if not self._offered:  # the scheduler asks after each start
            return
        offered, self._offered = self._offered, set()
        for place in offered:
            self._gates.pass_room(place)

    def pass_turns(self, destination: str) -> None:
        """It does not use the turns that it has: it leaves those gates, and the next ones have them."""
        for place in self._of.get(destination, ()):
            gate = self._gates.get(place)
            if gate is None or gate.awake == destination:
                self._remove(destination, place)
                self._gates.emptied(place, destination)

    def leave(self, destination: str) -> None:
        """It waits nowhere."""
        self.keep(destination, ())

    def leave_all(self) -> list[str]:
        """No destination waits. Returns those that did."""
        waited = list(self._of)
        for destination in waited:
            self.leave(destination)
        return waited

    def gate(self, destination: str, place: Place) -> Gate | None:
        """The gate at which ``destination`` waits for ``place``, if it does."""
        known = self._of.get(destination)
        if known is None:
            return None
        return self._gates.get(place if place in known else _apart(destination, place))

    def waiting(self) -> Iterator[tuple[str, Place, Refusal]]:
        """Each destination that waits, where, and why."""
        for destination, places in list(self._of.items()):
            for place in places:
                gate = self._gates.get(place)
                if gate is not None and gate.refusal is not None:
                    yield destination, place, gate.refusal


def _apart(destination: str, place: Place) -> Place:
    """Where ``destination`` waits alone."""
    return place._replace(cause=f"session:{destination}")
