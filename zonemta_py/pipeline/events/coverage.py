"""The parts of an event log that have been read: ranges of SEQ for each node. Pure.

An event is identified by node, SEQ and position, and a segment has all events of its SEQs. So what a segment repeats is known from
the ranges alone, without comparing events:

    read.add("a", 1, 80); read.add("a", 101, 120)
    read.missing("a", 60, 130)        (81, 100), (121, 130)

A group commit, the events of one SEQ, is read as a whole or not at all, also in a frame of which some lines are not JSON
(``whole_groups``): when the segment is restored, the rest of it is read then, and nothing twice.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from zonemta_py.core.codec import from_json

Range = tuple[int, int]  # both ends belong to it
_HEAD = re.compile(rb'\{"node":"[^"]*","seq":(\d{1,19}),')


class Coverage:
    """The ranges read of each node, in order; none touches another."""

    def __init__(self, ranges: Mapping[str, Sequence[Sequence[int]]] | None = None) -> None:
        self._ranges: dict[str, list[Range]] = {
            node: [(first, last) for first, last in each] for node, each in (ranges or {}).items()
        }

    @property
    def ranges(self) -> Mapping[str, Sequence[Range]]:
        """The ranges by node; ``Coverage`` makes the same from it."""
        return self._ranges

    def add(self, node: str, first: int, last: int) -> None:
        """The events from ``first`` to ``last`` are read."""
        ranges = self._ranges.setdefault(node, [])
        begin = bisect_left(ranges, first - 1, key=lambda each: each[1])
        end = begin
        while end < len(ranges) and ranges[end][0] <= last + 1:
            first, last = min(first, ranges[end][0]), max(last, ranges[end][1])
            end += 1
        ranges[begin:end] = [(first, last)]

    def missing(self, node: str, first: int, last: int) -> tuple[Range, ...]:
        """The parts of ``first`` to ``last`` that are not read."""
        found: list[Range] = []
        ranges = self._ranges.get(node, [])
        for begin, end in ranges[bisect_left(ranges, first, key=lambda each: each[1]) :]:
            if begin > last:
                break
            if begin > first:
                found.append((first, begin - 1))
            first = end + 1
        if first <= last:
            found.append((first, last))
        return tuple(found)


def whole_groups(lines: bytes) -> tuple[list[Range], int]:
    """The ranges of SEQ of which ``lines``, a frame, has every event; and the number of their lines."""
    each = list(lines.splitlines())
    places = list(map(_place, each))
    known = [place for place in places if place is not None]
    if not known:
        return [], 0
    found: list[Range] = []
    begin, last = known[0][0], known[-1][0]
    if len(known) < len(places):
        for low, high in _torn(each, places):
            if begin < low:
                found.append((begin, low - 1))
            begin = max(begin, high + 1)
    if begin <= last:
        found.append((begin, last))
    return found, sum(_is_in(seq, found) for seq, _ in known)


def whole_lines(lines: bytes, ranges: Sequence[Range]) -> bytes:
    """Those of ``lines`` that are JSON, and whose SEQ is in ``ranges``."""
    ordered = sorted(ranges)
    return b"".join(
        line
        for line in lines.splitlines(keepends=True)
        if (place := _place(line)) is not None and _is_in(place[0], ordered)
    )


def _is_in(seq: int, ordered: Sequence[Range]) -> bool:
    at = bisect_left(ordered, seq, key=itemgetter(1))
    return at < len(ordered) and ordered[at][0] <= seq


def _place(line: bytes) -> tuple[int, int] | None:
    """SEQ and position of an event; None for a line that is no event."""
    try:
        record = from_json(line)
        seq, position = record["seq"], record["position"]
    except (ValueError, KeyError, TypeError):
        return None
    return (seq, position) if type(seq) is int and type(position) is int else None


def _torn(lines: Sequence[bytes], places: Sequence[tuple[int, int] | None]) -> Iterator[Range]:
    """The SEQs that may lack an event, in order: one range for each row of torn lines.

    A tear may also have taken lines as a whole, from the beginning of the torn line to the next whole one.
    """
    before = next(place[0] for place in places if place is not None) - 1
    at = 0
    while at < len(places):
        if (place := places[at]) is not None:
            before, at = place[0], at + 1
            continue
        head = _HEAD.match(lines[at])
        low = max(before, int(head[1])) if head else before  # what is in front of a head was read
        while at < len(places) and places[at] is None:
            at += 1
        if at == len(places):
            yield low, max(seq for seq, _ in filter(None, places))
            return
        seq, position = places[at] or (low, 0)
        if low > seq:
            low = before
        yield low, seq if position or low == seq else seq - 1
