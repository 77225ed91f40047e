"""Delivering what other relays left: those that died, or were stopped with mail in their part.

A deputy is a relay without listeners on a dead one's queue, in this process, until that queue is empty. So
nothing is moved, and whatever a crash leaves has one owner (decision 52). Beside it this relay's limits
count for each queue by itself.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from zonemta_py import clock
from zonemta_py.config.schema import SharedQueue
from zonemta_py.errors import QueueLocked, ZonemtaError
from zonemta_py.queue import keys
from zonemta_py.queue.store import Store
from zonemta_py.stores.shared import MAIL, Place

NOTICE_S = 1.0  # of one wait for a hint: a relay that stops waits no longer than that
AGAIN_S = 60.0  # before a part that could not be taken over is tried again

log = logging.getLogger(__name__)


class Deputy(Protocol):
    """A relay on somebody else's queue."""

    async def start(self) -> None:
        """Begin to deliver."""

    async def stop(self, grace_s: float | None = None) -> None:
        """Finish what runs, and close the queue."""


class TakeOver:
    """Looks for parts that nobody has. ``deputy`` makes the relay for one: its store and name."""

    def __init__(
        self, place: Place, settings: SharedQueue, deputy: Callable[[Store, str], Deputy]
    ) -> None:
        self._place = place
        self._settings = settings
        self._deputy = deputy
        self._stopping = asyncio.Event()
        self._refused: dict[str, float] = {}  # until when
        self._drains: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def names(self) -> list[str]:
        """The parts that are being delivered."""
        return sorted(self._drains)

    def start(self) -> None:
        """Look around in the background."""
        self._task = asyncio.create_task(self._run(), name="take-over")

    async def _run(self) -> None:
        looked_s = 0.0
        while not self._stopping.is_set():
            try:
                hint = await asyncio.to_thread(self._place.notice, min(NOTICE_S, self._settings.poll))
                found = [hint] if hint else []
                if clock.monotonic_s() - looked_s >= self._settings.poll:
                    found += await asyncio.to_thread(self._place.orphans)
                    looked_s = clock.monotonic_s()
            except ZonemtaError as exc:
                log.error("what other relays left cannot be seen: %s", exc)
                await clock.wait_event(self._stopping, self._settings.poll)
                continue
            for name in found:
                refused_until = self._refused.get(name, 0.0)
                if (
                    name in self._drains
                    or clock.monotonic_s() < refused_until
                    or self._stopping.is_set()
                ):
                    continue
                self._drains[name] = asyncio.create_task(self._drain(name), name=f"drain-{name}")

    async def _drain(self, name: str) -> None:
        """Deliver one part. What goes wrong with it costs nobody else anything."""
        try:
            store = await asyncio.to_thread(self._place.open, name)
        except (QueueLocked, ZonemtaError) as exc:
            log.info("%s is not taken over: %s", name, exc)
            self._drains.pop(name, None)
            return
        try:
            if not await asyncio.to_thread(_has_mail, store):
                await asyncio.to_thread(store.close)
                return
            log.warning("the queue of %s is taken over", name)
            await self._deliver(name, store)
            log.warning("the queue of %s is given back", name)
        except Exception as exc:
            log.error("the queue of %s cannot be delivered here: %s", name, exc)
            self._refused[name] = clock.monotonic_s() + AGAIN_S
        finally:
            self._drains.pop(name, None)

    async def _deliver(self, name: str, store: Store) -> None:
        deputy = self._deputy(store, name)
        try:
            await deputy.start()
            while not self._stopping.is_set() and await asyncio.to_thread(_has_mail, store):
                await clock.wait_event(self._stopping, self._settings.poll)
        finally:
            await deputy.stop()

    async def close(self) -> None:
        """Stop the deputies in order."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        await asyncio.gather(*list(self._drains.values()), return_exceptions=True)
        await asyncio.to_thread(self._place.close)


def _has_mail(store: Store) -> bool:
    return any(next(store.keys(prefix, keys.end_of(prefix)), None) is not None for prefix in MAIL)
