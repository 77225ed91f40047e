"""What a receiver knows of the queue in the other process."""

from typing import cast

import pytest

from zonemta_py.core import clock
from zonemta_py.processes import receiver_protocol as protocol
from zonemta_py.processes.link import Link
from zonemta_py.processes.receiver_process import RemoteQueue
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.submitters.limits import LimitedClient, Use


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


class _RecordedLink:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def send(self, frame: object) -> None:
        self.calls.append(frame)

    def flush(self) -> None:
        self.calls.append("flush")


def test_a_key_is_free_before_its_client_has_a_reply() -> None:
    """The reply follows in the same turn of the loop, and the client may use the key again with another receiver."""
    link = _RecordedLink()
    RemoteQueue(cast(Link, link), protocol.Welcome("000001", 1, "", 1)).release("digest")
    assert link.calls == [protocol.ReleaseKey("digest"), "flush"]


def test_a_limit_that_is_reached_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is refused for as long as the queue's process said, not until the clock has that time again."""
    queue = RemoteQueue(cast(Link, _NoLink()), protocol.Welcome("000001", 1, "", 1))
    client, now_ms, now_s = LimitedClient("", "", "192.0.2.1"), clock.now_ms(), clock.monotonic_s()
    queue.charge(client, Use(messages=1))
    queue.handle(protocol.ChargeResult(1, "450 4.7.1 limit", now_ms + 60_000))
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms - 30 * 86_400_000)
    assert queue.closed(client) == "450 4.7.1 limit"
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s + 61)
    assert queue.closed(client) == ""
