"""The state of one message in the terms of qmail and of Kannader, computed from its keys.

Source: qmail's INTERNALS (S1 to S5); Kannader's queue internals (queue, inflight, cleanup).
"""

from typing import Any

from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import read_inflight, read_meta, read_recipient_record
from zonemta_py.storage.interface import View

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
