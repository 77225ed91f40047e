"""The rows that a running job has written."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.deadlines import until

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
progress = pytest.importorskip("zonemta_py.pipeline.spark.tables")


async def test_a_directory_that_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may remove a temporary directory between the listing of its parent and its own."""
    removed = tmp_path / "a" / "_temporary"
    removed.mkdir(parents=True)
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "b.parquet")
    original = os.scandir

    def scandir(path: str | Path) -> "Iterator[os.DirEntry[str]]":
        if str(path) == str(removed) and removed.exists():
            removed.rmdir()
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(progress, "POLL_S", 0.01)
    counts: list[int] = []
    with progress.report_rows(str(tmp_path), counts.append):
        await until(lambda: bool(counts))
    assert counts == [3]
    assert not removed.exists()
