"""Virtual time: a loop whose clock jumps to the next timer when no socket is ready, and threads that run inline.

All that a relay in one process talks to runs on the same loop, over connections in memory (``tests.simulation.network``). What is
written to a real loopback socket, such as the control socket, can be read at once, so that nothing is on its way when two looks
find nothing ready, and time may jump. The order of sets depends on PYTHONHASHSEED.

``install`` replaces clock, threads, random numbers and secrets of this process; modules take them by name when they are
imported, so that it must be called before. ``begin`` makes the loop of one simulation, with all of these from its seed.
"""

import asyncio
import random
import secrets
import selectors
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack
from weakref import WeakKeyDictionary, WeakSet

from zonemta_py.core import clock, runtime

if TYPE_CHECKING:
    from tests.simulation.network import Conditions, Network

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

OWNER: ContextVar[object] = ContextVar(
    "OWNER", default=None
)  # the process that is a task, None: that of the queue
BEGIN_NS = 1_800_000_000 * 10**9
STEP_S = 1e-6  # the least jump: a timer is due when its time is over
TURNS_MAX = 2_000_000  # of one simulation; one that does much has 300,000
WORK_S = (0.0, 0.0, 0.001, 0.02)  # of a thread
TICK_S = 60.0  # between two looks at how late the loop is: never
WITHOUT_TIMER_S = 0.01  # nothing but a socket can wake the loop


class NoRest(Exception):
    """A simulation has no end, or wakes up too often."""


class _Selector(selectors.DefaultSelector):
    """Waits in virtual time."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.loop.turns += 1
        if self.loop.turns > TURNS_MAX:
            raise NoRest(f"{TURNS_MAX} turns of the loop, at {self.loop.now_s:.3f} s")
        for _ in range(2):
            ready = super().select(0)
            if ready or timeout == 0:
                return ready
        if timeout is None:
            return super().select(WITHOUT_TIMER_S)
        self.loop.now_s += max(timeout, STEP_S)
        return []


class _NumberedTask(asyncio.Task[Any]):
    """Its place in a set of tasks depends on when it was made, not on where in memory it is. ``owner``: the process, if it is a task."""

    owner: object = None

    def __init__(self, *args: Any, number: int, **others: Any) -> None:
        self._number = number
        super().__init__(*args, **others)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    """``now_s``: since the begin of the simulation. ``wrong_s``: of the clock of the machine. What would run in a thread is done at once."""

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        selector.loop, self.now_s, self.wrong_s = self, 0.0, 0.0
        self.turns = 0
        self._task_numbers = count()
        self.set_task_factory(self._task)
        self.network: Network
        self.processes: list[Any] = []  # of this relay, that are tasks
        self.pids = count()
        self._tasks = WeakSet[_NumberedTask]()  # of all processes
        self._reached: WeakKeyDictionary[socket.socket, tuple[tuple[str, int], Conditions]] = (
            WeakKeyDictionary()
        )

    def time(self) -> float:
        return self.now_s

    def _task(self, _: asyncio.AbstractEventLoop, coro: Any, **others: Any) -> _NumberedTask:
        owner = (others.get("context") or copy_context()).get(OWNER)
        task = _NumberedTask(coro, loop=self, number=next(self._task_numbers), **others)
        task.owner = owner
        if owner is not None:
            self._tasks.add(task)
        return task

    def tasks_of(self, process: object) -> list[_NumberedTask]:
        """The tasks of a process, in the order in which they were made."""
        return sorted((each for each in self._tasks if each.owner is process), key=hash)

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

    # ---- internet addresses are those of the network in memory

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        if sock.family == socket.AF_UNIX:
            return await super().sock_connect(sock, address)
        self._reached[sock] = address, await self.network.reach(address)

    async def create_connection(  # type: ignore[override]  # that of the base class has overloads
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        sock: socket.socket | None = None,
        local_addr: tuple[str, int] | None = None,
        **others: Any,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """As the base class, for a socket that ``sock_connect`` has connected, or a host's IP address; without TLS."""
        assert not others.get("ssl"), "TLS from the beginning is not simulated"
        source = local_addr[0] if local_addr else "127.0.0.1"
        if sock is not None:
            address, conditions = self._reached.pop(sock)
            source = sock.getsockname()[0].replace("0.0.0.0", source)
            sock.close()
        else:
            assert host is not None and port is not None
            address = (host, port)
            conditions = await self.network.reach(address)
        protocol = protocol_factory()
        return self.network.connect(protocol, source, address, conditions), protocol

    async def create_server(  # type: ignore[override]  # that of the base class has overloads
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int = 0,
        *,
        sock: socket.socket | None = None,
        **_: Any,
    ) -> Any:
        if sock is not None:
            host, port = sock.getsockname()[:2]
        assert host is not None
        return self.network.listen(protocol_factory, [host] if isinstance(host, str) else host, port)


class _InlineThreads:
    """``core.runtime.Threads`` without threads: the work is done by ``put``, what follows some time later, by the seed.

    One thread ends its work in its order, several in any.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, count: int = 1) -> None:
        self._loop = loop
        self._is_one = count == 1
        self._ends_s = 0.0  # the work that was put last
        self._r = random.Random()

    def put(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as exc:
            failure = exc
        at_s = self._loop.time() + self._r.choice(WORK_S)
        if self._is_one:
            at_s = self._ends_s = max(self._ends_s, at_s)
        self._loop.call_at(at_s, done, result, failure)

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Time:
    """The clock of the machine, for ``core.clock``."""

    @staticmethod
    def time_ns() -> int:
        return BEGIN_NS + int((_loop.now_s + _loop.wrong_s) * 10**9)


_loop = VirtualLoop()
_Random = random.Random
_seed = 0
_tokens = _Random(0)
_made = Counter[tuple[str, str]]()  # generators, by the function that makes them


def _monotonic_s() -> float:
    return _loop.now_s


class _SeededRandom(_Random):
    """Without a seed it has one of the simulation, of the function that makes it, and of how many it has made.

    So what others draw, or a module that is imported late, changes nothing.
    """

    def __init__(self, x: Any = None) -> None:
        if x is None:
            maker = sys._getframe(1)
            function = maker.f_globals["__name__"], maker.f_code.co_qualname
            _made[function] += 1
            x = f"{_seed} {function} {_made[function]}"
        super().__init__(x)


def _token_bytes(count: int | None = None) -> bytes:
    return _tokens.randbytes(count or 32)


def install() -> None:
    """Replace what a seed decides; before the modules that use it are imported."""
    early = [
        name
        for name, module in sys.modules.items()
        if name.startswith("zonemta_py.") and module is not clock
        if vars(module).get("monotonic_s") is clock.monotonic_s
    ]
    assert not early, f"imported too early: {early}"
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
    from tests.simulation.network import MemoryNames, Network  # these need what is replaced
    from zonemta_py.admin import metrics
    from zonemta_py.delivery import dns

    global _loop, _seed
    _seed = seed
    _tokens.seed(seed)
    _made.clear()
    _loop = VirtualLoop()
    _loop.network = Network(_loop)
    metrics.TICK_S = TICK_S
    dns.DnsChannel = MemoryNames  # type: ignore[assignment]  # it has its methods
    asyncio.set_event_loop(_loop)
    return _loop
