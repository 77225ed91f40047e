"""Reads the queue for an operator: rows of plain values, in the order of the keys.

State: ``MessageLabels`` remembers the last message; the others have none, and write nothing.

Invariants:

- Functions are generators over short reads, or read one message or a few keys, so that a running relay can do other work between
  rows. Recipients that are passed over give a row with only a ``cursor``, after each PASSED of them.
- The ``cursor`` of a row is its key: what follows it is found also when that row is gone. A recipient that moves between waiting and
  deferred during the read may be missed or returned twice; a frozen view has one moment.
- A damaged record raises QueueCorrupt, or is left out where the caller can do without it.
- Numbers of events are those of the queue's node: its log must have ``exported_seq``, and has at most ``known_seq``.

Callers: the operations in ``admin`` and the commands that open a queue whose relay is down; ``HeldMail`` for held messages, the
exporter for the oldest message.

Example: ``recipient_rows(store, "default", after)`` with the ``cursor`` of the last row of a page gives the next page.

Source: qmail's INTERNALS (S1 to S5), Kannader's queue internals, for ``state_of_message``.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.events.schema import first_seq
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    EnvelopeRecord,
    RecipientRecord,
    RecipientState,
    read_inflight,
    read_mark,
    read_meta,
    read_outbox,
    read_recipient_record,
)
from zonemta_py.queue.messages import read_message, recipients_of
from zonemta_py.storage.interface import View

log = logging.getLogger(__name__)


PASSED = 500  # recipients that are passed over in one turn of the loop
READ_ON = (
    16  # recipients of a message that are passed over one by one; a search for its end takes as long
)

Wants = Callable[
    [str, RecipientRecord], bool
]  # a message, by its id and the record of one of its recipients


def recipient_rows(
    store: View,
    zone: str | None = None,
    after: bytes = b"",
    *,
    held: bool = False,
    wants: Wants | None = None,
) -> Iterator[dict[str, Any]]:
    """Every recipient in the queue, waiting ones first. ``after``: a ``cursor``; rows behind it follow.

    ``held``: only those that are held, without a look at the others. ``wants`` is asked once for each message; the
    recipients of others are passed over, with a row that has a ``cursor`` only after each PASSED of them. Raises
    ValueError for another text. A recipient that moves between the two during the read may be missed or returned twice,
    except on a frozen view.
    """
    if after and not after.startswith((keys.WAITING, keys.DEFERRED)):
        raise ValueError("expected the cursor of a row")
    pairs = partial(_held_pairs if held else _pairs, store, zone)
    if wants is not None:
        return _wanted_rows(pairs, after, wants, jumps=not held)
    return (_recipient_row(key, read_recipient_record(value)) for key, value in pairs(after))


def _wanted_rows(
    pairs_after: Callable[[bytes], Iterator[tuple[bytes, bytes]]],
    after: bytes,
    wants: Wants,
    *,
    jumps: bool,
) -> Iterator[dict[str, Any]]:
    """The rows of the messages that ``wants`` names. ``jumps``: a search behind any key finds the next one."""
    prefix, wanted, passed, in_message = b"", False, 0, 0
    while True:
        for key, value in pairs_after(after):
            if not prefix or not key.startswith(prefix):
                message_at = key.index(b"/", key.index(b"/") + 1) + 1
                prefix = key[: message_at + keys.MESSAGE_ID_LENGTH + 1]
                message, in_message = prefix[message_at:-1].decode(), 0
                wanted = wants(message, read_recipient_record(value))
            if wanted:
                yield _recipient_row(key, read_recipient_record(value))
                continue
            passed, in_message = passed + 1, in_message + 1
            if passed % PASSED == 0:
                yield {"cursor": key.decode()}
            if jumps and in_message == READ_ON:
                after = keys.end_of(prefix)
                break
        else:
            return


def _pairs(store: View, zone: str | None, after: bytes) -> Iterator[tuple[bytes, bytes]]:
    for space in (keys.WAITING, keys.DEFERRED):
        prefix = keys.zone_prefix(space, zone) if zone else space
        if after.startswith(keys.DEFERRED) and space == keys.WAITING:
            continue
        start = max(prefix, after + b"\x00") if after.startswith(space) else prefix
        yield from store.scan(start, keys.end_of(prefix))


def _held_pairs(store: View, zone: str | None, after: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Their messages are at the end of DUE."""
    prefix = keys.due_key(keys.HELD_MS, zone or "", "").rstrip(b"/") + b"/"
    start = prefix
    if after.startswith(keys.WAITING):
        after = b""
    elif after:
        after_zone, after_message, _ = keys.parse_recipient(after)
        start = max(prefix, keys.due_key(keys.HELD_MS, after_zone, after_message))
    for due in store.keys(start, keys.end_of(prefix)):
        _, in_zone, message = keys.parse_due(due)
        of_message = keys.zone_prefix(keys.DEFERRED, in_zone, message)
        for key, value in store.scan(of_message, keys.end_of(of_message)):
            if key > after and read_recipient_record(value).state is RecipientState.HELD:
                yield key, value


