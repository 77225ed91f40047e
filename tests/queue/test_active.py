"""The count of a message's recipients: kept in memory, or made from the store."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, begin, lease, make_queue, opened, settle
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue import messages
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.storage.interface import View

TO = ["a@x.example", "b@x.example", "c@y.example"]


def counts_made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages whose recipients are counted in the store from now on."""
    found: list[str] = []
    count = messages.count_remaining

    def counted(view: View, message: str, zones: Sequence[str]) -> object:
        found.append(message)
        return count(view, message, zones)

    monkeypatch.setattr(messages, "count_remaining", counted)
    return found


def messages_in(queue: Queue) -> list[bytes]:
    return list(queue.store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE)))


async def test_a_new_message_is_not_counted_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is in memory but the count: it ends with its last recipient, and not before."""
    counted = counts_made(monkeypatch)
    async with opened(directory, cache=0) as queue:
        await accept(queue, *TO)
        first = lease(queue, "x.example")
        assert len(first.recipients) == 2
        await settle(queue, first, OutcomeKind.DELIVERED)
        assert messages_in(queue)
        assert counted == []
        second = lease(queue, "y.example")  # the entry was forgotten
        await settle(queue, second, OutcomeKind.DELIVERED)
        assert counted == []
        assert messages_in(queue) == []


async def test_what_was_tried_is_not_counted_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released, deferred and due again, in part: each time the number is that of the store."""
    clock = Clock()
    async with opened(directory, clock, cache=0) as queue:
        counted = counts_made(monkeypatch)
        await accept(queue, *TO)
        await queue.release(lease(queue, "x.example"))
        deferred = lease(queue, "x.example")
        await settle(queue, deferred, OutcomeKind.DEFERRED, clock.ms + 1000)
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DELIVERED)
        clock.ms += 2000
        while await queue.deferral.wake_due(clock.ms):
            pass
        await until(lambda: not queue.deferral.moving, "the wake")
        assert counted == []
        again = lease(queue, "x.example")
        assert again.active.remaining == 2
        await settle(queue, again, OutcomeKind.DELIVERED)
        assert messages_in(queue) == []


async def test_what_has_notes_is_counted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the store too, for the report at its end."""
    async with opened(directory, cache=0) as queue:
        await accept(queue, *TO)
        await settle(queue, lease(queue, "x.example"), OutcomeKind.BOUNCED)
        counted = counts_made(monkeypatch)
        last = lease(queue, "y.example")
        assert (len(counted), last.active.remaining) == (len(last.active.notes) > 0, 1)
        await settle(queue, last, OutcomeKind.DELIVERED)
        assert messages_in(queue) == []


async def test_keys_of_recipients(directory: Path) -> None:
    """As many as there are, unless another lease may have settled some that are still in the store."""
    async with opened(directory, cache=0) as queue:
        message = await accept(queue, *TO)
        entry = queue.acquire_message(message)
        assert len(list(messages.recipient_keys(queue.store, entry))) == 3
        entry.remaining = 1
        assert len(list(messages.recipient_keys(queue.store, entry))) == 1
        held = lease(queue, "x.example")
        assert len(list(messages.recipient_keys(queue.store, entry))) == 3
        await queue.release(held)
        entry.remaining = 3
        queue.release_message(entry)


async def test_the_number_of_counts_is_bounded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "COUNTS_MAX", 2)
    counted = counts_made(monkeypatch)
    async with opened(directory, cache=0) as queue:
        for _ in range(4):
            await accept(queue, *TO[:1])
        for _ in range(4):
            await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
        assert len(counted) == 2
        assert messages_in(queue) == []


async def test_another_life_counts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(directory, cache=0) as queue:
        await accept(queue, *TO[:2])
    counted = counts_made(monkeypatch)
    later = make_queue(directory, Clock(), cache=0)
    await begin(later)
    await settle(later, lease(later, "x.example"), OutcomeKind.DELIVERED)
    assert len(counted) == 1
    assert messages_in(later) == []
    await later.close()
