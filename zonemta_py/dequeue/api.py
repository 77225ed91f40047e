"""``dequeue`` and ``adequeue``: a routine is called once for every message of a zone."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from zonemta_py.core.errors import LocalError
from zonemta_py.dequeue.channel import Channel, HasChannels
from zonemta_py.dequeue.errors import BadArgument, WrongThread
from zonemta_py.dequeue.own_queue import Queue
from zonemta_py.dequeue.workers import (
    AsyncRoutine,
    CoroutineSeat,
    Done,
    Limits,
    Routine,
    Seat,
    ThreadSeat,
    WorkerPool,
)
from zonemta_py.schedule.retry import Backoff, from_backoff

DEFAULTS = Limits()


def dequeue(
    queue: HasChannels | Path | str,
    zone: str,
    routine: Routine,
    done: Done | None = None,
    max_threads: int = DEFAULTS.max_threads,
    max_messages_per_thread: int = DEFAULTS.max_messages_per_thread,
    *,
    max_attempts: int = DEFAULTS.max_attempts,
    retry_interval_s: float = DEFAULTS.retry_interval_s,
    wait_timeout_s: float = DEFAULTS.wait_timeout_s,
    backoff: Backoff | Sequence[float] | None = None,
) -> int:
    """Call ``routine`` in threads, once for every message of ``zone``; returns how many there were.

    ``queue``: a folder that no other process has open, or a ``Queue`` or ``Relay`` whose loop runs in
    another thread. ``done`` is called at the end of each thread with what its messages knew as
    ``thread``. It comes back when nothing has come for ``max_attempts`` times ``retry_interval_s``, or when
    a routine returned ABORT; then it waits ``wait_timeout_s`` for threads. ``backoff`` says when what is
    deferred is tried again, instead of the zone's ``retry``: delays (s), or a function of recipient and
    attempts. Raises NoSuchZone, BadArgument, WrongThread, QueueLocked, QueueUnavailable.
    """
    limits = Limits(max_threads, max_messages_per_thread, max_attempts, retry_interval_s, wait_timeout_s)
    if inspect.iscoroutinefunction(routine):
        raise BadArgument("the routine is a coroutine function: adequeue calls those")
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is not None and (isinstance(queue, (str, Path)) or here is queue.channels.loop):
        raise WrongThread(
            "dequeue blocks, and a loop runs in this thread: use adequeue, or asyncio.to_thread"
        )
    if isinstance(queue, (str, Path)):
        if not Path(queue).is_dir():
            raise LocalError(f"{queue}: there is no queue here")
        return asyncio.run(_own(Path(queue), zone, routine, done, limits, backoff))
    loop = queue.channels.loop
    work = asyncio.run_coroutine_threadsafe(
        _in_threads(queue, zone, routine, done, limits, backoff), loop
    )
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
    *,
    max_attempts: int = DEFAULTS.max_attempts,
    retry_interval_s: float = DEFAULTS.retry_interval_s,
    wait_timeout_s: float = DEFAULTS.wait_timeout_s,
    backoff: Backoff | Sequence[float] | None = None,
) -> int:
    """As ``dequeue``, for a coroutine function: ``max_threads`` are tasks of this loop."""
    limits = Limits(max_threads, max_messages_per_thread, max_attempts, retry_interval_s, wait_timeout_s)
    channel = _channel(queue, zone, backoff)
    return await _run(channel, limits, partial(CoroutineSeat, channel, routine, done), cancels=True)


async def _own(
    path: Path,
    zone: str,
    routine: Routine,
    done: Done | None,
    limits: Limits,
    backoff: Backoff | Sequence[float] | None,
) -> int:
    async with Queue(path) as queue:
        return await _in_threads(queue, zone, routine, done, limits, backoff)


async def _in_threads(
    queue: HasChannels,
    zone: str,
    routine: Routine,
    done: Done | None,
    limits: Limits,
    backoff: Backoff | Sequence[float] | None,
) -> int:
    channel = _channel(queue, zone, backoff)
    return await _run(channel, limits, partial(ThreadSeat, channel, routine, done), cancels=False)


async def _run(channel: Channel, limits: Limits, seat: Callable[[], Seat], *, cancels: bool) -> int:
    crew = WorkerPool(channel, limits, seat, cancels=cancels)
    await crew.run()
    return crew.messages


def _channel(queue: HasChannels, zone: str, backoff: Backoff | Sequence[float] | None) -> Channel:
    return Channel(queue.channels, zone, from_backoff(backoff) if backoff is not None else None)
