"""Where a routine runs: in a thread of its worker's own, or as a coroutine on the loop."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

from zonemta_py.dequeue.channel import Channel
from zonemta_py.dequeue.errors import BadArgument
from zonemta_py.dequeue.message import AsyncMessage, Message
from zonemta_py.queue.lease import Lease
from zonemta_py.threads import Threads

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
