"""The turn queues in which destinations with mail wait for their turn, and a worker that has got one. Pure.

Connections without a session have a budget (decisions 65 and 130): a third of the zone's connections for
destinations that have not answered lately, so that mail for dead ones leaves room for the others. A quarter of
it is kept for those whose mail has just come, the newest first, a quarter for those that wait longest; those that
have failed have a quarter at most. Unless three quarters are free, a first try has ALL_TRIED_S to open a session, and
less the more of them wait: a place is free again before new mail has waited for long. Times are monotonic seconds.
"""

from collections import OrderedDict
from collections.abc import Iterator

from zonemta_py.egress.admission import TurnQueue

FRESH_S = 30.0  # how long mail for a destination that has not answered lately has just come
ALL_TRIED_S = 5.0  # for a first try, and for those of all that wait, if that is possible
TRY_MIN_S = 1.25  # for a session: a lost SYN is sent again after 1 s
PROBE_S = 10.0  # for the second try of one that had less: longer than the usual delays of greetings


# Attributes of an enumeration are slow to read, and each message reads several.
URGENT, FRESH, KNOWN, NEW, FAILING = TurnQueue
# The order in which the turn queues are asked, by the turn queue that had the last turn.
TURN_ORDERS = {
    KNOWN: (URGENT, FRESH, NEW, FAILING, KNOWN),
    NEW: (URGENT, FRESH, FAILING, KNOWN, NEW),
    FAILING: (URGENT, FRESH, KNOWN, NEW, FAILING),
}


class TurnQueues:
    """The destinations of a zone with mail, and how many workers without a session have started from each turn queue.

    ``trying_max``: how many such workers there may be for destinations that have not answered lately.
    """

    def __init__(self) -> None:
        self.trying_max = 1
        self.starting = [0] * len(TurnQueue)
        # The values are used in FRESH only: when the mail came.
        self._waiting: tuple[OrderedDict[str, float], ...] = tuple(OrderedDict() for _ in TurnQueue)
        self._order = TURN_ORDERS[FAILING]

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
        for turn_queue in self._waiting:
            if turn_queue:
                turn_queue.pop(name, None)

    def put_last(self, name: str) -> None:
        """The destination, if it has answered lately, has its turn after all others that wait now."""
        for turn_queue in (self._waiting[KNOWN], self._waiting[URGENT]):
            if name in turn_queue:
                turn_queue.move_to_end(name)

    def take(self, now_s: float) -> Iterator[tuple[str, TurnQueue, float]]:
        """The destinations that may have a worker, in turn, and for ``started`` the turn queue and the time; each has left the turn queue."""
        for turn_queue in self._order:
            waiting = self._waiting[turn_queue]
            while waiting and self.has_room(turn_queue):
                name, since_s = waiting.popitem(last=turn_queue is FRESH)
                if turn_queue is FRESH and now_s - since_s > FRESH_S:
                    waiting.clear()  # the others are older
                    break
                yield name, turn_queue, since_s

    def started(self, name: str, turn_queue: TurnQueue, since_s: float) -> None:
        """A worker has started for what ``take`` gave; there may be more mail."""
        self.starting[turn_queue] += 1
        if turn_queue in TURN_ORDERS:
            self._order = TURN_ORDERS[turn_queue]
            self._waiting[turn_queue][name] = since_s

    def has_room(self, turn_queue: TurnQueue) -> bool:
        """Whether a worker may start for a destination of ``turn_queue``."""
        if turn_queue is KNOWN or turn_queue is URGENT:
            return True
        fresh, failing = self.starting[FRESH], self.starting[FAILING]
        if self.trying >= self.trying_max:
            return False
        share = max(1, self.trying_max // 4)
        most = max(1, self.trying_max - share)
        if turn_queue is FRESH:
            return fresh < most
        return self.trying - fresh < most and (turn_queue is NEW or failing < share)

    @property
    def trying(self) -> int:
        """How many workers look for a session with destinations that have not answered lately."""
        return self.starting[FRESH] + self.starting[NEW] + self.starting[FAILING]

    def session_within_s(self, turn_queue: TurnQueue, failures: int) -> float:
        """In what time a worker that has started from ``turn_queue`` is to have a session, so that others get its place; 0: as long as the zone says.

        ``failures``: of the destination since it last answered. After two it has all the time that it needs, so a host that greets late gets its mail.
        """
        if turn_queue is KNOWN or turn_queue is URGENT or failures > 1:
            return 0.0
        waiting = len(self._waiting[NEW]) + len(self._waiting[FAILING]) - 1  # without its own
        if self.trying + waiting <= max(1, self.trying_max // 4):
            return 0.0
        if failures:
            return PROBE_S
        return max(TRY_MIN_S, ALL_TRIED_S * min(1.0, self.trying_max / max(1, waiting)))

    def has_waiters(self, name: str, *, only_urgent: bool) -> bool:
        """Whether a destination other than ``name`` could have a worker."""
        for turn_queue in (URGENT,) if only_urgent else self._order:
            if any(other != name for other in self._waiting[turn_queue]) and self.has_room(turn_queue):
                return True
        return False

    def of(self, name: str) -> list[TurnQueue]:
        """The turn queues in which the destination waits."""
        return [turn_queue for turn_queue in TurnQueue if name in self._waiting[turn_queue]]

    def since_s(self, name: str, now_s: float) -> float:
        """Since when it waits; now if it does not."""
        return min((each[name] for each in self._waiting if name in each), default=now_s)
