"""The time of a simulation: what happens at which moment, in order. Pure."""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

Act = Callable[[], None]


class VirtualClock:
    """``now_s`` counts from the first arrival, which is at ``begin_ms`` (unix ms)."""

    def __init__(self, begin_ms: int = 0) -> None:
        self.begin_ms = begin_ms
        self.now_s = 0.0
        self._events: list[tuple[float, int, Act]] = []
        self._sequence = 0  # orders events of the same time
        self._soon: deque[Act] = deque()

    @property
    def now_ms(self) -> int:
        """Unix ms."""
        return self.begin_ms + round(self.now_s * 1000)

    @property
    def next_s(self) -> float | None:
        """When the next event is, if there is one."""
        return self._events[0][0] if self._events else None

    def at(self, due_s: float, act: Act) -> None:
        """Call ``act`` at a time that is not before now."""
        self._sequence += 1
        heappush(self._events, (due_s, self._sequence, act))

    def at_ms(self, due_ms: int, act: Act) -> None:
        """As ``at``, of unix ms; a time that is over is now."""
        self.at(max(self.now_s, (due_ms - self.begin_ms) / 1000), act)

    def soon(self, act: Act) -> None:
        """Call ``act`` when what happens now is over."""
        self._soon.append(act)

    def run_next(self) -> None:
        """Advance to the next event, of which there is one."""
        due_s, _, act = heappop(self._events)
        self.run_at(due_s, act)

    def run_at(self, now_s: float, act: Act) -> None:
        """Advance to ``now_s`` and call ``act``, then all that is to be called soon."""
        self.now_s = now_s
        act()
        while self._soon:
            self._soon.popleft()()
