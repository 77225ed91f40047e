"""Which events have been read: ranges of SEQ for each node. Pure.

An event is identified by node, SEQ and position, and a segment has all events of its SEQs. So what a segment repeats is known from
the ranges alone, without comparing events.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

Range = tuple[int, int]  # both ends belong to it


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
