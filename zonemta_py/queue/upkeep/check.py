"""Verifies the invariants of the states of messages, on a queue that is running or not.

Messages are read in slices, in the order of their ids, each slice with its recipients from one moment of
the store, so that a running relay causes no false alarm. ``check_queue`` yields each problem as text, and
"" where the caller may run other tasks.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from zonemta_py.core.codec import crc32
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.census import zones_on_disk
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    BodyRecord,
    EnvelopeRecord,
    read_digest_entry,
    read_inflight,
    read_mark,
    read_meta,
    read_note,
    read_outbox,
    read_recipient_record,
    read_submitted,
)
from zonemta_py.queue.messages import BodyCheck
from zonemta_py.storage.interface import Store, View

SLICE_MESSAGES = 300
SLICE_BYTES = 4 << 20

_ID = slice(len(keys.MESSAGE), len(keys.MESSAGE) + keys.MESSAGE_ID_LENGTH)


@dataclass(slots=True)
class _Found:
    """The keys of one message in a slice. ``size`` and ``crc`` of the chunks found."""

    mark: BodyRecord | None = None
    meta: EnvelopeRecord | None = None
    chunks: int = 0
    size: int = 0
    crc: int = 0
    gap: bool = False
    indexes: list[int] = field(default_factory=list)


def check_queue(store: Store, *, bodies: bool = True) -> Iterator[str]:
    """Problems, one text each; an empty text is a pause. Without ``bodies`` no chunk is read."""
    yield from store.check()
    after = ""
    while True:
        problems: list[str] = []
        with store.frozen() as view:
            found, upto = _messages(view, after, problems, bodies=bodies)
            _recipients(view, found, after, upto, problems)
            problems += [
                text
                for message, one in found.items()
                for text in _judge(view, message, one, bodies=bodies)
            ]
        yield from problems
        yield ""
        if upto is None:
            break
        after = upto
    for space, judge in _OTHERS.items():
        try:
            for number, (key, value) in enumerate(store.scan(space, keys.end_of(space))):
                with _reporting(key, problems := []):
                    judge(store, key, value, problems)
                yield from problems
                if number % SLICE_MESSAGES == 0:
                    yield ""
        except QueueCorrupt as exc:
            yield str(exc)


@contextmanager
def _reporting(key: bytes, problems: list[str]) -> Iterator[None]:
    """Report a value that cannot be read as a problem."""
    try:
        yield
    except (QueueCorrupt, ValueError) as exc:
        problems.append(f"{key!r}: {exc}")


async def check_bodies(store: Store) -> AsyncIterator[str]:
    """Problems of bodies, and "" after each message; does not block the loop on a remote store."""
    for key in store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE)):
        if not key.endswith(b"#"):
            continue
        message = keys.owner_of(key)
        try:
            mark = read_mark(store.get(key) or b"")
            check = BodyCheck(message, mark)
            for number in range(1, mark.chunks + 1):
                check.chunk(await store.fetch_chunk(keys.chunk_key(message, number)))
        except QueueCorrupt as exc:
            if store.get(key) is not None:  # else the message ended during the check
                yield str(exc)
        yield ""


def _messages(
    view: View, after: str, problems: list[str], *, bodies: bool
) -> tuple[dict[str, _Found], str | None]:
    """The messages after id ``after``, and the last id of the slice; None at the end of the range."""
    found: dict[str, _Found] = {}
    start = keys.end_of(keys.message_prefix(after)) if after else keys.MESSAGE
    size, message, one = 0, "", _Found()
    try:
        stop = keys.end_of(keys.MESSAGE)
        for key, value in view.scan(start, stop) if bodies else _without_chunks(view, start, stop):
            owner = key[_ID].decode("ascii", "replace")
            if owner != message:
                if len(found) >= SLICE_MESSAGES or size >= SLICE_BYTES:
                    return found, message
                message, one = owner, found.setdefault(owner, _Found())
            size += len(value)
            with _reporting(key, problems):
                _take(one, key[_ID.stop + 1 :], value)
    except QueueCorrupt as exc:
        problems.append(str(exc))
        return found, message or None
    return found, None


def _without_chunks(view: View, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    for key in view.keys(start, stop):
        yield key, b"" if keys.is_chunk(key) else view.get(key) or b""


def _take(one: _Found, part: bytes, value: bytes) -> None:
    if part == b"#":
        one.mark = read_mark(value)
    elif part == b"*":
        one.meta = read_meta(value)
    else:
        one.chunks += 1
        one.gap |= int(part) != one.chunks
        one.size += len(value)
        one.crc = crc32(value, one.crc)


def _recipients(
    view: View, found: dict[str, _Found], after: str, upto: str | None, problems: list[str]
) -> None:
    """Count the recipients of the messages of a slice, and name those without a message."""
    dues: set[bytes] = set()
    for zone in zones_on_disk(view):
        for space in (keys.WAITING, keys.DEFERRED):
            prefix = keys.zone_prefix(space, zone)
            start = keys.end_of(keys.zone_prefix(space, zone, after)) if after else prefix
            stop = keys.end_of(prefix if upto is None else keys.zone_prefix(space, zone, upto))
            at = len(prefix)
            for key, value in view.scan(start, stop):
                with _reporting(key, problems):
                    record = read_recipient_record(value)
                    one = found.get(key[at : at + keys.MESSAGE_ID_LENGTH].decode())
                    if one is None or one.meta is None:
                        problems.append(f"{key.decode()}: a recipient without a message")
                        continue
                    one.indexes.append(record.recipient_index)
                    if zone not in one.meta.zones:
                        problems.append(f"{key.decode()}: zone {zone} is not among those of its message")
                    if space == keys.DEFERRED:
                        message = keys.parse_recipient(key)[1]
                        due = keys.due_key(record.due_ms, zone, message)
                        if due not in dues and view.get(due) is None:
                            problems.append(f"{key.decode()}: deferred without a due key")
                        dues.add(due)


def _judge(view: View, message: str, one: _Found, *, bodies: bool) -> Iterator[str]:
    leaving = (
        view.get(keys.open_key(message)) is not None or view.get(keys.cleanup_key(message)) is not None
    )
    if one.mark is None:
        if one.meta is not None:
            yield f"{message}: an envelope without its marker"
        elif not leaving:
            yield f"{message}: chunks without a marker that are neither being written nor removed"
        return
    if leaving:
        yield f"{message}: accepted, yet being written or removed"
    if one.meta is None:
        yield f"{message}: a marker without its envelope"
        return
    if one.chunks > one.mark.chunks:
        yield f"{message}: more chunks than its marker says"
    elif one.gap or one.chunks < one.mark.chunks:
        yield f"{message}: {one.chunks} of {one.mark.chunks} chunks, the others are missing"
    elif bodies and (one.size, one.crc) != (one.mark.size, one.mark.crc):
        yield f"{message}: the body is damaged (size {one.size} of {one.mark.size})"
    if not one.indexes:
        yield f"{message}: it has no recipient"
    if len(set(one.indexes)) != len(one.indexes):
        yield f"{message}: a recipient is in two places"


def _due(store: Store, key: bytes, value: bytes, problems: list[str]) -> None:
    try:
        due_ms, zone, message = keys.parse_due(key)
    except ValueError:
        problems.append(f"{key!r}: not a due key")
        return
    prefix = keys.zone_prefix(keys.DEFERRED, zone, message)
    with store.frozen() as view:
        if due_ms != keys.HELD_MS or view.get(key) is None:
            return  # at its time it wakes what there is
        if next(view.keys(prefix, keys.end_of(prefix)), None) is None:
            problems.append(f"{key.decode()}: the due key of held recipients, and there is none")


def _spill(store: Store, key: bytes, value: bytes, problems: list[str]) -> None:
    try:
        keys.parse_spill(key)
    except ValueError:
        problems.append(f"{key!r}: not a spill key")


def _inflight(store: Store, key: bytes, value: bytes, problems: list[str]) -> None:
    message = keys.owner_of(key)
    with store.frozen() as view:
        if view.get(key) is not None and view.get(keys.mark_key(message)) is None:
            problems.append(f"{message}: a transaction without a message")
    read_inflight(value)


def _note(store: Store, key: bytes, value: bytes, problems: list[str]) -> None:
    read_note(value)
    message = keys.owner_of(key)
    with store.frozen() as view:
        if view.get(key) is not None and view.get(keys.mark_key(message)) is None:
            problems.append(f"{message}: a noted failure without a message")


def _digest_entry(store: Store, key: bytes, value: bytes, problems: list[str]) -> None:
    keys.parse_digest(key)
    read_digest_entry(value)


def _submitted(store: Store, key: bytes, value: bytes, problems: list[str]) -> None:
    read_submitted(value)


def _outbox(store: Store, key: bytes, value: bytes, problems: list[str]) -> None:
    read_outbox(value)


def _readable(store: Store, key: bytes, value: bytes, problems: list[str]) -> None:
    """It was read: LevelDB has a sum for each block, and that is all there is to compare."""


_OTHERS = {
    keys.META: _readable,
    keys.OPEN: _readable,
    keys.CLEANUP: _readable,
    keys.DUE: _due,
    keys.SPILL: _spill,
    keys.INFLIGHT: _inflight,
    keys.BOUNCE: _note,
    keys.DIGEST: _digest_entry,
    keys.SUBMITTED: _submitted,
    keys.OUTBOX: _outbox,
}
