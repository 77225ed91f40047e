"""Delivering what other relays left: those that died, or were stopped with mail in their part.

A deputy is a relay without listeners on a dead one's queue, in this process, until that queue is empty. So
nothing is moved, and whatever a crash leaves has one owner (decision 52). Beside it this relay's limits
count for each queue by itself.
"""

import asyncio
import logging
from collections.abc import Callable, Set
from typing import Protocol

from zonemta_py.config.schema import SharedQueue
from zonemta_py.core import clock
from zonemta_py.core.errors import QueueLocked
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.startup_scan import zones_on_disk
from zonemta_py.storage.interface import Store
from zonemta_py.storage.partitions import SharedStorage

NOTICE_S = 1.0  # of one wait for a hint: a relay that stops waits no longer than that
AGAIN_S = 60.0  # before a part that could not be taken over is tried again

log = logging.getLogger(__name__)


class TakeoverRelay(Protocol):
    """A relay on somebody else's queue."""

    @property
    def queue(self) -> Queue:
        """Its queue."""

    async def start(self) -> None:
        """Begin to deliver."""

    async def stop(self, grace_s: float | None = None) -> None:
        """Finish what runs, and close the queue."""


class OrphanRecovery:
    """Looks for parts that nobody has. ``deputy`` makes the relay for one: its store and name.

    Mail for the zones in ``programs`` is left for whoever dequeues it.
    """

    def __init__(
        self,
        place: SharedStorage,
        settings: SharedQueue,
        deputy: Callable[[Store, str], TakeoverRelay],
        programs: Set[str] = frozenset(),
    ) -> None:
        self._place = place
        self._settings = settings
        self._deputy = deputy
        self._programs = programs
        self._stopping = asyncio.Event()
        self._grace_s: float | None = None
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
            except Exception as exc:  # what is wrong there must not end the looking
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
        store: Store | None = None
        try:
            store = await asyncio.to_thread(self._place.open, name)
            if await asyncio.to_thread(self._has_work, store):
                log.warning("the queue of %s is taken over", name)
                await self._deliver(name, store)
                log.warning("the queue of %s is given back", name)
            self._refused[name] = clock.monotonic_s() + AGAIN_S  # what is left is not for us
        except QueueLocked as exc:
            log.info("%s is not taken over: %s", name, exc)
        except Exception as exc:
            log.error("the queue of %s cannot be delivered here: %s", name, exc)
            self._refused[name] = clock.monotonic_s() + AGAIN_S
        finally:
            if store is not None:
                await asyncio.to_thread(store.close)  # again, where a deputy has closed it
            self._drains.pop(name, None)

    async def _deliver(self, name: str, store: Store) -> None:
        deputy = await asyncio.to_thread(self._deputy, store, name)
        try:
            await deputy.start()
            while not self._stopping.is_set() and deputy.queue.failure is None:
                if not await asyncio.to_thread(self._has_work, store):
                    break
                await clock.wait_event(self._stopping, self._settings.poll)
        finally:
            await deputy.stop(self._grace_s)

    def _has_work(self, store: Store) -> bool:
        facts = next(store.keys(keys.OUTBOX, keys.end_of(keys.OUTBOX)), None)
        return facts is not None or bool(zones_on_disk(store) - self._programs)

    async def close(self, grace_s: float | None = None) -> None:
        """Stop the deputies in order."""
        self._grace_s = grace_s
        self._stopping.set()
        await asyncio.gather(
            *([self._task] if self._task else []), *self._drains.values(), return_exceptions=True
        )
        await asyncio.to_thread(self._place.close)
