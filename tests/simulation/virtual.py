"""Virtual time: a loop whose clock jumps to the next timer when no socket is ready, and threads that run inline.

All that a relay in one process talks to runs on the same loop. What is written to a loopback socket can be read at once, so
that nothing is on its way when two looks find nothing ready, and time may jump. What is left to the machine: the numbers of
ports, and c-ares, which counts the time of its questions itself. The order of sets depends on PYTHONHASHSEED.

``install`` replaces clock, threads, random numbers and secrets of this process; modules take them by name when they are
imported, so that it must be called before. ``begin`` makes the loop of one simulation, with all of these from its seed.
"""

import asyncio
import random
import secrets
import selectors
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

from zonemta_py.core import clock, runtime

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

BEGIN_NS = 1_800_000_000 * 10**9
STEP_S = 1e-6  # the least jump: a timer is due when its time is over
WITHOUT_TIMER_S = 0.01  # nothing but a socket can wake the loop


class _Selector(selectors.DefaultSelector):
    """Waits in virtual time."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        for _ in range(2):
            ready = super().select(0)
            if ready or timeout == 0:
                return ready
        if timeout is None:
            return super().select(WITHOUT_TIMER_S)
        self.loop.now_s += max(timeout, STEP_S)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """``now_s``: since the begin of the simulation. What would run in a thread runs at once."""

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        selector.loop, self.now_s = self, 0.0

    def time(self) -> float:
        return self.now_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        """As the base class, but ``func`` is called before it returns."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as exc:
            done.set_exception(exc)
        return done


class _InlineThreads:
    """``core.runtime.Threads`` without threads: the work is done by ``put``, what follows in the next turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, count: int = 1) -> None:
        self._loop = loop

    def put(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as exc:
            failure = exc
        self._loop.call_soon(done, result, failure)

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Time:
    """The clock of the machine, for ``core.clock``."""

    @staticmethod
    def time_ns() -> int:
        return BEGIN_NS + int(_loop.now_s * 10**9)


_loop = VirtualLoop()
_seeds = random.Random(0)


def _monotonic_s() -> float:
    return _loop.now_s


class _SeededRandom(random.Random):
    """Without a seed it has the next one of the simulation."""

    def __init__(self, x: Any = None) -> None:
        super().__init__(_seeds.getrandbits(64) if x is None else x)


def _token_bytes(count: int | None = None) -> bytes:
    return _seeds.randbytes(count or 32)


def install() -> None:
    """Replace what a seed decides; before the modules that use it are imported."""
    replaced: Mapping[tuple[object, str], object] = {
        (clock, "monotonic_s"): _monotonic_s,
        (clock, "time"): _Time,
        (runtime, "Threads"): _InlineThreads,
        (random, "Random"): _SeededRandom,
        (secrets, "token_bytes"): _token_bytes,
        (secrets, "token_hex"): lambda count=None: _token_bytes(count).hex(),
    }
    for (module, name), value in replaced.items():
        setattr(module, name, value)


def begin(seed: int) -> VirtualLoop:
    """The loop of the simulation ``seed``, at its begin."""
    global _loop
    _seeds.seed(seed)
    _loop = VirtualLoop()
    asyncio.set_event_loop(_loop)
    return _loop
