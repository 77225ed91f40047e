"""The check finds what it is for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.queue import Clock, accept, lease, opened, problems, settle
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Op


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (lambda m: [(keys.meta_key(m), None)], "marker without its envelope"),
        (lambda m: [(keys.mark_key(m), None)], "envelope without its marker"),
        (
            lambda m: [(keys.mark_key(m), None), (keys.meta_key(m), None)],
            "chunks without a marker that are neither being written nor removed",
        ),
        (lambda m: [(keys.chunk_key(m, 1), b"other\r")], "damaged"),
        (lambda m: [(keys.chunk_key(m, 1), None)], "missing"),
        (lambda m: [(keys.chunk_key(m, 2), b"more")], "more chunks"),
        (lambda m: [(keys.open_key(m), b"")], "being written or removed"),
        (lambda m: [(keys.waiting_key("default", m, "a@x.example"), b"\xc1")], "RecipientRecord"),
        (lambda m: [(keys.waiting_key("elsewhere", m, "a@x.example"), None)], ""),
        (lambda m: [(keys.inflight_key("0" * 24, 1), b"")], "transaction without a message"),
        (lambda m: [(b"due/nonsense", b"")], "not a due key"),
    ],
)
async def test_finds(directory: Path, spoil: Callable[[str], list[Op]], finding: str) -> None:
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example")
        assert problems(queue.store) == []
        queue.store.write(queue.store.batch(spoil(message), sync=True))
        found = problems(queue.store)
        assert any(finding in problem for problem in found) if finding else found == []


async def test_finds_recipients_astray(directory: Path) -> None:
    clock = Clock()
    async with opened(directory, clock) as queue:
        message = await accept(queue, "a@x.example", "b@y.example")
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DEFERRED, clock.ms + 1000)
        value = queue.store.get(keys.waiting_key("default", message, "a@x.example"))
        assert value
        ops = [
            (keys.deferred_key("default", message, "a@x.example"), value),
            (keys.due_key(clock.ms + 1000, "default", message), None),
            (keys.waiting_key("default", "f" * 24, "c@z.example"), value),
            (keys.waiting_key("other", message, "d@z.example"), value),
        ]
        queue.store.write(queue.store.batch(ops, sync=True))
        found = "\n".join(problems(queue.store))
        for finding in (
            "in two places",
            "deferred without a due key",
            "recipient without a message",
            "zone other is not among",
        ):
            assert finding in found