def _recipient_row(key: bytes, record: RecipientRecord) -> dict[str, Any]:
    zone, message, address = keys.parse_recipient(key)
    return {
        "message": message,
        "recipient": address,
        "zone": zone,
        "domain": record.domain,
        "state": record.state.name.lower(),
        "attempts": record.attempts,
        "created_ms": keys.created_ms(message),
        "due_ms": due_of(record),
        "code": record.code,
        "status": record.status,
        "reply": record.text,
        "index": record.recipient_index,
        "cursor": key.decode(),
        "record": record,
    }


class MessageLabels:
    """Whose the messages of a queue are, and what their submitters called them. Remembers the last one."""

    def __init__(self, store: View) -> None:
        self._store = store
        self._last: tuple[str, dict[str, Any]] = ("", {})

    def of(self, message: str) -> dict[str, Any]:
        """``tenant``, ``user``, ``sender``, ``campaign`` and ``tags``; empty for a message that is gone or damaged."""
        if self._last[0] != message:
            value = self._store.get(keys.meta_key(message))
            meta = _readable(value) if value is not None else None
            found: dict[str, Any] = dict.fromkeys(("tenant", "user", "sender", "campaign"), "")
            found["tags"] = ()
            if meta is not None:
                origin = meta.origin
                found = {"tenant": origin.tenant, "user": origin.user, "sender": meta.sender}
                found |= {"campaign": meta.campaign, "tags": meta.tags}
            self._last = message, found
        return self._last[1]


def due_of(record: RecipientRecord) -> int:
    """The due time of a deferred recipient (unix ms); 0 for a waiting or held one."""
    return 0 if record.due_ms == keys.HELD_MS else record.due_ms


def message_row(view: View, message: str) -> dict[str, Any] | None:
    """All about one message except its body; None when there is no such message."""
    try:
        meta, mark = read_message(view, message)
    except QueueCorrupt:
        return None
    recipients = []
    for key, value in recipients_of(view, message, meta.zones):
        zone, _, address = keys.parse_recipient(key)
        record = read_recipient_record(value)
        state = record.state.name.lower()
        fields = record._replace(due_ms=due_of(record))._asdict()
        fields["submitter"] = record.submitter
        del fields["flow"]
        index = fields.pop("recipient_index")
        recipients.append(
            {
                "index": index,
                "recipient": address,
                "zone": zone,
                "state": state,
                **fields,
                "record": record,
            }
        )
    inflight = keys.INFLIGHT + f"{message}/".encode()
    return {
        "message": message,
        "sender": meta.sender,
        "created_ms": mark.created_ms,
        "body_bytes": mark.size,
        "chunks": mark.chunks,
        "eight_bit": meta.eight_bit,
        "smtputf8": meta.smtputf8,
        "report_for": meta.report_for,
        "campaign": meta.campaign,
        "tags": meta.tags,
        "options": meta.options._asdict(),
        "origin": meta.origin._asdict(),
        "header": meta.header.decode("utf-8", "replace"),
        "transactions": sum(1 for _ in view.keys(inflight, keys.end_of(inflight))),
        "recipients": sorted(recipients, key=lambda row: row["index"]),
    }


def held_messages(store: View, tenant: str, user: str = "") -> Iterator[str]:
    """The messages of ``tenant``, or of ``user`` if that is empty, with held recipients, each once.

    Without those that a scanner had held: they wait for a decision of their own.
    """
    prefix = keys.due_key(keys.HELD_MS, "", "").rstrip(b"/") + b"/"
    seen = ""
    for key in store.keys(prefix, keys.end_of(prefix)):
        message = keys.parse_due(key)[2]
        value = store.get(keys.meta_key(message)) if message != seen else None
        seen = message
        meta = _readable(value) if value is not None else None
        if meta is None or meta.options.quarantined:
            continue
        if meta.origin.tenant == tenant if tenant else meta.origin.user == user:
            yield message


