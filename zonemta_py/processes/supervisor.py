"""Child processes of one kind: how many there are, and a new one for each that ends or hangs."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.config.units import AUTO
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.processes.child import ChildProcess

BACK_OFF_S = 0.1
BACK_OFF_MAX_S = 30.0
STEADY_S = 60.0  # after this uptime the next start is not delayed
AUTO_MAX = 4  # processes of a kind: one queue does not occupy more

log = logging.getLogger(__name__)


def cores() -> int:
    """The number of processors this process may use."""
    return len(os.sched_getaffinity(0))


def process_counts(config: Config, cores_here: int, hooks: Hooks = NO_HOOKS) -> tuple[int, int]:
    """The numbers of receivers and senders; ``auto`` depends on the processors.

    On two or three cores one receiver runs beside the queue's process. From four on, each kind gets a
    quarter of them; the remaining ones are for the queue, LevelDB's thread and the system. No receivers
    where there are policies: their functions may keep a state. No other process where the configuration
    is not what its text says, which the others read; ConfigError if they were asked for by number.
    """
    receivers, senders = int(config.processes.receivers), int(config.processes.senders)
    quarter = min(cores_here // 4, AUTO_MAX)
    if receivers == AUTO:
        fewest = min((listener.max_sessions for listener in config.listeners), default=0)
        alone = cores_here == 1 or config.policies or hooks.policies
        receivers = 0 if alone else min(fewest, max(quarter, 1))
    if senders == AUTO:
        senders = quarter
    if (receivers or senders) and not _is_as_written(config):
        if max(config.processes.receivers, config.processes.senders) > 0:
            raise ConfigError(
                "processes: the receivers and senders read the text of the configuration, and this one was "
                "changed by the program: write its text again (zonemta_py.parse_config), or use 0 of both"
            )
        return 0, 0
    return receivers, senders


_parsed = lru_cache(maxsize=1)(parse_config)


def _is_as_written(config: Config) -> bool:
    """Whether ``config`` is what its text says, but for what only the queue's process uses."""
    written = replace(
        _parsed(config.text, Path(config.path), config.included),
        queue=config.queue,
        events=config.events,
        admin=config.admin,
        processes=config.processes,
    )
    return written == config


C = TypeVar("C", bound=ChildProcess)


class ProcessSupervisor(Generic[C]):
    """Keeps ``size`` processes running.

    ``children`` are the running ones; ``available`` is set while there is one. ``launch`` starts the
    process for a slot, or raises OSError; a child reports its end to ``on_lost``.
    """

    def __init__(self, kind: str, size: int, launch: Callable[[int], Awaitable[C]]) -> None:
        self.children: list[C] = []
        self.available = asyncio.Event()
        self._kind = kind
        self._launch = launch
        self._back_off_s = [BACK_OFF_S] * size
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._restarts: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start all of them. Raises LocalError when one cannot be started."""
        slots = range(len(self._back_off_s))
        for result in await asyncio.gather(*map(self._start_one, slots), return_exceptions=True):
            if isinstance(result, OSError):
                raise LocalError(f"a {self._kind} process cannot be started: {result}") from result
            if result is not None:
                raise result
        self._spawn(self._watch(), self._tasks)

    def missing(self) -> str:
        """Which processes do not run, for an operator; empty when all do."""
        there = {child.slot for child in self.children}
        gone = [f"{self._kind} {slot}" for slot in range(len(self._back_off_s)) if slot not in there]
        return " and ".join(gone)

    def stop_restarting(self) -> None:
        """Start no process any more; one that is being started is ended."""
        self._closing = True
        for task in self._restarts:
            task.cancel()

    async def close(self) -> None:
        """End all of them."""
        self.stop_restarting()
        for task in self._tasks:
            task.cancel()
        if self._tasks or self._restarts:
            await asyncio.wait(self._tasks | self._restarts)
        await asyncio.gather(*(child.close() for child in list(self.children)))

    def on_lost(self, child: C) -> None:
        """``child`` has ended: start another in its slot."""
        if child in self.children:
            self.children.remove(child)
            if not self.children:
                self.available.clear()
            self._replace(child)

    async def _start_one(self, slot: int) -> None:
        child = await self._launch(slot)
        if child.gone:  # it ended before it was in ``children``, so ``on_lost`` did nothing
            self._replace(child)
            return
        self.children.append(child)
        self.available.set()

    def _replace(self, child: C) -> None:
        if self._closing:
            return
        slot = child.slot
        wait_s = self._back_off_s[slot]
        steady = clock.monotonic_s() - child.started_s >= STEADY_S
        self._back_off_s[slot] = BACK_OFF_S if steady else min(2 * wait_s, BACK_OFF_MAX_S)
        log.error("%s %d (pid %d) ended; another starts in %.1f s", self._kind, slot, child.pid, wait_s)
        self._spawn(self._start_after(slot, wait_s), self._restarts)

    async def _start_after(self, slot: int, wait_s: float) -> None:
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self._start_one(slot)
            except Exception as exc:
                log.critical("%s %d cannot be started: %s", self._kind, slot, exc)
                wait_s = min(2 * wait_s, BACK_OFF_MAX_S)
            else:
                return

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(ChildProcess.beat_s)
            for child in self.children:
                child.check_alive()

    def _spawn(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
