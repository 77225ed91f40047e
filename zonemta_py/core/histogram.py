"""Numbers of values by size, for distributions that are read rarely and added to often."""

from bisect import bisect_left
from collections.abc import Iterable


class Histogram:
    """Counts of values up to each of ``bounds``, and of larger ones; ``total`` is the sum of the values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, values up to it) as Prometheus has them; the last is ``+Inf``."""
        seen, found = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            found.append(("+Inf" if bound == float("inf") else repr(float(bound)), seen))
        return found
