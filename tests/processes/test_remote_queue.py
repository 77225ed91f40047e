"""What a receiver knows of the queue in the other process."""

from typing import cast

from zonemta_py.processes import receiver_protocol as protocol
from zonemta_py.processes.link import Link
from zonemta_py.processes.remote_queue import RemoteQueue
from zonemta_py.queue.batch import WriteBatch


class _NoLink:
    def send(self, frame: object) -> None:
        """Goes nowhere."""


def test_a_queue_that_has_failed_stays_so() -> None:
    """A write that began before the failure may succeed after it; clients are refused at MAIL all the same."""
    queue = RemoteQueue(cast(Link, _NoLink()), protocol.Welcome("000001", 1, "", 1))
    for _ in range(2):
        queue.write("m", WriteBatch())
    queue.handle(protocol.CommitResult(1, "the disk failed", True))
    queue.handle(protocol.CommitResult(2, "", True))
    assert str(queue.failure) == "the disk failed"
