"""The recipients that wait for one destination: a queue for each submitter, served round-robin (decision 29).

A million recipients of one customer do not delay the one message of another.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from zonemta_py.queue.format.records import Waiting


class QueuedRecipient:
    """A waiting recipient in a ready window or a lease. ``key`` is its ``delivery-zone/`` key.

    ``withdrawn``: still in its submitter queue, but taken by an operator; it is skipped.
    """

    __slots__ = ("address", "key", "message", "record", "withdrawn", "zone")

    def __init__(self, key: bytes, zone: str, message: str, address: str, record: Waiting) -> None:
        self.key = key
        self.zone = zone
        self.message = message
        self.address = address
        self.record = record
        self.withdrawn = False


class SubmitterQueues:
    """One destination's recipients; in each queue the oldest comes first. ``length`` counts all."""

    __slots__ = ("_queues", "length")

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[QueuedRecipient]] = OrderedDict()
        self.length = 0

    def count(self, submitter: str) -> int:
        """The number of recipients of ``submitter``."""
        queue = self._queues.get(submitter)
        return len(queue) if queue is not None else 0

    def append(self, recipient: QueuedRecipient) -> None:
        """Put ``recipient`` at the end of its submitter's queue."""
        submitter = recipient.record.submitter
        queue = self._queues.get(submitter)
        if queue is None:
            queue = self._queues[submitter] = deque()
        queue.append(recipient)
        self.length += 1

    def put_back(self, recipients: Iterable[QueuedRecipient]) -> None:
        """Put recipients at the front of their queue, in order, and make that queue the next."""
        for recipient in reversed(list(recipients)):
            submitter = recipient.record.submitter
            self._queues.setdefault(submitter, deque()).appendleft(recipient)
            self._queues.move_to_end(submitter, last=False)
            self.length += 1

    def take(self, limit: int) -> list[QueuedRecipient]:
        """Remove up to ``limit`` recipients of the oldest message in the next queue that has any."""
        taken: list[QueuedRecipient] = []
        while self._queues and not taken:
            submitter, queue = self._queues.popitem(last=False)
            before = len(queue)
            while queue and len(taken) < limit and (not taken or queue[0].message == taken[0].message):
                recipient = queue.popleft()
                if not recipient.withdrawn:
                    taken.append(recipient)
            self.length -= before - len(queue)
            if queue:
                self._queues[submitter] = queue
        return taken

    def __iter__(self) -> Iterator[QueuedRecipient]:
        for queue in self._queues.values():
            yield from queue