def _readable(value: bytes) -> EnvelopeRecord | None:
    """An envelope; None for one that cannot be read, which ``check`` reports."""
    try:
        return read_meta(value)
    except QueueCorrupt:
        return None


def oldest_message(view: View, now_ms: int) -> tuple[str, int]:
    """The id of the oldest message in the queue, and its time (unix ms); empty and ``now_ms`` when there is none."""
    key = next(view.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE)), None)
    if key is None:
        return "", now_ms
    message = keys.owner_of(key)
    mark = view.get(keys.mark_key(message))
    created_ms = keys.created_ms(message)  # ids do not go back when the clock does
    return message, min(created_ms, read_mark(mark).created_ms) if mark is not None else created_ms


def log_begins(view: View) -> int:
    """The number behind which the event log of the queue's node begins: 0, or where an imported queue was exported."""
    return int(view.get(keys.META_LOG_BEGINS) or b"0", 16)


def exported_seq(view: View) -> int:
    """The highest number that the event log must have of the queue's node; 0: none."""
    exported = int(view.get(keys.META_EXPORTED) or b"0", 16)
    return exported if exported > log_begins(view) else 0


def known_seq(view: View) -> int:
    """The highest number of an event that the queue knows, exported or waiting for it. With a log that has more, it is the older one."""
    exported = view.get(keys.META_EXPORTED)
    if exported is None:  # an earlier version did not write it
        return first_seq(int(view.get(keys.META_BOOT) or b"0") + 1) - 1
    waiting = map(keys.parse_outbox, view.keys(keys.OUTBOX, keys.end_of(keys.OUTBOX)))
    return max(int(exported, 16), *waiting, 0)


def outbox_lines(view: View) -> Iterator[bytes]:
    """The JSON lines of each group of events that is not in the event log yet; those that cannot be read are left out."""
    for key, value in view.scan(keys.OUTBOX, keys.end_of(keys.OUTBOX)):
        try:
            yield read_outbox(value)
        except QueueCorrupt as exc:
            log.critical("%s: %s", key.decode(), exc)


# ---- The state of one message in the terms of qmail and of Kannader, computed from its keys.
#
# Source: qmail's INTERNALS (S1 to S5); Kannader's queue internals (queue, inflight, cleanup).

MEANINGS = {
    "S1": "no such message",
    "S2": "chunks without a marker, being removed",
    "S3": "chunks without a marker, being received",
    "S4": "accepted, no delivery attempted",
    "S5": "accepted, delivery has begun",
}


def state_of_message(view: View, message: str) -> dict[str, Any]:
    """``qmail`` S1 to S5 with its ``meaning``, and ``kannader`` for each recipient that remains."""
    inflight = _in_flight(view, message)
    recipients: list[dict[str, Any]] = []
    value = view.get(keys.meta_key(message))
    begun = bool(inflight)
    for zone in read_meta(value).zones if value else ():
        for space in (keys.WAITING, keys.DEFERRED):
            prefix = keys.zone_prefix(space, zone, message)
            for key, data in view.scan(prefix, keys.end_of(prefix)):
                record = read_recipient_record(data)
                begun = begun or record.attempts > 0 or record.uncertain > 0
                recipients.append(
                    {
                        "index": record.recipient_index,
                        "recipient": keys.parse_recipient(key)[2],
                        "kannader": "in flight" if record.recipient_index in inflight else "queued",
                    }
                )
    recipients.sort(key=lambda row: row["index"])
    # Indexes are assigned from 0 without gaps: a missing one has been settled.
    begun = begun or [row["index"] for row in recipients] != list(range(len(recipients)))
    qmail = _qmail(view, message, begun=begun)
    return {
        "message": message,
        "qmail": qmail,
        "meaning": MEANINGS[qmail],
        "kannader": "pending cleanup" if qmail == "S2" else "",
        "recipients": recipients,
    }


def _in_flight(view: View, message: str) -> set[int]:
    prefix = keys.INFLIGHT + f"{message}/".encode()
    return {
        index
        for _, value in view.scan(prefix, keys.end_of(prefix))
        for index in read_inflight(value).indexes
    }


def _qmail(view: View, message: str, *, begun: bool) -> str:
    if view.get(keys.mark_key(message)) is not None:
        return "S5" if begun else "S4"
    if view.get(keys.open_key(message)) is not None:
        return "S3"
    prefix = keys.message_prefix(message)
    if next(view.keys(prefix, keys.end_of(prefix)), None) is not None:
        return "S2"
    return "S2" if view.get(keys.cleanup_key(message)) is not None else "S1"
