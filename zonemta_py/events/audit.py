"""The proof that nothing was lost: every accepted recipient has exactly one outcome or one place.

Pure: it is fed the records of the event log and the recipients that are in the queue at one moment,
and compares. A record that stands twice, after a crash, is counted once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from zonemta_py.events.schema import FINAL

_OUTCOMES = {name: number for number, name in enumerate(("", *FINAL))}
_NAMES = ("", *FINAL)
PROBLEMS_MAX = 1000

Seat = tuple[str, int]


class Audit:
    """``add_place`` for every recipient in the queue, ``add`` for every record, then ``rows``."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, int, int]] = set()
        self._zones: dict[Seat, str] = {}
        self._outcomes: dict[Seat, int] = {}
        self._places: dict[Seat, str] = {}
        self._twice: list[str] = []
        self.uncertain: list[dict[str, Any]] = []

    def add_place(self, message: str, index: int, zone: str) -> None:
        """The recipient is in the queue."""
        if (message, index) in self._places:
            self._complain(f"{message} recipient {index}: two places in the queue")
        self._places[(message, index)] = zone

    def add(self, record: dict[str, Any]) -> None:
        """One record of the event log, or of the outbox."""
        identity = (record["node"], record["seq"], record["position"])
        if identity in self._seen:
            return
        self._seen.add(identity)
        event = record["event"]
        if event == "accepted":
            for recipient in record["recipients"]:
                self._zones[(record["message"], recipient["index"])] = recipient["zone"]
        elif event == "moved":
            for index in record["recipients"]:
                self._zones[(record["message"], index)] = record["new_zone"]
        elif event in _OUTCOMES:
            seat = (record["message"], record["index"])
            if seat in self._outcomes:
                self._complain(f"{seat[0]} recipient {seat[1]}: two outcomes, {event} the second")
            self._outcomes[seat] = _OUTCOMES[event]
        if event == "uncertain" or record.get("uncertain"):
            self.uncertain.append(record)

    def _complain(self, text: str) -> None:
        if len(self._twice) < PROBLEMS_MAX:
            self._twice.append(text)

    def problems(self) -> Iterator[str]:
        """Recipients without exactly one outcome or place."""
        yield from self._twice
        for (message, index), zone in self._zones.items():
            done, here = (message, index) in self._outcomes, (message, index) in self._places
            if done and here:
                yield f"{message} recipient {index} in {zone}: an outcome, and still in the queue"
            elif not done and not here:
                yield f"{message} recipient {index} in {zone}: no outcome, and not in the queue"
        # What is older than the log's first message was accepted before the log begins.
        first = min((message for message, _ in self._zones), default="")
        for message, index in sorted({*self._outcomes, *self._places} - self._zones.keys()):
            if first and message >= first:
                yield f"{message} recipient {index}: never accepted, as far as the event log knows"

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each zone and day of acceptance (UTC), with its sum."""
        counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for seat, zone in self._zones.items():
            row = counts[(zone, _day(seat[0]))]
            row["accepted"] += 1
            if seat in self._places:
                row["queued"] += 1
            if seat in self._outcomes:
                row[_NAMES[self._outcomes[seat]]] += 1
        for record in self.uncertain:
            zone = self._zones.get((record["message"], record["index"]), record["zone"])
            counts[(zone, _day(record["message"]))]["uncertain"] += 1
        for (zone, day), row in sorted(counts.items()):
            names = ("accepted", "queued", *FINAL, "uncertain")
            yield {"zone": zone, "day": day, **{name: row[name] for name in names}}


def _day(message: str) -> str:
    """The day in a message id, whose first 12 hex digits are unix ms."""
    return datetime.fromtimestamp(int(message[:12], 16) / 1000, UTC).strftime("%Y-%m-%d")
