"""The files of the sums of a report that is kept up to date."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.segments import delivered
from zonemta_py.core.codec import to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

report_sums = pytest.importorskip("zonemta_py.pipeline.report.sums")


def test_sums_of_a_version_without_classes(tmp_path: Path) -> None:
    """They are read, and added to those of today."""
    from zonemta_py.pipeline.report.attempts import TaskSums, decode_attempts
    from zonemta_py.pipeline.report.tables import replies_table

    spark = cast("SparkSession", None)  # a path of this machine needs none

    def sums_of(**changes: str) -> pa.Table:
        refused = {
            "event": "bounced",
            "code": 550,
            "status": "5.1.1",
            "reply": "no such user",
            **changes,
        }
        found = TaskSums()
        for rows in decode_attempts([to_json(delivered(n, **refused)) + b"\n" for n in range(1, 4)]):
            found.add(rows)
        return pa.concat_tables(found.tables(1000))

    first = report_sums.ReportSums(spark, str(tmp_path), {}).added(sums_of(), 1)
    for path in tmp_path.glob("*.parquet"):
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns("class"), path)
    assert replies_table(first.totals("replies")).column("count").to_pylist() == [3]
    assert first.timed(["replies"]).column("class").to_pylist() == [None]
    second = first.added(sums_of(**{"class": "invalid_recipient"}), 2)
    (row,) = replies_table(second.totals("replies")).to_pylist()
    assert (row["reason"], row["count"]) == ("invalid_recipient", 6)
    assert sorted(second.timed(["replies"]).column("class").to_pylist(), key=str) == [
        None,
        "invalid_recipient",
    ]
