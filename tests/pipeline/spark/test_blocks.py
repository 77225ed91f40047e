"""Rows that are distributed in blocks."""

from itertools import chain, pairwise
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
blocks = pytest.importorskip("zonemta_py.pipeline.spark.arrow")

ROWS = 5000


def batches(begin: int, end: int) -> list[Any]:
    """Rows of ``normalise_rows``: each address is there twice, in another case, and each tenth row has none."""
    numbers = range(begin, end)
    address = [None if n % 10 == 9 else f"{'R' if n % 2 else 'r'}{n // 2}@x.example" for n in numbers]
    table = pa.table(
        {
            "position": pa.array(numbers, pa.int64()),
            "given": pa.array([f"row {n}" for n in numbers], pa.string()),
            "address": pa.array(address, pa.string()),
            "folded": pa.nulls(len(numbers), pa.string()),
            "reason": pa.array([None if each else "bad" for each in address], pa.string()),
            "send_at_ms": pa.array(numbers, pa.int64()),
        }
    )
    return list(table.to_batches(max_chunksize=300))


@pytest.mark.parametrize("case_sensitive", [False, True])
def test_each_row_once_and_equal_addresses_together(
    monkeypatch: pytest.MonkeyPatch, case_sensitive: bool
) -> None:
    monkeypatch.setattr(blocks, "DIVIDED_ROWS", 1000)
    monkeypatch.setattr(blocks, "BATCH_ROWS", 100)
    how = blocks.Blocks(case_sensitive, 7, ("send_at_ms",))
    parts = (batches(0, ROWS // 2), batches(ROWS // 2, ROWS))  # of two tasks
    written = pa.Table.from_batches(chain.from_iterable(how.write(iter(part)) for part in parts))
    assert set(written.column("bucket").to_pylist()) == set(range(7))
    assert written.num_rows == 7 * 6
    arranged = pa.Table.from_batches(
        how.read(iter(written.sort_by("bucket").to_batches(max_chunksize=4)))
    )
    assert sorted(arranged.column("position").to_pylist()) == list(range(ROWS))
    assert arranged.column("send_at_ms").equals(arranged.column("position"))
    assert arranged.column("given").to_pylist() == [
        f"row {n}" for n in arranged.column("position").to_pylist()
    ]
    keys = [
        (each if case_sensitive else each.lower()) if each else position
        for each, position in zip(*(arranged.column(name).to_pylist() for name in ("address", "position")), strict=True)
    ]  # fmt: skip
    changes = sum(a != b for a, b in pairwise(keys))
    assert changes == len(set(keys)) - 1, "equal keys are beside each other"
    seen: dict[object, int] = {}
    for key, position in zip(keys, arranged.column("position").to_pylist(), strict=True):
        assert seen.get(key, -1) < position, "in the order of the list"
        seen[key] = position
