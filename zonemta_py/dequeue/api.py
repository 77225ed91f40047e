"""``dequeue`` and ``adequeue`` call a routine once for every message of a zone.

Life of a call: registered in ``channels.wakeups`` ─▶ workers start while there is mail and room ─▶ ABORT, an error, or no mail for
``max_attempts`` times ``retry_interval_s`` ─▶ no worker starts; those that run have ``wait_timeout_s`` to end.

Life of a lease: untaken ─▶ skipped, or started and given to the ``Executor`` ─▶ settled by its message (``leave``).

Invariants:

- One call at a time dequeues a zone; another one raises BadArgument.
- Every lease is settled or released, also after a cancellation. Only if the queue has failed it stays as it is: the next start
  defers its recipients.
- An exception of the routine defers its message and is logged. One of the queue ends the call, which raises it.
- Leases and settlements are on the loop of the queue; only the routine and ``done`` of ``ThreadExecutor`` run in a thread, one per
  worker. A thread cannot be cancelled, so a cancelled ``dequeue`` waits for its threads; tasks of ``adequeue`` are cancelled with it.

Callers: programs. ``Channels.close`` calls ``WorkerPool.stop`` when the relay or the queue is closed.

Example::

    dequeue("var/queue", "fax", lambda message: message.finish(Disposition.DELIVERED))  # 3, the number of messages

Source: MTA SDK, mtaDequeueStart.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypedDict, Unpack

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.core.runtime import Threads
from zonemta_py.dequeue.channel import Channel, HasChannels
from zonemta_py.dequeue.envelope import ABORT, BadArgument, WrongThread
from zonemta_py.dequeue.message import AsyncMessage, Message
from zonemta_py.dequeue.standalone import Queue
from zonemta_py.queue.messages import Lease
from zonemta_py.schedule.retry import Backoff, from_backoff

log = logging.getLogger(__name__)


# ---- The workers of one dequeue call, and where each runs its routine: in a thread, or on the event loop.

Routine = Callable[[Message], object]
AsyncRoutine = Callable[[AsyncMessage], Awaitable[object]]
Done = Callable[[SimpleNamespace], object]


class Executor(Protocol):
    """Runs the routine of one worker."""

    async def process(self, lease: Lease) -> object:
        """Run the routine; returns its result. A message that it does not finish is deferred."""

    async def close(self) -> None:
        """Call ``done``, at the end of the worker."""


class ThreadExecutor:
    """Runs a routine in a thread of its own. Is the ``Bridge`` of the routine's messages."""

    def __init__(self, channel: Channel, routine: Routine, done: Done | None) -> None:
        self._channel = channel
        self._routine = routine
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(self._loop, f"dequeue-{channel.name}")
        self._state = SimpleNamespace()
        self._busy = False

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of ``work``, run on the loop; blocks the routine's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, work: Callable[[], Any]) -> Any:
        """Return the result of ``work``, called on the loop; blocks the routine's thread."""

        async def on_loop() -> Any:
            return work()

        return self.wait(on_loop())

    async def _in_thread(self, work: Callable[[], object]) -> object:
        result: asyncio.Future[object] = self._loop.create_future()

        def finished(value: object, failure: Exception | None) -> None:
            self._busy = False
            if result.done():
                return
            if failure is not None:
                result.set_exception(failure)
            else:
                result.set_result(value)

        self._busy = True
        self._threads.put(work, finished)
        return await result

    def _run_routine(self, message: Message) -> object:
        message.own()
        return self._routine(message)

    async def process(self, lease: Lease) -> object:
        """Run the routine in the thread; a message that it does not finish is deferred."""
        message = Message(self._channel, lease, self._state, self)
        try:
            return await self._in_thread(partial(self._run_routine, message))
        finally:
            await message.leave()

    async def close(self) -> None:
        """Call ``done`` in the thread, unless a routine hangs there, and end the thread."""
        try:
            if self._done is not None and not self._busy:  # it would wait for a routine that hangs
                await self._in_thread(partial(self._done, self._state))
        finally:
            self._threads.end()


