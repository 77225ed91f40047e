"""The sum that anyone can check: what was accepted is delivered, bounced, expired, deleted or queued.

Reads sealed segments and counts recipients per zone. A record that stands twice, after a crash,
is counted once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zonemta_py.events.schema import FINAL
from zonemta_py.events.segments import read_segment, sealed_segments


class Account:
    """Recipients per zone and fact. ``moved`` recipients are counted where they went."""

    def __init__(self) -> None:
        self.zones: dict[str, Counter[str]] = defaultdict(Counter)
        self._seen: set[tuple[str, int, int]] = set()

    def add(self, record: dict[str, Any]) -> None:
        """Count one record of the event log."""
        identity = (record["node"], record["seq"], record["position"])
        if identity in self._seen:
            return
        self._seen.add(identity)
        event = record["event"]
        if event == "accepted":
            for recipient in record["recipients"]:
                self.zones[recipient["zone"]]["accepted"] += 1
                if record["report_for"]:
                    self.zones[recipient["zone"]]["reports"] += 1
        elif event == "moved":
            self.zones[record["zone"]]["accepted"] -= len(record["recipients"])
            self.zones[record["new_zone"]]["accepted"] += len(record["recipients"])
        elif "zone" in record:
            self.zones[record["zone"]][event] += 1

    def queued(self, zone: str) -> int:
        """How many recipients must still be in the queue."""
        counts = self.zones[zone]
        return counts["accepted"] - sum(counts[name] for name in FINAL)

    def total(self, name: str) -> int:
        """A fact over all zones."""
        return sum(counts[name] for counts in self.zones.values())


def account_of(directory: Path, extra: Iterable[dict[str, Any]] = ()) -> Account:
    """The account of every sealed segment under ``directory``."""
    account = Account()
    for path in sealed_segments(directory):
        for record in read_segment(path):
            account.add(record)
    for record in extra:
        account.add(record)
    return account
