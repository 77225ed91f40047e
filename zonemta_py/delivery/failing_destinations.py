"""The destinations of one zone at which no session could be opened: suspended, then tried again.

Their mail stays on disk without an attempt, except recipients that expire, and those whose senders get a delay warning.
"""

import asyncio
import logging
from collections.abc import Callable

from zonemta_py.core import clock
from zonemta_py.core.model import Attempt
from zonemta_py.core.repeats import RepeatedLines
from zonemta_py.delivery.attempts import reason_of
from zonemta_py.delivery.old_mail import fail_old
from zonemta_py.delivery.worker import Worker
from zonemta_py.queue.queue import Queue
from zonemta_py.schedule.destination import Destination
from zonemta_py.schedule.rings import WorkerSlot
from zonemta_py.schedule.scheduler import Scheduler

SECOND_TRY_S = 30.0

log = logging.getLogger(__name__)


class FailingDestinations:
    """``ready`` is called with a destination that is to be tried."""

    def __init__(
        self, zone: str, queue: Queue, scheduler: Scheduler, ready: Callable[[str], None]
    ) -> None:
        self._zone = zone
        self._queue = queue
        self._scheduler = scheduler
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._lines = RepeatedLines(log)

    def describe(self, destination: str) -> str:
        """Why mail for ``destination`` is suspended; empty when it is not."""
        state = self._scheduler.state(destination)
        if state is None or not state.failing:
            return ""
        wait_s = max(0, round(state.down_until_s - clock.monotonic_s()))
        return f"next try in {wait_s} s: {state.reason}"

    async def suspend(self, slot: WorkerSlot, failure: Attempt, worker: Worker) -> None:
        """No session could be opened: suspend the destination of ``slot``, and free its part of the window.

        One that had little time for a session, because others waited, has a second try soon.
        """
        destination = slot.destination
        queue, scheduler, now_s = self._queue, self._scheduler, clock.monotonic_s()
        settings = scheduler.table.settings(destination.name)
        delay_s = worker.first_delay_s(destination.name)
        if slot.session_within_s and not destination.failing and not failure.code:
            delay_s = min(delay_s, SECOND_TRY_S)
        if not destination.failing:
            self._log(destination, f"is suspended: {reason_of(failure)}")
        scheduler.failed(destination, delay_s, now_s, reason_of(failure))
        queue.windows.suspend(self._zone, destination.name)
        self._loop.call_later(destination.down_until_s - now_s, self._try_when_due, destination)
        if await fail_old(queue, worker, (self._zone, destination.name), settings, failure):
            queue.windows.suspend(self._zone, destination.name)

    def _try_when_due(self, destination: Destination) -> None:
        """Schedule a suspended destination; later, if its suspension was extended or the timer was early."""
        wait_s = destination.down_until_s - clock.monotonic_s()
        if wait_s > 0:
            self._loop.call_later(wait_s + 0.001, self._try_when_due, destination)
        else:
            self._ready(destination.name)

    def resume(self, destination: Destination) -> None:
        """A session was opened: the destination is not suspended any more."""
        suspended_s = clock.monotonic_s() - destination.failing_since_s
        self._log(destination, f"answers again, after {suspended_s:.0f} s")
        destination.answered()
        self._queue.windows.zone(self._zone).resume(destination.name)
        self._ready(destination.name)

    def close(self) -> None:
        """Write the lines that were only counted."""
        self._lines.flush()

    def _log(self, destination: Destination, text: str) -> None:
        """A line about a suspension; of many destinations that fail together some are counted only."""
        line = f"{self._zone}/{destination.name} {text}"
        self._lines.write((destination.name, text[:10]), logging.WARNING, lambda: line)
