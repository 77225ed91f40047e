"""The promise that something is on disk, or known: whoever waits is told by a plain call."""

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any

from zonemta_py.errors import QueueUnavailable

Then = Callable[[QueueUnavailable | None], None]

log = logging.getLogger(__name__)


class Promise:
    """Kept or broken, once, by ``end``.

    Awaiting it raises QueueUnavailable when it was broken; giving up on the wait changes nothing.
    """

    __slots__ = ("_then", "failure", "over")

    def __init__(self) -> None:
        self.over = False
        self.failure: QueueUnavailable | None = None
        self._then: list[Then] = []

    def then(self, call: Then) -> None:
        """Call ``call`` when it is kept, or with the failure; at once when that is so already.

        A plain call: a future and a turn of the loop for each of three batches a message cost a
        tenth of its delivery.
        """
        if self.over:
            call(self.failure)
        else:
            self._then.append(call)

    def end(self, failure: QueueUnavailable | None) -> None:
        """It is kept, or never will be; for the one who promised."""
        self.over, self.failure = True, failure
        calls, self._then = self._then, []
        for call in calls:
            try:
                call(failure)
            except Exception:  # a defect in one must not keep the others waiting
                log.exception("what follows a promise failed")

    def __await__(self) -> Generator[Any, None, None]:
        if not self.over:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._then.append(lambda _: None if done.done() else done.set_result(None))
            yield from done
        if self.failure is not None:
            raise self.failure
