"""Delivers what other relays left: those that died, or stopped with mail in their partition.

A takeover relay is a relay without listeners that runs in this process on another relay's partition, until
the partition is empty. Mail stays in its partition, so each message has one owner, also after a crash (decision 52). The
limits of this relay apply to each partition separately. Its own partition it does not take over: when it has lost the lease, its queue is opened
again (``RelayRunner``), once the event log of the relay that failed is closed, for a log has one writer.

A partition is found by a notification of the storage, or by a look at all of them every ``poll`` seconds. Its states: skipped
(locked by a relay that lives, failed, or left with mail for programs only) for RETRY_S; taken over, with a task; delivered, with
a relay that has started and gets each reload and flush of this one; given back. An error ends the take-over of one partition
only. ``close`` ends the search, then the relays, then the storage. The relay uses it as a part:

    orphans = OrphanRecovery(storage, config.queue.shared, make_relay, dequeue_zones(config), own="mx1")
    Parts([..., orphans.part()])
"""

import asyncio
import logging
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Protocol

from zonemta_py.config.schema import Config, Processes, SharedStorageSettings
from zonemta_py.config.values import ProcessCount
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError, LocalError, QueueLocked
from zonemta_py.queue.census import zones_on_disk
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.relay.parts import Part
from zonemta_py.routing import DEQUEUE_TRANSPORT
from zonemta_py.storage.interface import Store
from zonemta_py.storage.shared import SharedStorage

WAIT_S = 1.0  # longest wait for a notification, and so for ``close``
RETRY_S = 60.0  # before a partition that could not be taken over, or still has mail, is tried again

log = logging.getLogger(__name__)


def takeover_config(config: Config, name: str) -> Config:
    """``config`` for the queue of the relay ``name``: no listeners, one process, and a directory of its own."""
    directory = config.queue.directory / "taken-over" / name
    return replace(
        config,
        listeners=(),
        queue=replace(config.queue, directory=directory),
        processes=Processes(ProcessCount(0), ProcessCount(0)),
        admin=replace(config.admin, address=(), mail=False),
    )


def dequeue_zones(config: Config) -> set[str]:
    """The zones whose mail is left to programs."""
    return {name for name, zone in config.zones.items() if zone.transport == DEQUEUE_TRANSPORT}


class TakeoverRelay(Protocol):
    """A relay on another relay's queue."""

    @property
    def queue(self) -> Queue:
        """The queue of the partition that it delivers."""

    async def start(self) -> None:
        """Begin to deliver; returns when all parts have started. Raises ConfigError, LocalError."""

    async def reload(self, config: Config) -> object:
        """Use ``config`` from now on. Raises ConfigError for one that cannot be used; the present one stays."""

    async def flush(self) -> int:
        """Make all deferred recipients ready; returns how many woke. Raises LocalError."""

    async def stop(self, grace_s: float | None = None) -> None:
        """Finish the running transactions, and close the queue."""


