"""Reading one message from the database, or from one moment of it."""

import logging
from collections.abc import Iterator, Sequence

from zonemta_py.errors import QueueCorrupt
from zonemta_py.queue import keys
from zonemta_py.queue.records import Mark, Meta, Note, read_mark, read_meta, read_note
from zonemta_py.queue.store import View

UNCOUNTED = 1 << 40

log = logging.getLogger(__name__)


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


def rest_of(view: View, message: str, zones: Sequence[str]) -> tuple[int, list[Note]]:
    """How many recipients a message still has, and the failures noted; UNCOUNTED in the face of damage.

    Then those that can be read are delivered all the same, and a repair finds the message's end.
    """
    try:
        notes = list(notes_of(view, message))
        return sum(1 for _ in recipients_of(view, message, zones)), notes
    except QueueCorrupt as exc:
        log.critical("%s will not be removed at its end, repair the queue: %s", message, exc)
        return UNCOUNTED, []


def recipients_of(view: View, message: str, zones: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the recipients a message still has."""
    for zone in zones:
        for space in (keys.WAITING, keys.DEFERRED):
            prefix = keys.zone_prefix(space, zone, message)
            yield from view.scan(prefix, keys.end_of(prefix))
