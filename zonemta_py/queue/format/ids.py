"""Message ids: 24 lower-case hex digits, ordered by time, unique across nodes, never reused.

Layout: 12 digits unix ms, 6 digits counter within that ms, 6 digits node. Each process
of a node has a worker index, which is the upper 7 bits of the counter; that of the queue's process is 0.
When the clock goes back, ids do not: the highest one issued is on disk, written with the batches that
use ids.
"""

WORKER_SHIFT = 17
WORKERS_MAX = 1 << (24 - WORKER_SHIFT)


class MessageIds:
    """Issues ids greater than ``last``, the highest id known, as ``meta/ids`` stores it."""

    def __init__(self, node: str, last: str, worker: int = 0) -> None:
        assert len(node) == 6
        assert 0 <= worker < WORKERS_MAX
        self._node = node
        self._first = worker << WORKER_SHIFT
        self._end = (worker + 1) << WORKER_SHIFT
        self._ms = 0
        self._counter = self._first
        self.last = ""
        if last:
            self.note(last)

    def next(self, now_ms: int) -> str:
        """An id greater than all before it."""
        if now_ms > self._ms:
            self._ms, self._counter = now_ms, self._first
        elif self._counter + 1 >= self._end:
            self._ms, self._counter = self._ms + 1, self._first
        else:
            self._counter += 1
        self.last = f"{self._ms:012x}{self._counter:06x}{self._node}"
        return self.last

    def note(self, message: str) -> None:
        """Another process issued ``message``, or a previous boot: the following ids are greater."""
        if message > self.last:
            self.last = message
            self._ms, counter = int(message[:12], 16), int(message[12:18], 16)
            self._counter = counter if self._first <= counter < self._end else self._end


def last_id_before(now_ms: int) -> str:
    """An id that is greater than every one made before ``now_ms``, and less than those made from then on."""
    return f"{now_ms - 1:012x}" + "f" * 12
