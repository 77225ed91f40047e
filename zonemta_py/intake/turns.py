"""How long sessions compute in one turn of the event loop (decision 119).

A loop that serves all that has come computes for many milliseconds while clients submit, and mail that could leave
waits for each of these turns. Beyond a budget sessions wait for the next turn, in the order in which they came.
Deliveries, writes and timers are served in between. What follows a commit or a check of a password is outside the budget.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from zonemta_py.core.clock import monotonic_s

BUDGET_S = 0.0005  # a few commands, or a message; at least one step of one session


class IntakeTurns:
    """The sessions of one process that wait for a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, budget_s: float = BUDGET_S) -> None:
        self._loop = loop
        self._budget_s = budget_s
        self._end_s = 0.0  # of the budget of this turn; 0: no session has done anything yet
        # A session that has waited may do one step, however long it is since the last check.
        self._granted = False
        self._waiting: deque[Callable[[], None]] = deque()

    def is_over(self) -> bool:
        """Whether a session must ``wait`` before its next step."""
        if self._granted:
            self._granted = False
            return False
        if self._end_s:
            return monotonic_s() >= self._end_s
        self._end_s = monotonic_s() + self._budget_s
        self._loop.call_soon(self._next_turn)
        return False

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` in one of the next turns; ``is_over`` was true."""
        self._waiting.append(go_on)

    def _next_turn(self) -> None:
        self._end_s = 0.0
        while self._waiting and not self.is_over():
            self._granted = True
            self._waiting.popleft()()
            self._granted = False
