"""The rings in which destinations with mail wait for their turn, and a worker that has got one. Pure.

Connections without a session have a budget (decisions 65 and 130): a third of the zone's connections for
destinations that have not answered lately, so that mail for dead ones leaves room for the others. A quarter of
it is kept for those whose mail has just come, the newest first, a quarter for those that wait longest; those that
have failed have a quarter at most. Unless three quarters are free, a first try has ALL_TRIED_S to open a session, and
less the more of them wait: a place is free again before new mail has waited for long. Times are monotonic seconds.
"""

from collections import OrderedDict
from collections.abc import Iterator
from enum import IntEnum

from zonemta_py.core.model import PoolKey
from zonemta_py.schedule.destination import Destination
from zonemta_py.schedule.permits import FREE, Permit

FRESH_S = 30.0  # how long mail for a destination that has not answered lately has just come
ALL_TRIED_S = 5.0  # for a first try, and for those of all that wait, if that is possible
TRY_MIN_S = 1.25  # for a session: a lost SYN is sent again after 1 s
PROBE_S = 10.0  # for the second try of one that had less: longer than the usual delays of greetings


class Ring(IntEnum):
    """The rings of destinations with mail. A destination in one of the first two is in another one as well."""

    URGENT = 0  # has answered lately, and has mail of a low-volume submitter
    FRESH = 1  # as NEW, and its mail has just come; the newest first
    KNOWN = 2  # has answered lately
    NEW = 3  # has not
    FAILING = 4  # its suspension is over, one worker may probe it


# Attributes of an enumeration are slow to read, and each message reads several.
URGENT, FRESH, KNOWN, NEW, FAILING = Ring
# The order in which the rings are asked, by the ring that had the last turn.
ORDERS = {
    KNOWN: (URGENT, FRESH, NEW, FAILING, KNOWN),
    NEW: (URGENT, FRESH, FAILING, KNOWN, NEW),
    FAILING: (URGENT, FRESH, KNOWN, NEW, FAILING),
}


