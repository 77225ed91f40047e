"""So many places with a process each: one that ends or hangs is replaced, after a growing pause."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.processes.child import Child

BACK_OFF_S = 0.1
BACK_OFF_MAX_S = 30.0
STEADY_S = 60.0  # a process that lived so long starts again at once

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Child)


class ProcessSupervisor(Generic[C]):
    """``children`` are those that live. ``launch`` starts the one for a place, or raises OSError."""

    def __init__(self, kind: str, size: int, launch: Callable[[int], Awaitable[C]]) -> None:
        self.children: list[C] = []
        self.came = asyncio.Event()  # somebody, where there was nobody
        self._kind = kind
        self.launch = launch
        self._back_off_s = [BACK_OFF_S] * size
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start them all. Raises LocalError when one cannot be started."""
        places = range(len(self._back_off_s))
        for result in await asyncio.gather(*map(self._launch, places), return_exceptions=True):
            if isinstance(result, OSError):
                raise LocalError(f"a {self._kind}'s process cannot be started: {result}") from result
            if result is not None:
                raise result
        self._keep(self._watch())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(Child.beat_s)
            for child in self.children:
                child.look()

    async def _launch(self, place: int) -> None:
        child = await self.launch(place)
        if child.gone:  # already: `lost` could not take it out yet
            self._again(child)
            return
        self.children.append(child)
        self.came.set()

    def lost(self, child: C) -> None:
        """A process is gone; another takes its place."""
        if child in self.children:
            self.children.remove(child)
            if not self.children:
                self.came.clear()
            self._again(child)

    def _again(self, child: C) -> None:
        if self._closing:
            return
        place = child.place
        wait_s = self._back_off_s[place]
        steady = clock.monotonic_s() - child.since_s >= STEADY_S
        self._back_off_s[place] = BACK_OFF_S if steady else min(2 * wait_s, BACK_OFF_MAX_S)
        log.error("%s %d (pid %d) ended; another starts in %.1f s", self._kind, place, child.pid, wait_s)
        self._keep(self._relaunch(place, wait_s))

    async def _relaunch(self, place: int, wait_s: float) -> None:
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self._launch(place)
            except OSError as exc:
                log.critical("%s %d cannot be started: %s", self._kind, place, exc)
                wait_s = min(2 * wait_s, BACK_OFF_MAX_S)
            else:
                return

    def stop(self) -> None:
        """Nobody is started again from here on."""
        self._closing = True

    async def close(self) -> None:
        """End them all."""
        self.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(child.close() for child in list(self.children)))
