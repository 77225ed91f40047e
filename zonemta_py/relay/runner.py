"""Keeps a relay running: one whose queue cannot be written is closed, and a new one opened (decision 60).

After a failed write nothing is known about it, so no part of the old relay goes on. The next opening reads
what the store has, as after a crash. It is tried again until the store works: a full disk, a server that
hangs and a lack of descriptors need no operator.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.relay.relay import Relay

BACK_OFF_S = 0.5  # before the second attempt to open the queue again; doubled each time
BACK_OFF_MAX_S = 5.0
STABLE_S = 30.0  # a relay that ran for so long begins with a short pause again

log = logging.getLogger(__name__)


class RelayRunner:
    """Runs the relays that ``make`` returns, one after the other. ``relay`` is the one in use, or None."""

    def __init__(self, make: Callable[[Config], Relay], config: Config) -> None:
        self._make = make
        self._config = config
        self._pause_s = 0.0
        self.relay: Relay | None = None

    async def start(self) -> Relay:
        """Start the first relay. Raises ConfigError, QueueLocked, LocalError."""
        relay = self._make(self._config)
        await relay.start()
        self.relay = relay
        return relay

    async def run(self, stop: asyncio.Event, on_start: Callable[[], None]) -> None:
        """Run until ``stop`` is set, then stop in order. ``on_start`` is called for each relay."""
        while self.relay is not None:
            on_start()
            began_s = clock.monotonic_s()
            await _first(stop.wait(), self.relay.wait_failed())
            relay, self._config = self.relay, self.relay.config
            if stop.is_set():
                await _stop(relay)
                return
            self.relay = None
            await relay.stop(0)
            if clock.monotonic_s() - began_s >= STABLE_S:
                self._pause_s = 0.0
            self.relay = await self._open_again(stop)

    async def _open_again(self, stop: asyncio.Event) -> Relay | None:
        """A new relay, started as soon as the queue can be opened; None if ``stop`` is set before."""
        while not stop.is_set():
            await clock.wait_event(stop, self._pause_s)
            self._pause_s = min(2 * self._pause_s, BACK_OFF_MAX_S) or BACK_OFF_S
            try:
                relay = self._make(self._config)
                await relay.start()
            except (LocalError, OSError) as exc:
                log.error("the queue cannot be opened, next attempt in %.1f s: %s", self._pause_s, exc)
            else:
                log.warning("the queue is open again, mail is accepted and sent")
                return relay
        return None


async def _stop(relay: Relay) -> None:
    began_s = clock.monotonic_s()
    log.info("stopping; transactions in progress have %.0f s to finish", relay.config.shutdown_grace)
    await relay.stop()
    log.info("stopped in %.1f s", clock.monotonic_s() - began_s)


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when the first of ``waits`` is done; the others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
