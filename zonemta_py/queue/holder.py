"""Who has the queue open: LevelDB's lock keeps others out, a file beside it says who that is."""

import os
from pathlib import Path

from zonemta_py.errors import LocalError, QueueLocked
from zonemta_py.queue.leveldb import LevelStore

HOLDER_FILE = "relay.pid"


def open_store(directory: Path) -> LevelStore:
    """The database of the queue in ``directory``. QueueLocked names the process that has it."""
    holder = directory / HOLDER_FILE
    try:
        store = LevelStore(directory / "db")
    except QueueLocked as exc:
        try:
            pid = holder.read_text().strip()
        except OSError:
            pid = "unknown"
        # A pid that is gone was only the last to write it down.
        alive = pid.isdigit() and Path(f"/proc/{pid}").exists()
        pid = pid if alive else "unknown"
        raise QueueLocked(f"{directory}: the queue is in use by process {pid}") from exc
    try:
        holder.write_text(f"{os.getpid()}\n")
    except OSError as exc:
        store.close()
        raise LocalError(f"{holder}: {exc}") from exc
    return store
