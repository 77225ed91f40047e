"""Repairs a damaged queue: a copy is kept, the store opened again, and its contents mended."""

import shutil
from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path
from typing import Any

from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError
from zonemta_py.delivery.open_queue import open_queue
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.ledger import Ledger
from zonemta_py.queue.upkeep.repair import mend
from zonemta_py.storage.leveldb import repair_database
from zonemta_py.storage.open import store_directory

Records = Iterable[dict[str, Any]]


def keep_copy(config: Config) -> Path:
    """Copy the store beside itself; returns where to. Raises LocalError when there is none."""
    folder = store_directory(config.queue)
    if folder is None or not folder.is_dir():
        raise LocalError(f"{config.queue.directory}: there is no queue to repair")
    copy = folder.with_name(f"{folder.name}-before-repair-{clock.utc(clock.now_ms()):%Y%m%dT%H%M%SZ}")
    for number in count(2):
        if not copy.exists():
            break
        copy = copy.with_name(f"{copy.name.partition('Z')[0]}Z-{number}")
    shutil.copytree(folder, copy, symlinks=True)
    return copy


async def repair(config: Config, facts: Records) -> list[dict[str, Any]]:
    """Repair and mend; returns what ``mend`` did. ``facts`` are the event log's records.

    The relay must not be running.
    """
    folder = store_directory(config.queue)
    assert folder is not None
    if config.queue.store == "leveldb":
        repair_database(folder)
    queue = open_queue(config)
    queue.commits.start()
    try:
        outbox = list(queue.store.scan(keys.OUTBOX, keys.end_of(keys.OUTBOX)))
        newest = (from_json(line) for _, value in outbox for line in value.splitlines())
        ledger = Ledger(chain(facts, newest))
        return await mend(queue, ledger, config.zones)
    finally:
        await queue.close()
