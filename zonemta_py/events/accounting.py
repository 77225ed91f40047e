"""One fold of the event log: what happened to every recipient.

Accounting, audit and repair are queries of it. A record that occurs twice, after a crash, is counted once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from zonemta_py.events.schema import FINAL
from zonemta_py.events.segment_reading import read_segment, sealed_segments

RecipientId = tuple[str, int]  # message id, 0-based index of the recipient

_FINAL_NAMES = {name: name for name in FINAL}  # one string object per name, not one per record


class RecipientHistory:
    """The state of every recipient that the event log names, and counts of events per zone.

    ``zones``: where an accepted recipient is or was last. ``outcomes``: its final event. ``held``: those
    that an operator, or the poison limit, keeps. ``uncertain``: records of interrupted deliveries. ``lost``: records of recipients that
    damage on disk destroyed.
    ``repeated``: (recipient, event) of second outcomes. ``addresses`` is filled if asked for. ``counts``:
    events per zone, where a moved recipient counts as accepted in its new zone. ``began_ms``: the time of
    the oldest record.
    """

    def __init__(self, records: Iterable[dict[str, Any]] = (), *, addresses: bool = False) -> None:
        self.zones: dict[RecipientId, str] = {}
        self.outcomes: dict[RecipientId, str] = {}
        self.held: set[RecipientId] = set()
        self.addresses: dict[RecipientId, str] = {}
        self.uncertain: list[dict[str, Any]] = []
        self.lost: list[dict[str, Any]] = []
        self.repeated: list[tuple[RecipientId, str]] = []
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.began_ms: int | None = None
        self._keep_addresses = addresses
        self._seen: set[tuple[str, int, int]] = set()
        for record in records:
            self.add(record)

    def add(self, record: dict[str, Any]) -> None:
        """Fold one record of the event log or of the outbox."""
        identity = (record["node"], record["seq"], record["position"])
        if identity in self._seen:
            return
        self._seen.add(identity)
        if self.began_ms is None or record["time_ms"] < self.began_ms:
            self.began_ms = record["time_ms"]
        event = record["event"]
        if event == "accepted":
            self._accepted(record)
        elif event == "moved":
            self._moved(record)
        elif "zone" in record:
            self.counts[record["zone"]][event] += 1
            self._recipient(event, record)
        if event == "uncertain" or record.get("uncertain"):
            self.uncertain.append(record)
        elif event == "lost":
            self.lost.append(record)

    def _accepted(self, record: dict[str, Any]) -> None:
        message = record["message"]
        for recipient in record["recipients"]:
            recipient_id, zone = (message, recipient["index"]), recipient["zone"]
            self.zones[recipient_id] = zone
            if self._keep_addresses:
                self.addresses[recipient_id] = recipient["recipient"]
            self.counts[zone]["accepted"] += 1
            if record["report_for"]:
                self.counts[zone]["reports"] += 1

    def _moved(self, record: dict[str, Any]) -> None:
        for index in record["recipients"]:
            self.zones[(record["message"], index)] = record["new_zone"]
        self.counts[record["zone"]]["accepted"] -= len(record["recipients"])
        self.counts[record["new_zone"]]["accepted"] += len(record["recipients"])

    def _recipient(self, event: str, record: dict[str, Any]) -> None:
        if event in _FINAL_NAMES:
            recipient_id = (record["message"], record["index"])
            if recipient_id in self.outcomes:
                self.repeated.append((recipient_id, event))
            self.outcomes[recipient_id] = _FINAL_NAMES[event]
        elif event == "held":
            self.held.add((record["message"], record["index"]))
        elif event == "released":
            self.held.discard((record["message"], record["index"]))

    # ---- queries

    def queued(self, zone: str) -> int:
        """How many recipients of ``zone`` must still be in the queue."""
        counts = self.counts[zone]
        return counts["accepted"] - sum(counts[name] for name in FINAL)

    def total(self, event: str) -> int:
        """The count of an event over all zones."""
        return sum(counts[event] for counts in self.counts.values())

    def open_recipients(self) -> Iterator[RecipientId]:
        """The accepted recipients without an outcome."""
        return (recipient_id for recipient_id in self.zones if recipient_id not in self.outcomes)


def read_history(directory: Path) -> RecipientHistory:
    """The history in all sealed segments under ``directory``."""
    segments = sealed_segments(directory)
    return RecipientHistory(record for path in segments for record in read_segment(path))
