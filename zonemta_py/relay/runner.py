"""Keeps a relay running: one whose queue cannot be written is closed, and a new one opened (decision 60).

After a failed write nothing is known about it, so no part of the old relay continues. The next opening reads
what the store has, as after a crash. It is tried again until the store works: a full disk, a server that
hangs and a lack of descriptors need no operator.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError
from zonemta_py.events.accounting import RecipientHistory
from zonemta_py.events.recovery import last_seq, newest_message
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.upkeep.inspect import outbox_lines
from zonemta_py.queue.upkeep.repair import remove_strange_keys, repair_contents, repair_outbox
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.relay.relay import Relay
from zonemta_py.storage.interface import Access
from zonemta_py.storage.leveldb import repair_database
from zonemta_py.storage.leveldb_recovery import LogDamage, clean_logs
from zonemta_py.storage.open import locked_files, open_store

log = logging.getLogger(__name__)


BACK_OFF_S = 0.5  # before the second attempt to open the queue again; doubled each time
BACK_OFF_MAX_S = 5.0
STABLE_S = 30.0  # a relay that ran for so long begins with a short pause again


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
                await relay.start(was_killed=False)
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


# ---- ``zonemta queue repair``: keep a copy, repair the store, then its contents. A queue older than its log.


def keep_copy(config: Config) -> Path:
    """Copy the store to a new directory next to it, and return that. Raises QueueLocked, LocalError when there is none."""
    with locked_files(config.queue) as directory:
        copy = directory.with_name(
            f"{directory.name}-before-repair-{clock.utc(clock.now_ms()):%Y%m%dT%H%M%SZ}"
        )
        for number in count(2):
            if not copy.exists():
                break
            copy = copy.with_name(f"{copy.name.partition('Z')[0]}Z-{number}")
        shutil.copytree(directory, copy, symlinks=True)
        return copy


def accept_older_queue(config: Config) -> None:
    """Let the next start take a queue that is older than its event log. Raises QueueLocked, LocalError."""
    store = open_store(config.queue, access=Access.OLDER)
    try:
        directory = config.events.directory
        begin_boot(store, Access.OLDER, partial(last_seq, directory), partial(newest_message, directory))
    finally:
        store.close()


async def repair(config: Config, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Repair the queue; returns what ``repair_contents`` did. ``records`` are those of the event log.

    The relay must not be running. Raises QueueLocked, LocalError.
    """
    damage: list[LogDamage] = []
    if config.queue.store == "leveldb":
        with locked_files(config.queue) as directory:
            damage = clean_logs(directory)
            repair_database(directory)
    queue = open_queue(config, access=Access.REPAIR)
    queue.commits.start()
    try:
        rows = [_row(each) for each in damage]
        rows += await remove_strange_keys(queue)
        rows += await repair_outbox(queue, [value for each in damage for value in each.outbox])
        newest = (from_json(line) for lines in outbox_lines(queue.store) for line in lines.splitlines())
        history = RecipientHistory(chain(records, newest), addresses=True)
        named = [recipient for each in damage for recipient in each.named]
        return rows + await repair_contents(queue, history, config.zones, named)
    finally:
        await queue.close()


def _row(damage: LogDamage) -> dict[str, Any]:
    what = "damaged" if damage.is_lost else "restored"
    return {"what": what, "message": "", "recipient": "", "reason": damage.text}
