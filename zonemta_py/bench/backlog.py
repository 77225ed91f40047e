"""Queues with a past, written straight into the store: a blocked domain's backlog, or what came and went."""

import zlib
from pathlib import Path

from zonemta_py.core import clock
from zonemta_py.core.codec import pack
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, Mark, Meta, Origin, new_waiting
from zonemta_py.storage.interface import Op
from zonemta_py.storage.leveldb import LevelDBStore

OPS_AT_ONCE = 5000
BLOCKED = 10  # of so many recipients all but one are for the blocked domain
_BODY = b"x" * 500 + b"\r\n"
_HEADER = b"From: source@source.example\r\nSubject: backlog\r\n"
_ORIGIN = Origin("backlog", "127.0.0.8", "backlog.example", "", "ESMTP")


def fill(directory: Path, recipients: int) -> None:
    """Make ``recipients`` waiting ones, of one message each.

    Nine of ten are in zone ``blocked``, for one domain; the tenth waits, deferred for a day, in ``default``.
    """
    store = LevelDBStore(directory / "db")
    start_ms = clock.now_ms() - 3_600_000
    due_ms = start_ms + 86_400_000
    ops: list[Op] = []
    for number in range(recipients):
        message = _message_id(start_ms, number)
        blocked = number % BLOCKED != 0
        zone, domain = (
            ("blocked", "blocked.example") if blocked else ("default", f"d{number % 500}.example")
        )
        record = new_waiting(0, domain, _ORIGIN.submitter)
        ops.append((keys.chunk_key(message, 1), _BODY))
        ops.append(
            (keys.mark_key(message), pack(Mark(FORMAT, start_ms, len(_BODY), 1, zlib.crc32(_BODY))))
        )
        ops.append(
            (
                keys.meta_key(message),
                pack(Meta(FORMAT, "s@source.example", _HEADER, (zone,), False, False, "", _ORIGIN)),
            )
        )
        if blocked:
            ops.append((keys.waiting_key(zone, message, f"{number}@{domain}"), pack(record)))
        else:
            ops.append(
                (
                    keys.deferred_key(zone, message, f"{number}@{domain}"),
                    pack(record._replace(due_ms=due_ms, attempts=1)),
                )
            )
            ops.append((keys.due_key(due_ms, zone, message), b""))
        if len(ops) >= OPS_AT_ONCE:
            store.write(store.batch(ops, sync=False))
            ops.clear()
    store.write(store.batch(ops, sync=True))
    store.close()


def churn(directory: Path, recipients: int) -> None:
    """Put ``recipients`` into the queue, fifty to a message, and take them out again.

    Nothing is compacted but what LevelDB does by itself: the most that can lie in a scan's way.
    """
    store = LevelDBStore(directory / "db")
    start_ms = clock.now_ms() - 3_600_000
    record = pack(new_waiting(0, "gone.example", _ORIGIN.submitter))
    for first in range(0, recipients, OPS_AT_ONCE):
        stored = [
            keys.waiting_key("default", _message_id(start_ms, number // 50), f"{number}@gone.example")
            for number in range(first, min(first + OPS_AT_ONCE, recipients))
        ]
        store.write(store.batch([(key, record) for key in stored], sync=False))
        store.write(store.batch([(key, None) for key in stored], sync=False))
    store.write(store.batch([], sync=True))
    store.close()


def _message_id(start_ms: int, number: int) -> str:
    return f"{start_ms + number // 1000:012x}{number % 1000:06x}0000ff"