class OrphanRecovery:
    """Finds partitions without a relay and delivers them. ``make_relay(store, name)`` makes the relay for one.

    Mail for the zones in ``dequeue_zones`` is left to the programs that dequeue it. ``own``: the partition of this relay.
    """

    def __init__(
        self,
        storage: SharedStorage,
        settings: SharedStorageSettings,
        make_relay: Callable[[Store, str], TakeoverRelay],
        dequeue_zones: Set[str] = frozenset(),
        own: str = "",
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._make_relay = make_relay
        self._dequeue_zones = dequeue_zones
        self._own = own
        self._stopping = asyncio.Event()
        self._grace_s: float | None = None
        self._skipped_until: dict[str, float] = {}  # monotonic time, by partition
        self._takeovers: dict[str, asyncio.Task[None]] = {}
        self._relays: dict[str, TakeoverRelay] = {}  # those that have started
        self._config: Config | None = None  # of the last reload
        self._task: asyncio.Task[None] | None = None

    @property
    def names(self) -> list[str]:
        """The partitions that are being delivered."""
        return sorted(self._takeovers)

    async def reload(self, config: Config) -> None:
        """Use ``config`` for the partitions that are being delivered; an error is logged."""
        self._config, self._dequeue_zones = config, dequeue_zones(config)
        for name, relay in list(self._relays.items()):
            await self._reload_one(config, name, relay)

    async def _reload_one(self, config: Config, name: str, relay: TakeoverRelay) -> None:
        try:
            await relay.reload(takeover_config(config, name))
        except ConfigError as exc:
            log.error("the queue of %s keeps its configuration: %s", name, exc)

    async def flush(self) -> int:
        """Flush the partitions that are being delivered; returns how many recipients woke."""
        woken = 0
        for name, relay in list(self._relays.items()):
            try:
                woken += await relay.flush()
            except LocalError as exc:
                log.error("the queue of %s is not flushed: %s", name, exc)
        return woken

    def part(self) -> Part:
        """Part of the relay: start, reload and stop."""
        return Part(
            "take-over", self.start, drain=self.close, follow=lambda new: self.reload(new.config)
        )

    async def start(self) -> None:
        """Look for partitions in the background."""
        self._task = asyncio.create_task(self._run(), name="takeover")

    async def _run(self) -> None:
        polled_s = 0.0
        while not self._stopping.is_set():
            try:
                wait_s = min(WAIT_S, self._settings.poll)
                hint = await asyncio.to_thread(self._storage.wait_for_notification, wait_s)
                found = [hint] if hint else []
                if clock.monotonic_s() - polled_s >= self._settings.poll:
                    found += await asyncio.to_thread(self._storage.orphans)
                    polled_s = clock.monotonic_s()
            except Exception as exc:  # an error of the server must not end the search
                log.error("partitions of other relays cannot be listed: %s", exc)
                await clock.wait_event(self._stopping, self._settings.poll)
                continue
            for name in found:
                skipped_until = self._skipped_until.get(name, 0.0)
                if (
                    name == self._own
                    or name in self._takeovers
                    or clock.monotonic_s() < skipped_until
                    or self._stopping.is_set()
                ):
                    continue
                self._takeovers[name] = asyncio.create_task(
                    self._take_over(name), name=f"takeover-{name}"
                )

    async def _take_over(self, name: str) -> None:
        """Deliver one partition. An error is logged and affects no other partition."""
        store: Store | None = None
        try:
            store = await asyncio.to_thread(self._storage.open, name)
            if await asyncio.to_thread(self._has_work, store):
                log.warning("the queue of %s is taken over", name)
                await self._deliver(name, store)
                log.warning("the queue of %s is given back", name)
            self._skipped_until[name] = clock.monotonic_s() + RETRY_S  # any mail left is for programs
        except QueueLocked as exc:
            log.info("%s is not taken over: %s", name, exc)
        except Exception as exc:
            log.error("the queue of %s cannot be delivered here: %s", name, exc)
            self._skipped_until[name] = clock.monotonic_s() + RETRY_S
        finally:
            if store is not None:
                await asyncio.to_thread(store.close)  # the takeover relay may have closed it
            self._takeovers.pop(name, None)

    async def _deliver(self, name: str, store: Store) -> None:
        before = self._config
        relay = await asyncio.to_thread(self._make_relay, store, name)
        try:
            await relay.start()
            self._relays[name] = relay
            if self._config is not None and self._config is not before:  # reloaded meanwhile
                await self._reload_one(self._config, name, relay)
            while not self._stopping.is_set() and relay.queue.failure is None:
                if not await asyncio.to_thread(self._has_work, store):
                    break
                await clock.wait_event(self._stopping, self._settings.poll)
        finally:
            self._relays.pop(name, None)
            await relay.stop(self._grace_s)

    def _has_work(self, store: Store) -> bool:
        for space in (keys.OUTBOX, keys.DIGEST):
            if next(store.keys(space, keys.end_of(space)), None) is not None:
                return True
        return bool(zones_on_disk(store) - self._dequeue_zones)

    async def close(self, grace_s: float | None = None) -> None:
        """Stop the search and the takeover relays; their transactions get ``grace_s`` to finish."""
        self._grace_s = grace_s
        self._stopping.set()
        await asyncio.gather(
            *([self._task] if self._task else []), *self._takeovers.values(), return_exceptions=True
        )
        await asyncio.to_thread(self._storage.close)
