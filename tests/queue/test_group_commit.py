"""What a group writes of its batches."""

import asyncio
from pathlib import Path

import pytest

from tests.kit.queue import opened
from zonemta_py.queue.commit import CommitFuture, WriteBatch
from zonemta_py.storage.interface import Op


async def test_of_latest_values_the_last_is_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for all batches of a group, whatever else they write; a deletion counts as well."""
    async with opened(directory) as queue:
        written: list[list[Op]] = []
        make = queue.store.batch

        def noted(ops: list[Op], *, sync: bool) -> object:
            written.append(list(ops))
            return make(ops, sync=sync)

        monkeypatch.setattr(queue.store, "batch", noted)
        for number in range(3):
            batch = WriteBatch()
            batch.put(b"meta/of-%d" % number, b"own")
            batch.put_latest([(b"meta/used", b"%d" % number), (b"meta/old", b"" if number else b"0")])
            future = queue.commits.submit(batch)
        await future
        [group] = written
        assert [op for op in group if op[0] in (b"meta/used", b"meta/old")] == [
            (b"meta/used", b"2"), (b"meta/old", None),
        ]  # fmt: skip
        assert queue.store.get(b"meta/of-0") == queue.store.get(b"meta/of-2") == b"own"
        batch = WriteBatch()
        batch.put_latest([(b"meta/used", b"3")])
        await queue.commits.submit(batch)
        assert queue.store.get(b"meta/used") == b"3", "a batch of nothing else"


async def test_what_is_submitted_while_it_closes_is_written_or_refused(directory: Path) -> None:
    """Each batch has a result, and those without a failure are on disk. Seed 32042."""
    async with opened(directory) as queue:
        made = list[CommitFuture]()

        def submit() -> None:
            batch = WriteBatch()
            batch.put(b"meta/late-%d" % len(made), b"x")
            made.append(queue.commits.submit(batch))

        submit()
        closing = asyncio.ensure_future(queue.commits.close())
        while not closing.done():
            await asyncio.sleep(0)
            submit()
        assert all(each.done for each in made)
        assert made[0].failure is None and made[-1].failure is not None
        written = [queue.store.get(b"meta/late-%d" % n) is not None for n in range(len(made))]
        assert written == [each.failure is None for each in made]
