"""Message ids: 24 lower-case hex digits, ordered by time, unique across nodes, never reused.

Layout: 12 digits unix ms, 6 digits counter within that ms, 6 digits node. Processes of one node
count in lanes of their own: the counter's upper 7 bits are the lane, 0 that of the queue's process. A
clock that goes back does not take the ids with it: the highest id issued is kept on disk with the
batches that use ids.
"""

LANE_BITS = 17
LANES = 1 << (24 - LANE_BITS)


class MessageIds:
    """Issues ids for one lane of a node, above ``last``.

    ``last`` is the highest id known, as ``meta/ids`` stores it.
    """

    def __init__(self, node: str, last: str, lane: int = 0) -> None:
        assert len(node) == 6
        assert 0 <= lane < LANES
        self._node = node
        self._first = lane << LANE_BITS
        self._end = (lane + 1) << LANE_BITS
        self._ms = 0
        self._counter = self._first
        self.last = ""
        if last:
            self.note(last)

    def next(self, now_ms: int) -> str:
        """An id greater than every one before it."""
        if now_ms > self._ms:
            self._ms, self._counter = now_ms, self._first
        elif self._counter + 1 >= self._end:
            self._ms, self._counter = self._ms + 1, self._first
        else:
            self._counter += 1
        self.last = f"{self._ms:012x}{self._counter:06x}{self._node}"
        return self.last

    def note(self, message: str) -> None:
        """Another lane issued ``message``, or this one in another life: what follows is greater."""
        if message > self.last:
            self.last = message
            self._ms, counter = int(message[:12], 16), int(message[12:18], 16)
            self._counter = counter if self._first <= counter < self._end else self._end
