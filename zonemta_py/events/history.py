"""The events of a message, an address or a Message-ID in the event log: sealed and open segments.

``python -m zonemta_py.events.history DIRECTORY KEY SINCE_MS LIMIT`` prints them as JSON lines: a search takes
CPU time that a relay would not have for mail, so it runs in a process of its own.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from zonemta_py.core import clock
from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.errors import LocalError, SegmentDamaged
from zonemta_py.events.frames import read_frames
from zonemta_py.events.index import hash_of, may_have, read_index
from zonemta_py.events.segments import frames_of, open_frames
from zonemta_py.smtp.address import AddressError, normalise

MESSAGE = re.compile(r"[0-9a-f]{24}\Z")
HOUR_MS = 3_600_000
CLOCK_MS = 60_000  # by which the clock of a seal may be behind that of an event

Record = dict[str, Any]


class Query(NamedTuple):
    """What is asked for. ``field`` is message, recipient or message_id; ``since_ms``: nothing older."""

    field: str
    value: str
    since_ms: int

    @property
    def key(self) -> bytes:
        """The value as it is in JSON, without quotes."""
        return to_json(self.value)[1:-1]

    def matches(self, record: Record) -> bool:
        """Whether a record is about it."""
        if record["time_ms"] < self.since_ms:
            return False
        if record.get(self.field) == self.value:
            return True
        recipients = record.get("recipients")
        if self.field != "recipient" or not isinstance(recipients, list):
            return False
        return any(isinstance(each, dict) and each["recipient"] == self.value for each in recipients)


def make_query(text: str, since_ms: int) -> Query:
    """The query for what an operator typed: a queue id, an address, or a Message-ID with or without brackets.

    An address has no brackets: with them it is a Message-ID. Raises LocalError for an empty text.
    """
    text = text.strip()
    if not text or "\0" in text:
        raise LocalError("expected a queue id, an address or a Message-ID")
    if MESSAGE.match(text):
        return Query("message", text, max(since_ms, int(text[:12], 16) - CLOCK_MS))
    if "@" in text and not text.startswith("<"):
        with suppress(AddressError):
            text = normalise(text)
        return Query("recipient", text, since_ms)
    return Query("message_id", text, since_ms)


def events_of(directory: Path, text: str, since_ms: int, limit: int) -> list[Record]:
    """The events, in the order of their time, at most the last ``limit``.

    For a Message-ID those of the messages that were accepted with it. Damaged files count as far as they can be read.
    """
    query = make_query(text, since_ms)
    found = list(_search(directory, query))
    if query.field == "message_id":
        messages = sorted({record["message"] for record in found if "message" in record})
        found = [
            each for message in messages for each in _search(directory, make_query(message, since_ms))
        ]
    unique = {(each["node"], each["seq"], each["position"]): each for each in found}
    return sorted(unique.values(), key=_order)[-limit:]


def _order(record: Record) -> tuple[Any, ...]:
    return record["time_ms"], record["node"], record["seq"], record["position"]


def _search(directory: Path, query: Query) -> Iterator[Record]:
    key = query.key
    value = hash_of(key)
    for lines in _candidates(directory, query.since_ms, value):
        yield from in_lines(lines, query)


def in_lines(lines: bytes, query: Query) -> Iterator[Record]:
    """The records in JSON lines that a query matches. Only lines with its key are parsed."""
    key, at = query.key, 0
    while (at := lines.find(key, at)) >= 0:
        start, end = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at)
        end = len(lines) if end < 0 else end
        record = from_json(lines[start:end])
        if query.matches(record):
            yield record
        at = end + 1


def _candidates(directory: Path, since_ms: int, value: int) -> Iterator[bytes]:
    """The lines of segments that may have the key with the hash ``value``."""
    opened = list(open_frames(directory))  # first: one that is sealed meanwhile is found below
    earliest = clock.utc(max(0, since_ms - CLOCK_MS))
    first_day, first_hour = f"date={earliest:%Y-%m-%d}", f"hour={earliest:%H}"
    for day in sorted(each for each in directory.glob("date=*") if each.name >= first_day):
        for hour in sorted(day.glob("hour=*")):
            if day.name > first_day or hour.name >= first_hour:
                yield from _in_hour(hour, value)
    yield from opened


def _in_hour(hour: Path, value: int) -> Iterator[bytes]:
    absent = {name for name, bits in read_index(hour) if not may_have(bits, value)}
    for path in sorted(hour.glob("*.jsonl.zst")):
        if path.name in absent:
            continue
        try:
            for frame in read_frames(frames_of(path), path):
                yield frame.lines
        except (SegmentDamaged, FileNotFoundError):
            continue  # `zonemta audit` names it


def main(directory: str, text: str, since_ms: str, limit: str) -> None:
    """Print the events as JSON lines."""
    for record in events_of(Path(directory), text, int(since_ms), int(limit)):
        sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