class CoroutineExecutor:
    """Runs a coroutine function on the event loop."""

    def __init__(self, channel: Channel, routine: AsyncRoutine, done: Done | None) -> None:
        self._channel = channel
        self._routine = routine
        self._done = done
        self._state = SimpleNamespace()

    async def process(self, lease: Lease) -> object:
        """Run the routine as a coroutine. Raises BadArgument for a plain function, QueueCorrupt for a body that cannot be read."""
        message: AsyncMessage | None = None
        try:
            async with self._channel.queue.bodies.spooled(lease.active) as body:
                message = AsyncMessage(self._channel, lease, self._state, body)
                try:
                    result = self._routine(message)
                    if not inspect.isawaitable(result):
                        raise BadArgument("the routine is not a coroutine function; use dequeue")
                    return await result
                finally:
                    await message.leave()
        finally:
            if message is None:  # its body could not be read
                self._channel.defer_all(lease)

    async def close(self) -> None:
        """Call ``done`` on the loop."""
        if self._done is not None:
            self._done(self._state)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many workers run, and when a call ends. The defaults are those of the MTA SDK.

    Raises BadArgument for a value that is not positive.
    """

    max_threads: int = 20
    max_messages_per_thread: int = 20
    max_attempts: int = 5
    retry_interval_s: float = 10.0
    wait_timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise BadArgument(f"{name} must be greater than 0")


class WorkerPool:
    """The workers of one call. ``cancels``: workers are cancelled with the call, as coroutines can be."""

    def __init__(
        self, channel: Channel, limits: Limits, executor: Callable[[], Executor], *, cancels: bool
    ) -> None:
        self._channel = channel
        self._cancels = cancels
        self._limits = limits
        self._executor = executor
        self._wakeup = asyncio.Event()
        self._workers: set[asyncio.Task[None]] = set()
        self._untaken: dict[asyncio.Task[None], Lease] = {}  # leased, the routine not yet called
        self._stopping = False
        self._failure: BaseException | None = None
        self.messages = 0

    async def run(self) -> None:
        """Run until no mail has come for a while, a routine has returned ABORT, or the queue has failed.

        Raises BadArgument when another call dequeues the zone; QueueUnavailable when the queue failed.
        """
        channels, name = self._channel.channels, self._channel.name
        if name in channels.wakeups:
            raise BadArgument(f"zone '{name}' is being dequeued by another call")
        channels.wakeups[name] = self._wakeup.set
        channels.pools.add(self)
        try:
            await self._start_workers()
        except asyncio.CancelledError:
            if self._cancels:
                for worker in self._workers:
                    worker.cancel()
            raise
        finally:
            self._stopping = True
            del channels.wakeups[name]
            await self._wait_for_workers(self._limits.wait_timeout_s)
            channels.pools.discard(self)
        if self._failure is not None:
            raise self._failure

    async def _start_workers(self) -> None:
        attempts = self._limits.max_attempts
        while not self._stopping:
            self._wakeup.clear()
            room = len(self._workers) < self._limits.max_threads
            lease = self._lease() if room else None
            if lease is not None:
                attempts = self._limits.max_attempts
                self._start_worker(lease)
                await asyncio.sleep(0)
                continue
            if room and not attempts:
                return
            woken = await clock.wait_event(self._wakeup, self._limits.retry_interval_s)
            if room and not woken:
                attempts -= 1

    def _lease(self) -> Lease | None:
        while True:
            try:
                return self._channel.lease()
            except QueueCorrupt as exc:
                log.critical("%s; its recipients stay in the queue", exc)

    def _start_worker(self, lease: Lease) -> None:
        worker = asyncio.create_task(self._work(), name=f"dequeue-{self._channel.name}")
        self._untaken[worker] = lease
        self._workers.add(worker)
        worker.add_done_callback(self._ended)

    def _ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._wakeup.set()
        lease = self._untaken.pop(worker, None)
        if lease is not None and self._channel.queue.failure is None:
            self._channel.queue.release(lease)  # cancelled before the routine was called
        if not worker.cancelled() and worker.exception() is not None:
            self._failure = worker.exception()
            self._stopping = True

    async def _work(self) -> None:
        """Process messages, one after another, until there is none or the limit is reached."""
        task = asyncio.current_task()
        assert task is not None
        executor, count = self._executor(), 0
        try:
            while True:
                count += 1
                if await self._process(executor, task) is ABORT:
                    self._stopping = True
                    return
                following = None
                if not self._stopping and count < self._limits.max_messages_per_thread:
                    following = self._lease()
                if following is None:
                    return
                self._untaken[task] = following
        finally:
            try:
                await executor.close()
            except Exception:
                log.exception("the function `done` failed")

    async def _process(self, executor: Executor, task: "asyncio.Task[None]") -> object:
        """Run the routine for the message of ``task``. An exception of the routine defers only its message."""
        queue, lease = self._channel.queue, self._untaken[task]
        skipped = self._channel.skip(lease)
        if skipped is not None:
            del self._untaken[task]  # it is settled, even when this task is cancelled
            await asyncio.shield(skipped)
            return None
        await queue.start(lease)
        self.messages += 1
        del self._untaken[task]  # from here on the executor settles the lease
        try:
            return await executor.process(lease)
        except Exception as exc:
            if queue.failure is not None:
                raise
            log.error("%s: the routine raised %r", lease.active.id, exc, exc_info=exc)
            return None

    async def stop(self, grace_s: float) -> None:
        """Start no further routine; wait up to ``grace_s``, at most ``wait_timeout_s``, for those that run."""
        self._stopping = True
        self._wakeup.set()
        await self._wait_for_workers(min(grace_s, self._limits.wait_timeout_s))

    async def _wait_for_workers(self, timeout_s: float) -> None:
        if not self._workers:
            return
        _, late = await asyncio.wait(set(self._workers), timeout=timeout_s)
        if late:
            log.error(
                "%d routines have not ended; the next start of the queue defers their messages",
                len(late),
            )


# ---- api

DEFAULTS = Limits()


class DequeueOptions(TypedDict, total=False):
    """Keyword arguments of ``dequeue`` and ``adequeue``."""

    max_attempts: int
    retry_interval_s: float
    wait_timeout_s: float
    backoff: Backoff | Sequence[float] | None


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of ``dequeue`` except the queue."""

    zone: str
    routine: Routine
    done: Done | None
    limits: Limits
    backoff: Backoff | Sequence[float] | None


