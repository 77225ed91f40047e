"""The recipients that wait for one destination: a lane for each submitter, served in turn.

So a million recipients of one customer do not stand in front of the one message of another.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from zonemta_py.queue.format.records import Waiting


class Recipient:
    """A waiting recipient in the window or in a lease. ``key`` is its ``delivery-zone/`` key.

    ``void``: still in a lane, but an operator has taken it out.
    """

    __slots__ = ("address", "key", "message", "record", "void", "zone")

    def __init__(self, key: bytes, zone: str, message: str, address: str, record: Waiting) -> None:
        self.key = key
        self.zone = zone
        self.message = message
        self.address = address
        self.record = record
        self.void = False


class SubmitterQueues:
    """One destination's recipients. Within a lane the oldest comes first; ``length`` counts all."""

    __slots__ = ("_lanes", "length")

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[Recipient]] = OrderedDict()
        self.length = 0

    def of(self, submitter: str) -> int:
        """How many recipients of ``submitter`` wait."""
        lane = self._lanes.get(submitter)
        return len(lane) if lane is not None else 0

    def append(self, recipient: Recipient) -> None:
        """Put ``recipient`` at the end of its lane."""
        submitter = recipient.record.submitter
        lane = self._lanes.get(submitter)
        if lane is None:
            lane = self._lanes[submitter] = deque()
        lane.append(recipient)
        self.length += 1

    def put_back(self, recipients: Iterable[Recipient]) -> None:
        """Put recipients in front of their lane, in their order, and that lane in front of the others."""
        for recipient in reversed(list(recipients)):
            submitter = recipient.record.submitter
            self._lanes.setdefault(submitter, deque()).appendleft(recipient)
            self._lanes.move_to_end(submitter, last=False)
            self.length += 1

    def take(self, most: int) -> list[Recipient]:
        """Up to ``most`` recipients of the oldest message in the lane whose turn it is."""
        taken: list[Recipient] = []
        while self._lanes and not taken:
            submitter, lane = self._lanes.popitem(last=False)
            before = len(lane)
            while lane and len(taken) < most and (not taken or lane[0].message == taken[0].message):
                recipient = lane.popleft()
                if not recipient.void:
                    taken.append(recipient)
            self.length -= before - len(lane)
            if lane:
                self._lanes[submitter] = lane
        return taken

    def __iter__(self) -> Iterator[Recipient]:
        for lane in self._lanes.values():
            yield from lane
