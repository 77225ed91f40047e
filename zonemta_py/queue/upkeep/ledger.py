"""The event log as a repair reads it: who is open, done or held. Pure."""

from collections.abc import Iterable
from typing import Any

from zonemta_py.events.schema import FINAL

Seat = tuple[str, int]  # message and index


class Ledger:
    """What the event log says of every recipient: ``open`` ones by seat, those ``done``, those ``held``."""

    def __init__(self, records: Iterable[dict[str, Any]]) -> None:
        self.open: dict[Seat, tuple[str, str]] = {}  # zone, address
        self.done: set[Seat] = set()
        self.held: set[Seat] = set()
        self.index: dict[tuple[str, str], int] = {}  # by message and address
        for record in records:
            self._add(record)
        for seat in self.done:
            self.open.pop(seat, None)

    def _add(self, record: dict[str, Any]) -> None:
        event = record["event"]
        if event == "accepted":
            for to in record["recipients"]:
                self.open[(record["message"], to["index"])] = (to["zone"], to["recipient"])
                self.index[(record["message"], to["recipient"])] = to["index"]
        elif event == "moved":
            for index in record["recipients"]:
                seat = (record["message"], index)
                if seat in self.open:
                    self.open[seat] = (record["new_zone"], self.open[seat][1])
        elif event in FINAL:
            self.done.add((record["message"], record["index"]))
        elif event == "held":
            self.held.add((record["message"], record["index"]))
        elif event == "released":
            self.held.discard((record["message"], record["index"]))
