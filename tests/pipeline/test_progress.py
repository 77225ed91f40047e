"""What is told while a job writes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.deadlines import until
from zonemta_py.pipeline.spark import progress


async def test_a_folder_that_goes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark removes its temporary folders at the end, between our look at the parent and at the folder."""
    going = tmp_path / "a" / "_temporary"
    going.mkdir(parents=True)
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "b.parquet")
    looked = os.scandir

    def scandir(path: str | Path) -> "Iterator[os.DirEntry[str]]":
        if str(path) == str(going) and going.exists():
            going.rmdir()
        return looked(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(progress, "POLL_S", 0.01)
    told: list[int] = []
    with progress.rows_told(str(tmp_path), told.append):
        await until(lambda: bool(told))
    assert told == [3]
    assert not going.exists()