def _limits(threads: int, messages_per_thread: int, backoff: object = None, **others: Any) -> Limits:
    return Limits(threads, messages_per_thread, **others)


def dequeue(
    queue: HasChannels | Path | str,
    zone: str,
    routine: Routine,
    done: Done | None = None,
    max_threads: int = DEFAULTS.max_threads,
    max_messages_per_thread: int = DEFAULTS.max_messages_per_thread,
    **options: Unpack[DequeueOptions],
) -> int:
    """Call ``routine`` in threads, once for every message of ``zone``; returns the number of messages.

    ``queue``: a directory that no other process has open, or a ``Queue`` or ``Relay`` whose loop runs in
    another thread. ``done`` is called at the end of each thread, with the ``thread`` of its messages.
    The call returns when no mail has come for ``max_attempts`` times ``retry_interval_s`` (5 times 10 s),
    or when a routine has returned ABORT; it then waits up to ``wait_timeout_s`` (1800 s) for its threads.
    ``backoff`` replaces the zone's ``retry``: delays in seconds, or a function of recipient and attempts.
    Raises NoSuchZone, BadArgument, WrongThread, QueueLocked, QueueUnavailable; LocalError when the
    directory does not exist.
    """
    limits = _limits(max_threads, max_messages_per_thread, **options)
    call = _Call(zone, routine, done, limits, options.get("backoff"))
    if inspect.iscoroutinefunction(routine):
        raise BadArgument("the routine is a coroutine function; use adequeue")
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is not None and (isinstance(queue, (str, Path)) or here is queue.channels.loop):
        raise WrongThread(
            "dequeue blocks, and an event loop runs in this thread; use adequeue or asyncio.to_thread"
        )
    if isinstance(queue, (str, Path)):
        if not Path(queue).is_dir():
            raise LocalError(f"{queue}: the directory does not exist")
        return asyncio.run(_in_own_queue(Path(queue), call))
    work = asyncio.run_coroutine_threadsafe(_in_threads(queue, call), queue.channels.loop)
    try:
        return work.result()
    except BaseException:
        work.cancel()
        raise


async def adequeue(
    queue: HasChannels,
    zone: str,
    routine: AsyncRoutine,
    done: Done | None = None,
    max_threads: int = DEFAULTS.max_threads,
    max_messages_per_thread: int = DEFAULTS.max_messages_per_thread,
    **options: Unpack[DequeueOptions],
) -> int:
    """Await ``routine``, a coroutine function, once for every message of ``zone``; returns the number of messages.

    Arguments and errors are those of ``dequeue``; its *threads* are tasks of this loop, and ``queue`` is open on it.
    """
    limits = _limits(max_threads, max_messages_per_thread, **options)
    channel = _channel(queue, zone, options.get("backoff"))
    return await _run(channel, limits, partial(CoroutineExecutor, channel, routine, done), cancels=True)


async def _in_own_queue(path: Path, call: _Call) -> int:
    async with Queue(path) as queue:
        return await _in_threads(queue, call)


async def _in_threads(queue: HasChannels, call: _Call) -> int:
    channel = _channel(queue, call.zone, call.backoff)
    executor = partial(ThreadExecutor, channel, call.routine, call.done)
    return await _run(channel, call.limits, executor, cancels=False)


def _channel(queue: HasChannels, zone: str, backoff: Backoff | Sequence[float] | None) -> Channel:
    return Channel(queue.channels, zone, from_backoff(backoff) if backoff is not None else None)


async def _run(
    channel: Channel, limits: Limits, executor: Callable[[], Executor], *, cancels: bool
) -> int:
    pool = WorkerPool(channel, limits, executor, cancels=cancels)
    await pool.run()
    return pool.messages
