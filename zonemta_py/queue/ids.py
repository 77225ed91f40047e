"""Message ids: 24 lower-case hex digits, ordered by time, unique across nodes, never reused.

Layout: 12 digits unix ms, 6 digits counter within that ms, 6 digits node. A clock that goes back
does not take the ids with it: the last id issued is kept on disk with the batches that use ids.
"""

COUNTER_MAX = 0xFFFFFF


class MessageIds:
    """Issues ids for one node. ``last`` is the highest issued, as ``meta/ids`` stores it."""

    def __init__(self, node: str, last: str) -> None:
        assert len(node) == 6
        self._node = node
        self._ms = int(last[:12] or "0", 16)
        self._counter = int(last[12:18] or "0", 16)
        self.last = last

    def next(self, now_ms: int) -> str:
        """An id greater than every one before it."""
        if now_ms > self._ms:
            self._ms, self._counter = now_ms, 0
        elif self._counter == COUNTER_MAX:
            self._ms, self._counter = self._ms + 1, 0
        else:
            self._counter += 1
        self.last = f"{self._ms:012x}{self._counter:06x}{self._node}"
        return self.last
