"""The work that goes on beside a queue's verbs: timers, removal, sweeps, the start-up scan."""

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger(__name__)


class Background:
    """Tasks by name. One that stops by itself with an error is told of, and the others go on."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[object]] = []

    def start(self, work: Coroutine[object, object, object], name: str) -> None:
        """Let ``work`` run until it ends or ``stop``."""
        task: asyncio.Task[object] = asyncio.create_task(work, name=name)
        task.add_done_callback(_ended)
        self.tasks.append(task)

    def running(self, prefix: str) -> int:
        """How many with such a name have not ended."""
        return sum(task.get_name().startswith(prefix) and not task.done() for task in self.tasks)

    async def stop(self) -> None:
        """Cancel them all, and wait."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


def _ended(task: "asyncio.Task[object]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("the queue's %s stopped: %s", task.get_name(), task.exception())
