"""What an agent asks of the queue's process while it executes a request, and the zone's rate over a restart."""

import asyncio
from collections.abc import AsyncIterator, Awaitable

from zonemta_py.core import clock
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.delivery.message_egress import MessageEgress
from zonemta_py.queue.active import Lease
from zonemta_py.queue.batch import CommitFuture, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.schedule.rings import WorkerSlot
from zonemta_py.schedule.scheduler import Scheduler


def next_token_in_s(queue: Queue, zone: str) -> float:
    """Seconds until the next token of ``zone`` is due, by what an earlier run stored; 0 when nothing was."""
    due_ms = queue.store.get(keys.rate_key(zone))
    return max(0, int(due_ms) - clock.now_ms()) / 1000 if due_ms is not None else 0.0


class LeaseContext:
    """The ``RequestContext`` of a lease in this process. ``slot``: its worker, in ``scheduler``."""

    __slots__ = (
        "_active",
        "_egress",
        "_lease",
        "_queue",
        "_scheduler",
        "_slot",
        "has_session",
        "started",
    )

    def __init__(
        self, egress: MessageEgress, lease: Lease, scheduler: Scheduler, slot: WorkerSlot
    ) -> None:
        self._queue = egress.queue
        self._egress = egress
        self._lease = lease
        self._active = lease.active
        self._scheduler = scheduler
        self._slot = slot
        self.started: Awaitable[None] = CommitFuture()
        self.has_session = False

    def body(self) -> bytes | AsyncIterator[bytes]:
        """The body, whole when it is small. Raises QueueCorrupt."""
        small = self._queue.bodies.small(self._active)
        return small if small is not None else self._queue.bodies.stream(self._active)

    def session_opened(self, opened: int) -> None:
        """Count the session with the destination, and record the start of the transaction.

        The message waits for its token with the final dot.
        """
        self.has_session = True
        self._egress.begin(self._slot, opened)
        now_s, scheduler = clock.monotonic_s(), self._scheduler
        wait_s = scheduler.session_opened(self._slot, now_s)
        if scheduler.bucket is not None and scheduler.bucket.is_long:
            self._write_due(scheduler.bucket.due_s - now_s)
        started = self._queue.start(self._lease)
        self.started = _later(started, wait_s) if wait_s else started

    def _write_due(self, wait_s: float) -> None:
        """Store when the zone's next token is due, in the group of the transaction's start."""
        batch = WriteBatch()
        due_ms = clock.now_ms() + round(wait_s * 1000)
        batch.put(keys.rate_key(self._lease.zone), str(due_ms).encode())
        self._queue.commits.submit(batch)

    def close(self) -> None:
        """The request has ended, and with it the use of the session."""
        if self.has_session:
            self._scheduler.session_ended(self._slot)


def _later(started: CommitFuture, wait_s: float) -> CommitFuture:
    """Done ``wait_s`` from now if ``started`` is; a failure is passed on at once."""
    later = CommitFuture()
    loop = asyncio.get_running_loop()
    due_s = loop.time() + wait_s

    def written(failure: QueueUnavailable | None) -> None:
        if failure is not None:
            later.set_exception(failure)
        else:
            loop.call_at(due_s, later.set_result)

    started.add_done_callback(written)
    return later
