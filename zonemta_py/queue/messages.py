"""Reading one message from the database, or from one moment of it."""

from collections.abc import Iterator, Sequence

from zonemta_py.errors import QueueCorrupt
from zonemta_py.queue import keys
from zonemta_py.queue.records import Mark, Meta, Note, read_mark, read_meta, read_note
from zonemta_py.queue.store import View


def read_message(view: View, message: str) -> tuple[Meta, Mark]:
    """The markers of a message. Raises QueueCorrupt when it has none."""
    meta = view.get(keys.meta_key(message))
    mark = view.get(keys.mark_key(message))
    if meta is None or mark is None:
        raise QueueCorrupt(f"{message}: recipients without a message")
    return read_meta(meta), read_mark(mark)


def notes_of(view: View, message: str) -> Iterator[Note]:
    """The failures noted for a report at the message's end."""
    prefix = keys.bounce_prefix(message)
    for _, value in view.scan(prefix, keys.end_of(prefix)):
        yield read_note(value)


def recipients_of(view: View, message: str, zones: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the recipients a message still has."""
    for zone in zones:
        for space in (keys.WAITING, keys.DEFERRED):
            prefix = keys.zone_prefix(space, zone, message)
            yield from view.scan(prefix, keys.end_of(prefix))
