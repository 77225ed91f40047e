"""A fold of the event log: the state of every recipient. Accounting, audit and repair are queries of it.

States of a recipient here: accepted ─▶ held or open ─▶ one of FINAL; ``moved`` changes its zone.

Invariants:

- A record is counted once, also if it occurs twice after a crash: (node, seq, position) identifies it.
- Each accepted recipient has exactly one outcome or one place in the queue; ``Audit.problems`` lists the others.

Callers: ``zonemta audit`` and ``queue repair``. Example: ``Audit()``, ``add_place`` for each recipient of the queue, ``add`` for each record, ``problems()``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
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
        """The number of recipients of ``zone`` that must still be in the queue."""
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


# ---- The proof that no recipient was lost: each accepted one has exactly one outcome or one place in the queue.
#
# Pure: it compares the history in the event log with the recipients that are in the queue at one moment.

PROBLEMS_MAX = 1000  # named of each kind
NODE_LENGTH = 6  # the end of a message id


class Audit:
    """``add_place`` for each recipient in the queue, ``add`` for each record, then ``rows``.

    ``nodes``: of the queues that are audited. ``others``: recipients accepted by other nodes, by node: another relay, or one of
    these queues before an import.
    """

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.history = RecipientHistory()
        self.others: Counter[str] = Counter()
        self._places: dict[RecipientId, str] = {}
        self._two_places: list[RecipientId] = []

    def add_place(self, message: str, index: int, zone: str) -> None:
        """Note that the recipient is in the queue."""
        recipient_id = (message, index)
        if recipient_id in self._places:
            self._two_places.append(recipient_id)
        self._places[recipient_id] = zone

    def add(self, record: dict[str, Any]) -> None:
        """Add a record of the event log or of the outbox."""
        before = len(self.history.zones)
        self.history.add(record)
        if record["event"] == "accepted" and record["node"] not in self.nodes:
            self.others[record["node"]] += len(self.history.zones) - before

    def problems(self) -> Iterator[str]:
        """Recipients without exactly one outcome or place."""
        history = self.history
        for message, index in self._two_places[:PROBLEMS_MAX]:
            yield f"{message} recipient {index}: two places in the queue"
        for (message, index), event in history.repeated[:PROBLEMS_MAX]:
            yield f"{message} recipient {index}: two outcomes, {event} the second"
        nodes = ", ".join(sorted(self.nodes))
        elsewhere: Counter[str] = Counter()
        for (message, index), zone in history.zones.items():
            settled, queued = (message, index) in history.outcomes, (message, index) in self._places
            if settled and queued:
                yield f"{message} recipient {index} in {zone}: an outcome, and still in the queue"
            elif not settled and not queued and (node := message[-NODE_LENGTH:]) in self.others:
                elsewhere[node] += 1
            elif not settled and not queued:
                yield f"{message} recipient {index} in {zone}: no outcome, and not in the queue"
        for node, count in elsewhere.items():
            yield (
                f"{count} recipients that node {node} accepted have no outcome, and are not in the queue of {nodes}: "
                "audit all queues of this event log together (-c A.yaml -c B.yaml)"
            )
        elsewhere.clear()
        for message, index in sorted({*history.outcomes, *self._places} - history.zones.keys()):
            # Older messages were accepted before the log begins: segments were removed.
            if _created_ms(message) < (history.began_ms or 0) or not history.zones:
                continue
            if (node := message[-NODE_LENGTH:]) in self.nodes:
                yield f"{message} recipient {index}: the event log does not have its acceptance"
            else:
                elsewhere[node] += 1
        for node, count in elsewhere.items():
            yield (
                f"{count} recipients that node {node} accepted are settled or queued here, and the event log does not have "
                "their acceptance: if another event log has it, audit both together (-c A.yaml -c B.yaml), or see docs/operations.md, Back up"
            )

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each zone and day of acceptance (UTC), with its sum."""
        history = self.history
        counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for recipient_id, zone in history.zones.items():
            row = counts[(zone, _day(recipient_id[0]))]
            row["accepted"] += 1
            if recipient_id in self._places:
                row["queued"] += 1
            if recipient_id in history.outcomes:
                row[history.outcomes[recipient_id]] += 1
        for record in history.uncertain:
            zone = history.zones.get((record["message"], record["index"]), record["zone"])
            counts[(zone, _day(record["message"]))]["uncertain"] += 1
        for (zone, day), row in sorted(counts.items()):
            names = ("accepted", "queued", *FINAL, "uncertain")
            yield {"zone": zone, "day": day, **{name: row[name] for name in names}}


def _created_ms(message: str) -> int:
    """The time in a message id: its first 12 hex digits are unix ms."""
    return int(message[:12], 16)


def _day(message: str) -> str:
    return datetime.fromtimestamp(_created_ms(message) / 1000, UTC).strftime("%Y-%m-%d")
