"""A program that dequeues the mail of a zone, in the process of each relay, and what it has taken.

It takes nothing more when its relay is dead: what it does after that does not count, as nothing of the relay does.
"""

import asyncio
from collections.abc import Callable
from random import Random

from tests.simulation.scenario import ARCHIVE
from zonemta_py import Relay
from zonemta_py.core.errors import LocalError
from zonemta_py.dequeue import AsyncMessage, Disposition, adequeue

TAKES_S = (0.0, 0.0, 1.0, 90.0)  # for a message
AGAIN_S = 5.0
VERDICTS = (
    (Disposition.DELIVERED, ""),
    (Disposition.DELIVERED, ""),
    (Disposition.DEFERRED, "451 4.3.0 not now"),
    (Disposition.FAILED, "550 5.1.1 no such user"),
)


class Program:
    """``taken``: recipients with the message that they have. ``unsure``: those of messages that could not be finished."""

    def __init__(self, r: Random) -> None:
        self._r = r
        self._lives = 0
        self._tasks = set[asyncio.Task[None]]()
        self.taken: list[tuple[str, bytes]] = []
        self.unsure = set[str]()

    def begin(self, relay: Relay, is_present: Callable[[], bool]) -> None:
        """Dequeue from ``relay``, as long as ``is_present()``."""
        self.end()
        task = asyncio.create_task(self._run(relay, is_present))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """The relay is dead."""
        self._lives += 1

    async def _run(self, relay: Relay, is_present: Callable[[], bool]) -> None:
        life = self._lives

        async def routine(message: AsyncMessage) -> None:
            await self._take(message, life)

        while life == self._lives and is_present():
            try:
                await adequeue(relay, ARCHIVE, routine)
            except LocalError:  # its queue has failed, or is closed
                await asyncio.sleep(AGAIN_S)

    async def _take(self, message: AsyncMessage, life: int) -> None:
        """Dispose of each recipient; now and then of none, or of some."""
        addresses = [each.address for each in message.recipients()]
        data = b"".join(line + b"\r\n" for line in message.lines())
        await asyncio.sleep(self._r.choice(TAKES_S))
        if self._r.random() < 0.1:
            return  # it is deferred
        verdicts = {address: self._r.choice(VERDICTS) for address in addresses if self._r.random() < 0.9}
        for address, (disposition, reason) in verdicts.items():
            message.dispose(address, disposition, reason)
        if life == self._lives:
            self.taken += [
                (address, data)
                for address, (disposition, _) in verdicts.items()
                if disposition is Disposition.DELIVERED
            ]
        try:
            await message.finish()
        except (LocalError, asyncio.CancelledError):
            self.unsure.update(verdicts)
            raise
