"""Counters: the use within a sliding time with the moment of free room, and a histogram. Pure; times are unix ms.

``SlidingWindow`` counts by slot, a sixtieth of its length; ``total`` is the sum of the slots in ``_slots``.

Invariants:

- The numbers of slots increase, oldest first, each occurs once, and ``total`` is the sum of their uses.
- A use counts for at least the length of the window, and at most one slot longer. So at most ``limit`` uses, if the caller asks
  ``opens_ms`` before ``add``, are in any ``length_ms``.
- ``used`` and ``add`` remove what has left the window; no timer is needed, and memory is at most SLOTS + 2 entries.
- When the clock is set back by more than the window, what was used later counts as used now, so a limit is not closed forever.

Callers: limits of intake (``queue.submitters.limits``), of providers and addresses (``egress.paths``), thresholds of rules
(``egress.rules``); ``restore`` loads the slots of an earlier run from the store, ``counts`` says which of them are recent enough.

Example::

    window = SlidingWindow(100, 60_000)
    window.add(0, 100)
    window.opens_ms(0, 1)  # 61_000: the slot 0 is over at 1,000, and counts for 60,000 more

``Histogram`` is for distributions that are read rarely and added to often; its form is that of Prometheus.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

SLOTS = 60  # of a window: what was used counts until its slot is over by the length of the window


class SlidingWindow:
    """At most ``limit`` in any ``length_ms``.

    Uses are counted by slot, a sixtieth of the window, so they count up to one slot longer than they must. When the clock is
    set back by more than the window, what was used later counts as used now.
    """

    __slots__ = ("_slots", "limit", "slot_ms", "total")

    def __init__(self, limit: int, length_ms: int) -> None:
        self.limit = limit
        self.slot_ms = max(1, -(-length_ms // SLOTS))
        self._slots: deque[list[int]] = deque()  # number and use, oldest first
        self.total = 0  # what is used, if nothing has left the window since the last look

    def used(self, now_ms: int) -> int:
        """The use in the window that ends at ``now_ms``."""
        slots, newest = self._slots, now_ms // self.slot_ms
        while slots and slots[0][0] < newest - SLOTS:
            self.total -= slots.popleft()[1]
        if slots and slots[-1][0] > newest + SLOTS:  # the clock was set back
            kept = [each for each in slots if each[0] < newest]
            self._slots = deque([*kept, [newest, self.total - sum(used for _, used in kept)]])
        return self.total

    def counts(self, slot: int, now_ms: int) -> bool:
        """True if a use of an earlier run in ``slot`` counts; the clock of that run may have been ahead."""
        return abs(slot - now_ms // self.slot_ms) <= SLOTS

    def add(self, now_ms: int, amount: int) -> tuple[int, int]:
        """Count a use; returns the number of its slot, and what is used in it."""
        slot = now_ms // self.slot_ms
        if self._slots and self._slots[-1][0] > slot:  # the clock was set back
            self.used(now_ms)
        slots = self._slots
        self.total += amount
        if slots and slots[-1][0] >= slot:
            newest = slots[-1]
            newest[1] += amount
            return newest[0], newest[1]
        slots.append([slot, amount])
        if len(slots) > SLOTS + 1:
            self.used(now_ms)
        return slot, amount

    def last(self) -> tuple[int, int] | None:
        """The number and the use of the newest slot that has one."""
        if not self._slots:
            return None
        slot, used = self._slots[-1]
        return slot, used

    def restore(self, slot: int, amount: int) -> None:
        """Count a use of an earlier run in ``slot``, which is later than those before."""
        self._slots.append([slot, amount])
        self.total += amount

    def take_over(self, other: "SlidingWindow") -> None:
        """Count what was used in a window of another length, as far back as that one knows."""
        for slot, used in other._slots:
            self.add((slot + 1) * other.slot_ms - 1, used)

    def copy_uses(self, other: "SlidingWindow") -> None:
        """Count what was used in another window of the same length."""
        self._slots, self.total = deque(map(list, other._slots)), other.total

    def opens_ms(self, now_ms: int, amount: int) -> int:
        """The time at which there is room for ``amount``, at most ``limit``, if nothing else is used; 0: now."""
        excess = self.used(now_ms) + amount - self.limit
        if excess <= 0:
            return 0
        opens_ms = now_ms
        for slot, used in self._slots:
            opens_ms, excess = (slot + SLOTS + 1) * self.slot_ms, excess - used
            if excess <= 0:
                break
        return opens_ms


# ---- A histogram.


class Histogram:
    """Counts of values up to each of ``bounds``, and of larger ones; ``total`` is the sum of the values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, values up to it) as Prometheus has them; the last is ``+Inf``."""
        seen, found = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            found.append(("+Inf" if bound == float("inf") else repr(float(bound)), seen))
        return found
