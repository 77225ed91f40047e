"""Files by the hour of the events."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyspark")
hour_files = pytest.importorskip("zonemta_py.pipeline.events.compact")

SCHEMA = pa.schema([("seq", pa.int64()), ("time_ms", pa.int64()), ("recipient", pa.string())])
NONE = "__HIVE_DEFAULT_PARTITION__"


def rows(times_ms: list[int | None], first: int = 0) -> Any:
    numbers = list(range(first, first + len(times_ms)))
    return pa.table([numbers, times_ms, [f"r{n}" for n in numbers]], schema=SCHEMA)


def test_hours(tmp_path: Path) -> None:
    """Named as Spark names them; events keep their order; what has no time, or none that has a date, is apart."""
    files = hour_files.HourFiles(tmp_path, SCHEMA, "zstd")
    files.add(rows([HOUR_BEGINS_MS + HOUR_MS, HOUR_BEGINS_MS + 5, None, HOUR_BEGINS_MS, 1 << 60]))
    files.add(rows([HOUR_BEGINS_MS - 1, -1], 5))
    files.close()
    found = {Path(path).parent.as_posix(): pq.read_table(tmp_path / path, partitioning=None).column("seq").to_pylist() for path in files.written}  # fmt: skip
    assert found == {
        "date=2027-01-15/hour=2": [1, 3], "date=2027-01-15/hour=3": [0], "date=2027-01-15/hour=1": [5],
        f"date={NONE}/hour={NONE}": [2, 4], "date=1969-12-31/hour=23": [6],
    }  # fmt: skip
    assert sorted(files.written.values()) == [1, 1, 1, 2, 2]


def test_more_hours_than_files_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost or written over, whatever is in memory at once."""
    monkeypatch.setattr(hour_files, "OPEN_MAX", 3)
    monkeypatch.setattr(hour_files, "GROUP_ROWS", 5)
    monkeypatch.setattr(hour_files, "WAITING_ROWS", 20)
    files = hour_files.HourFiles(tmp_path, SCHEMA, "snappy")
    for n in range(50):
        files.add(rows([HOUR_BEGINS_MS + (k * 7 % 11) * HOUR_MS for k in range(12)], n * 12))
    files.close()
    on_disk = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")}
    assert on_disk == set(files.written)
    tables = {path: pq.read_table(tmp_path / path, partitioning=None) for path in files.written}
    assert {path: table.num_rows for path, table in tables.items()} == files.written
    assert sorted(n for table in tables.values() for n in table.column("seq").to_pylist()) == list(range(600))  # fmt: skip
    for path, table in tables.items():
        hours = {ms // HOUR_MS for ms in table.column("time_ms").to_pylist()}
        assert len(hours) == 1 and path.count("/") == 2
