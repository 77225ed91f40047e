"""Background tasks of a part of the program."""

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger(__name__)


class BackgroundTasks:
    """Tasks by name. An error that ends one is logged, and the others continue."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[object]] = []

    def start(self, work: Coroutine[object, object, object], name: str) -> None:
        """Run ``work`` until it ends or ``stop`` is called."""
        task: asyncio.Task[object] = asyncio.create_task(work, name=name)
        task.add_done_callback(_log_error)
        self.tasks.append(task)

    def running(self, prefix: str) -> int:
        """The number of tasks whose name begins with ``prefix`` and that have not ended."""
        return sum(task.get_name().startswith(prefix) and not task.done() for task in self.tasks)

    async def stop(self) -> None:
        """Cancel all tasks and wait for their end."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


def _log_error(task: "asyncio.Task[object]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("the queue's %s task stopped: %s", task.get_name(), task.exception())
