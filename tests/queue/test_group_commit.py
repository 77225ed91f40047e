"""What a group writes of its batches."""

from pathlib import Path

import pytest

from tests.kit.queue import opened
from zonemta_py.queue.commit import WriteBatch
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
