"""``zonemta queue repair``: keep a copy, repair the store, then its contents. A queue older than its log."""

import shutil
from collections.abc import Iterable
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.codec import from_json
from zonemta_py.delivery.open_queue import open_queue
from zonemta_py.events.accounting import RecipientHistory
from zonemta_py.events.recovery import last_seq, newest_message
from zonemta_py.queue.upkeep.inspect import outbox_lines
from zonemta_py.queue.upkeep.recovery import begin_boot
from zonemta_py.queue.upkeep.repair import repair_contents
from zonemta_py.queue.upkeep.repair_keys import remove_strange_keys, repair_outbox
from zonemta_py.storage.interface import Access
from zonemta_py.storage.leveldb import repair_database
from zonemta_py.storage.leveldb_recovery import LogDamage, clean_logs
from zonemta_py.storage.open import locked_files, open_store


def keep_copy(config: Config) -> Path:
    """Copy the store to a new directory beside it, returned. Raises QueueLocked, LocalError when there is none."""
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
