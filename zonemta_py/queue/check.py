"""Verifies the invariants of DESIGN section 4 on a queue, running or not.

Each message is looked at on a snapshot of its own, so a running relay raises no false alarm.
``check_queue`` yields a problem as text, or "" where a caller may let others run.
"""

from collections.abc import Iterator
from typing import NamedTuple

from zonemta_py.errors import QueueCorrupt
from zonemta_py.queue import keys
from zonemta_py.queue.chunks import read_body
from zonemta_py.queue.records import read_inflight, read_mark, read_meta, read_waiting
from zonemta_py.queue.store import Store, View

PAUSE_EVERY = 500


class Counts(NamedTuple):
    """What a check saw."""

    messages: int
    recipients: int
    problems: int


def check_queue(store: Store) -> Iterator[str]:
    """Problems, one text each; the empty text is a pause."""
    yield from _messages(store)
    yield from _recipients(store)
    yield from _due(store)
    yield from _inflight(store)
    yield from _outbox(store)


def _messages(store: Store) -> Iterator[str]:
    cursor = keys.MESSAGE
    while True:
        key = next(store.keys(cursor, keys.end_of(keys.MESSAGE)), None)
        if key is None:
            return
        message = keys.owner_of(key)
        prefix = keys.message_prefix(message)
        try:
            with store.frozen() as view:
                found = list(_message(view, message))
            yield from found
        except QueueCorrupt as exc:
            yield f"{message}: {exc}"
        cursor = keys.end_of(prefix)
        yield ""


def _message(store: View, message: str) -> Iterator[str]:
    mark_value = store.get(keys.mark_key(message))
    meta_value = store.get(keys.meta_key(message))
    leaving = (
        store.get(keys.open_key(message)) is not None or store.get(keys.cleanup_key(message)) is not None
    )
    if mark_value is None:
        if meta_value is not None:
            yield f"{message}: an envelope without its marker"
        elif not leaving and _has_keys(store, message):  # it may have gone since its key was seen
            yield f"{message}: chunks that nobody writes or removes"
        return
    if leaving:
        yield f"{message}: accepted, yet being written or removed"
    if meta_value is None:
        yield f"{message}: a marker without its envelope"
        return
    mark, meta = read_mark(mark_value), read_meta(meta_value)
    for _ in read_body(store, message, mark):
        pass
    beyond = keys.chunk_key(message, mark.chunks + 1)
    if next(store.keys(beyond, keys.end_of(keys.message_prefix(message))), None) is not None:
        yield f"{message}: more chunks than its marker says"
    indexes: list[int] = []
    for zone in meta.zones:
        for space in (keys.WAITING, keys.DEFERRED):
            prefix = keys.zone_prefix(space, zone, message)
            indexes += [read_waiting(v).number for _, v in store.scan(prefix, keys.end_of(prefix))]
    if not indexes:
        yield f"{message}: no recipient is left"
    if len(set(indexes)) != len(indexes):
        yield f"{message}: a recipient is in two places"


def _has_keys(store: View, message: str) -> bool:
    prefix = keys.message_prefix(message)
    return next(store.keys(prefix, keys.end_of(prefix)), None) is not None


def _recipients(store: Store) -> Iterator[str]:
    for space in (keys.WAITING, keys.DEFERRED):
        cursor = space
        while True:
            rows = 0
            for key, value in store.scan(cursor, keys.end_of(space)):
                cursor = key + b"\x00"
                rows += 1
                with store.frozen() as view:
                    if view.get(key) is not None:
                        yield from _recipient(view, space, key, value)
                if rows == PAUSE_EVERY:
                    break
            if rows < PAUSE_EVERY:
                break
            yield ""


def _recipient(store: View, space: bytes, key: bytes, value: bytes) -> Iterator[str]:
    zone, message, address = keys.parse_recipient(key)
    try:
        record = read_waiting(value)
    except QueueCorrupt as exc:
        yield f"{message} to {address}: {exc}"
        return
    meta = store.get(keys.meta_key(message))
    if meta is None:
        yield f"{message} to {address}: a recipient without a message"
    elif zone not in read_meta(meta).zones:
        yield f"{message} to {address}: zone {zone} is not among those of its message"
    if space == keys.DEFERRED and store.get(keys.due_key(record.due_ms, zone, message)) is None:
        yield f"{message} to {address}: deferred with nothing to wake it"


def _due(store: Store) -> Iterator[str]:
    for key in store.keys(keys.DUE, keys.end_of(keys.DUE)):
        try:
            keys.parse_due(key)
        except ValueError:
            yield f"{key!r}: not a due key"


def _inflight(store: Store) -> Iterator[str]:
    for key, value in store.scan(keys.INFLIGHT, keys.end_of(keys.INFLIGHT)):
        message = keys.owner_of(key)
        if store.get(key) is not None and store.get(keys.mark_key(message)) is None:
            yield f"{message}: a transaction without a message"
        else:
            read_inflight(value)


def _outbox(store: Store) -> Iterator[str]:
    for key, value in store.scan(keys.OUTBOX, keys.end_of(keys.OUTBOX)):
        if not value.endswith(b"}\n"):
            yield f"{key!r}: not event lines"
