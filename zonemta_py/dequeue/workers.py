"""Where a routine runs: in a thread of its worker's own, or as a coroutine on the loop.

The workers of one call: they begin while there is mail and room, and end when there is none.

Source: MTA SDK, mtaDequeueStart.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

from zonemta_py.core import clock
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.threads import Threads
from zonemta_py.dequeue.channel import Channel
from zonemta_py.dequeue.disposition import ABORT
from zonemta_py.dequeue.errors import BadArgument
from zonemta_py.dequeue.message import AsyncMessage, Message
from zonemta_py.queue.active import Lease

Routine = Callable[[Message], object]
AsyncRoutine = Callable[[AsyncMessage], Awaitable[object]]
Done = Callable[[SimpleNamespace], object]


class Seat(Protocol):
    """Where a worker's routine runs."""

    async def process(self, lease: Lease) -> object:
        """What the routine returned; what it did not finish is deferred."""

    async def close(self) -> None:
        """The worker ends: ``done`` is called."""


class ThreadSeat:
    """A thread of its own."""

    def __init__(self, channel: Channel, routine: Routine, done: Done | None) -> None:
        self._channel = channel
        self._routine = routine
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(self._loop, f"dequeue-{channel.name}")
        self._state = SimpleNamespace()
        self._busy = False

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """As ``Bridge``."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, work: Callable[[], Any]) -> Any:
        """As ``Bridge``."""

        async def on_loop() -> Any:
            return work()

        return self.wait(on_loop())

    async def _in_thread(self, work: Callable[[], object]) -> object:
        over: asyncio.Future[object] = self._loop.create_future()

        def told(result: object, failure: Exception | None) -> None:
            self._busy = False
            if over.done():
                return
            if failure is not None:
                over.set_exception(failure)
            else:
                over.set_result(result)

        self._busy = True
        self._threads.put(work, told)
        return await over

    def _routine_of(self, message: Message) -> object:
        message.own()
        return self._routine(message)

    async def process(self, lease: Lease) -> object:
        """As ``Seat``."""
        message = Message(self._channel, lease, self._state, self)
        try:
            return await self._in_thread(partial(self._routine_of, message))
        finally:
            await message.leave()

    async def close(self) -> None:
        """As ``Seat``."""
        try:
            if self._done is not None and not self._busy:  # it would wait behind a routine that hangs
                await self._in_thread(partial(self._done, self._state))
        finally:
            self._threads.end()


class CoroutineSeat:
    """A task of the loop."""

    def __init__(self, channel: Channel, routine: AsyncRoutine, done: Done | None) -> None:
        self._channel = channel
        self._routine = routine
        self._done = done
        self._state = SimpleNamespace()

    async def process(self, lease: Lease) -> object:
        """As ``Seat``."""
        message = AsyncMessage(self._channel, lease, self._state, None)
        try:
            made = self._routine(message)
            if not inspect.isawaitable(made):
                raise BadArgument("the routine is no coroutine function: dequeue calls those")
            return await made
        finally:
            await message.leave()

    async def close(self) -> None:
        """As ``Seat``."""
        if self._done is not None:
            self._done(self._state)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many at once, and when to stop. The defaults are the SDK's."""

    max_threads: int = 20
    max_messages_per_thread: int = 20
    max_attempts: int = 5
    retry_interval_s: float = 10.0
    wait_timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise BadArgument(f"{name} must be more than nothing")


class WorkerPool:
    """The workers of one call."""

    def __init__(
        self, channel: Channel, limits: Limits, seat: Callable[[], Seat], *, cancels: bool
    ) -> None:
        self._channel = channel
        self._cancels = cancels  # a coroutine can be stopped, a thread cannot
        self._limits = limits
        self._seat = seat
        self._bell = asyncio.Event()
        self._workers: set[asyncio.Task[None]] = set()
        self._untaken: dict[asyncio.Task[None], Lease] = {}  # by workers whose routine has not begun
        self._stopping = False
        self._failure: BaseException | None = None
        self.messages = 0

    async def run(self) -> None:
        """Until nothing has come for a while, a routine has said ABORT, or the queue has failed."""
        bells = self._channel.channels.bells
        if self._channel.name in bells:
            raise BadArgument(f"zone '{self._channel.name}' is being dequeued by another call")
        bells[self._channel.name] = self._bell.set
        self._channel.channels.crews.add(self)
        try:
            await self._hand_out()
        except asyncio.CancelledError:
            if self._cancels:
                for worker in self._workers:
                    worker.cancel()
            raise
        finally:
            self._stopping = True
            del bells[self._channel.name]
            await self._wait_for_workers(self._limits.wait_timeout_s)
            self._channel.channels.crews.discard(self)
        if self._failure is not None:
            raise self._failure

    async def _hand_out(self) -> None:
        attempts = self._limits.max_attempts
        while not self._stopping:
            self._bell.clear()
            room = len(self._workers) < self._limits.max_threads
            lease = self._lease() if room else None
            if lease is not None:
                attempts = self._limits.max_attempts
                self._begin(lease)
                await asyncio.sleep(0)
                continue
            if room and not attempts:
                return
            rung = await clock.wait_event(self._bell, self._limits.retry_interval_s)
            if room and not rung:
                attempts -= 1

    def _lease(self) -> Lease | None:
        while True:
            try:
                return self._channel.lease()
            except QueueCorrupt as exc:
                log.critical("%s; its recipients stay where they are", exc)

    def _begin(self, lease: Lease) -> None:
        worker = asyncio.create_task(self._work(), name=f"dequeue-{self._channel.name}")
        self._untaken[worker] = lease
        self._workers.add(worker)
        worker.add_done_callback(self._ended)

    def _ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._bell.set()
        lease = self._untaken.pop(worker, None)
        if lease is not None and self._channel.queue.failure is None:
            self._channel.queue.release(lease)  # cancelled before anybody was called with it
        if not worker.cancelled() and worker.exception() is not None:
            self._failure = worker.exception()
            self._stopping = True

    async def _work(self) -> None:
        """One thread's life."""
        me = asyncio.current_task()
        assert me is not None
        seat, count = self._seat(), 0
        try:
            while True:
                count += 1
                if await self._process(seat, me) is ABORT:
                    self._stopping = True
                    return
                following = None
                if not self._stopping and count < self._limits.max_messages_per_thread:
                    following = self._lease()
                if following is None:
                    return
                self._untaken[me] = following
        finally:
            try:
                await seat.close()
            except Exception:
                log.exception("what follows the messages of a thread failed")

    async def _process(self, seat: Seat, me: "asyncio.Task[None]") -> object:
        """A routine that raises costs its message an attempt, and nobody else anything."""
        queue, lease = self._channel.queue, self._untaken[me]
        await queue.start(lease)
        self.messages += 1
        del self._untaken[me]  # from here on the message sees to its end
        try:
            return await seat.process(lease)
        except Exception as exc:
            if queue.failure is not None:
                raise
            log.error("%s: the routine raised %r", lease.active.id, exc, exc_info=exc)
            return None

    async def stop(self, grace_s: float) -> None:
        """As ``Stoppable``."""
        self._stopping = True
        self._bell.set()
        await self._wait_for_workers(min(grace_s, self._limits.wait_timeout_s))

    async def _wait_for_workers(self, timeout_s: float) -> None:
        if not self._workers:
            return
        _, late = await asyncio.wait(set(self._workers), timeout=timeout_s)
        if late:
            log.error(
                "%d routines have not ended; their messages are deferred by the next start", len(late)
            )
