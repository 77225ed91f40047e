"""Repair of the keys that belong to no message, and of values that cannot be read."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    read_digest_entry,
    read_inflight,
    read_note,
    read_outbox,
    read_recipient_record,
    read_submitted,
)
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.transitions import set_aside
from zonemta_py.storage.interface import Store

AddRow = Callable[[str, str, str, str], None]  # change, message, what, why

READERS: dict[bytes, Callable[[bytes], object]] = {
    keys.INFLIGHT: read_inflight,
    keys.BOUNCE: read_note,
    keys.DIGEST: read_digest_entry,
    keys.SUBMITTED: read_submitted,
}
OF_A_MESSAGE = (keys.INFLIGHT, keys.BOUNCE)


async def remove_strange_keys(queue: Queue) -> list[dict[str, Any]]:
    """Remove keys that the queue does not write, such as a repair of LevelDB can leave; a row for each. Raises QueueUnavailable."""
    rows = []
    for space in keys.LAYOUT:
        found = queue.store.keys(space, keys.end_of(space))
        for key in [key for key in found if not keys.is_key(space, key)]:
            await _delete(queue, key)
            reason = f"{key!r} is no key of a queue"
            rows.append({"what": "removed", "message": "", "recipient": "", "reason": reason})
    return rows


async def repair_outbox(queue: Queue, found: Iterable[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
    """Put back the ``outbox/`` records ``found`` in a damaged log, and keep aside those that cannot be read; a row for each.

    What the event log already has is removed by the next start. Raises QueueUnavailable.
    """
    rows: list[dict[str, Any]] = []
    store = queue.store
    batch = WriteBatch()
    for key, value in found:
        if store.get(key) is None:
            batch.put(key, value)
    await queue.commits.submit(batch)
    for key, value in scan_space(store, keys.OUTBOX):
        try:
            read_outbox(value)
        except QueueCorrupt as exc:
            batch = WriteBatch()
            set_aside(batch, key, value)
            await queue.commits.submit(batch)
            reason = f"{key.decode()}: {exc}; it is kept as {keys.damaged_key(key).decode()}"
            rows.append({"what": "damaged", "message": "", "recipient": "", "reason": reason})
    return rows


async def remove_other_keys(queue: Queue, add_row: AddRow) -> None:
    """Remove keys without a message, values that cannot be read, and chunks of removed messages. Raises QueueUnavailable."""
    store = queue.store
    for space, read in READERS.items():
        for key, value in scan_space(store, space):
            try:
                read(value)
                if space in OF_A_MESSAGE and store.get(keys.mark_key(keys.owner_of(key))) is None:
                    raise QueueCorrupt("its message is gone")
            except QueueCorrupt as exc:
                add_row("removed", "", key.decode("utf-8", "replace"), str(exc))
                await _delete(queue, key)
    for key, _ in scan_space(store, keys.DUE):
        if not _is_needed(store, key):
            await _delete(queue, key)
    for key, _ in scan_space(store, keys.SPILL):  # the start-up scan writes the ones that are needed
        await _delete(queue, key)
    for key, _ in scan_space(store, keys.CLEANUP):  # a damaged chunk would be found by the next check
        with suppress(QueueCorrupt):  # the next start tries again
            await queue.cleanup.remove_chunks(keys.owner_of(key))


def _is_needed(store: Store, due: bytes) -> bool:
    """Whether a ``due/`` key wakes any recipient."""
    try:
        due_ms, zone, message = keys.parse_due(due)
    except ValueError:
        return False
    prefix = keys.zone_prefix(keys.DEFERRED, zone, message)
    rows = store.scan(prefix, keys.end_of(prefix))
    return any(read_recipient_record(value).due_ms == due_ms for _, value in rows)


def scan_space(store: Store, space: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys of a space, each read when the previous one was handled."""
    cursor = space
    while True:
        pair = next(store.scan(cursor, keys.end_of(space)), None)
        if pair is None:
            return
        yield pair
        cursor = pair[0] + b"\x00"


async def _delete(queue: Queue, key: bytes) -> None:
    batch = WriteBatch()
    batch.delete(key)
    await queue.commits.submit(batch)