class Rings:
    """The destinations of a zone with mail, and how many workers without a session have started from each ring.

    ``trying_max``: how many such workers there may be for destinations that have not answered lately.
    """

    def __init__(self) -> None:
        self.trying_max = 1
        self.starting = [0] * len(Ring)
        # The values are used in FRESH only: when the mail came.
        self._waiting: tuple[OrderedDict[str, float], ...] = tuple(OrderedDict() for _ in Ring)
        self._order = ORDERS[FAILING]

    def __bool__(self) -> bool:
        return any(self._waiting)

    def add(self, name: str, now_s: float, *, known: bool, urgent: bool) -> None:
        """The destination has mail; ``known``: it has answered lately, or its provider has. ``urgent``: it is served next."""
        waiting = self._waiting
        if known:
            waiting[KNOWN].setdefault(name, now_s)
            if urgent:
                waiting[URGENT].setdefault(name, now_s)
        else:
            if urgent or name not in waiting[NEW]:
                waiting[FRESH][name] = now_s
                waiting[FRESH].move_to_end(name)
            waiting[NEW].setdefault(name, now_s)

    def add_failing(self, name: str, now_s: float) -> None:
        """The destination has mail, and could not be reached when it was tried last."""
        self._waiting[FAILING].setdefault(name, now_s)

    def answered(self, name: str, now_s: float) -> None:
        """The destination, if it waits as one that had not answered lately, has."""
        self._waiting[FRESH].pop(name, None)
        if self._waiting[NEW].pop(name, None) is not None:
            self._waiting[KNOWN].setdefault(name, now_s)

    def remove(self, name: str) -> None:
        """The destination is to have no turn."""
        for ring in self._waiting:
            if ring:
                ring.pop(name, None)

    def put_last(self, name: str) -> None:
        """The destination, if it has answered lately, has its turn after all others that wait now."""
        for ring in (self._waiting[KNOWN], self._waiting[URGENT]):
            if name in ring:
                ring.move_to_end(name)

    def take(self, now_s: float) -> Iterator[tuple[str, Ring, float]]:
        """The destinations that may have a worker, in turn, and for ``started`` the ring and the time; each has left the ring."""
        for ring in self._order:
            waiting = self._waiting[ring]
            while waiting and self.has_room(ring):
                name, since_s = waiting.popitem(last=ring is FRESH)
                if ring is FRESH and now_s - since_s > FRESH_S:
                    waiting.clear()  # the others are older
                    break
                yield name, ring, since_s

    def started(self, name: str, ring: Ring, since_s: float) -> None:
        """A worker has started for what ``take`` gave; there may be more mail."""
        self.starting[ring] += 1
        if ring in ORDERS:
            self._order = ORDERS[ring]
            self._waiting[ring][name] = since_s

    def has_room(self, ring: Ring) -> bool:
        """Whether a worker may start for a destination of ``ring``."""
        if ring is KNOWN or ring is URGENT:
            return True
        fresh, failing = self.starting[FRESH], self.starting[FAILING]
        if self.trying >= self.trying_max:
            return False
        share = max(1, self.trying_max // 4)
        most = max(1, self.trying_max - share)
        if ring is FRESH:
            return fresh < most
        return self.trying - fresh < most and (ring is NEW or failing < share)

    @property
    def trying(self) -> int:
        """How many workers look for a session with destinations that have not answered lately."""
        return self.starting[FRESH] + self.starting[NEW] + self.starting[FAILING]

    def session_within_s(self, ring: Ring, failures: int) -> float:
        """In what time a worker that has started from ``ring`` is to have a session, so that others get its place; 0: as long as the zone says.

        ``failures``: of the destination since it last answered. After two it has all the time that it needs, so a host that greets late gets its mail.
        """
        if ring is KNOWN or ring is URGENT or failures > 1:
            return 0.0
        waiting = len(self._waiting[NEW]) + len(self._waiting[FAILING]) - 1  # without its own
        if self.trying + waiting <= max(1, self.trying_max // 4):
            return 0.0
        if failures:
            return PROBE_S
        return max(TRY_MIN_S, ALL_TRIED_S * min(1.0, self.trying_max / max(1, waiting)))

    def others_wait(self, name: str, *, only_urgent: bool) -> bool:
        """Whether a destination other than ``name`` could have a worker."""
        for ring in (URGENT,) if only_urgent else self._order:
            if any(other != name for other in self._waiting[ring]) and self.has_room(ring):
                return True
        return False

    def of(self, name: str) -> list[Ring]:
        """The rings in which the destination waits."""
        return [ring for ring in Ring if name in self._waiting[ring]]

    def since_s(self, name: str, now_s: float) -> float:
        """Since when it waits; now if it does not."""
        return min((each[name] for each in self._waiting if name in each), default=now_s)


IN_ROW = (
    10  # messages: fewer follow the weights closely, more displace fewer sessions of other addresses
)


class WorkerSlot:
    """One worker of a zone: its destination, and what it counts for.

    ``established``: it has had a session. ``is_newcomer``: it has had no lease. ``unpaid``: it has no token yet for
    its current lease. ``ring``: where its destination was when it started. ``session_within_s``: see ``Rings``. ``permit``: what it may send, and from where; ``pool_key``: whose mail, see ``Admitted``.
    ``source``: the source address that was drawn for messages without an attempt; ``in_row`` of them have left from it.
    ``gives_way``: it ends because others wait for what it uses.
    """

    __slots__ = (
        "destination", "established", "gives_way", "in_row", "is_newcomer", "permit", "pool_key", "ring", "session_within_s", "source", "unpaid",
    )  # fmt: skip

    def __init__(
        self,
        destination: Destination,
        ring: Ring,
        permit: Permit = FREE,
        pool_key: PoolKey | None = None,
        *,
        session_within_s: float = 0.0,
    ) -> None:
        self.destination = destination
        self.permit = permit
        self.pool_key = pool_key
        self.ring = ring
        self.session_within_s = session_within_s
        self.established = False
        self.is_newcomer = True
        self.unpaid = True
        self.source = ""
        self.in_row = 0
        self.gives_way = False

    def left_from(self, source: str) -> None:
        """A message without an attempt has left from ``source``: retries must not draw new mail to their address."""
        self.in_row = self.in_row + 1 if source == self.source else 1
        self.source = source

    @property
    def draws(self) -> bool:
        """Whether the address of its next message without an attempt is drawn by weight: IN_ROW have had this one."""
        return self.in_row > 0 and self.in_row % IN_ROW == 0
