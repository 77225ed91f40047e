"""``dequeue`` and ``adequeue`` call a routine once for every message of a zone."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from zonemta_py.core.errors import LocalError
from zonemta_py.dequeue.channel import Channel, HasChannels
from zonemta_py.dequeue.errors import BadArgument, WrongThread
from zonemta_py.dequeue.standalone import Queue
from zonemta_py.dequeue.workers import (
    AsyncRoutine,
    CoroutineExecutor,
    Done,
    Executor,
    Limits,
    Routine,
    ThreadExecutor,
    WorkerPool,
)
from zonemta_py.schedule.retry import Backoff, from_backoff

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
    """See ``dequeue``; ``routine`` is a coroutine function, and its *threads* are tasks of this loop."""
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
