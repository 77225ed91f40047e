"""Tables of Arrow as single Parquet files, on any file system that Spark reaches."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.storage import is_url, read_bytes, write_bytes

GROUP_ROWS = 100_000  # that are read or left out together


def write_table(spark: SparkSession, path: str, table: pa.Table) -> None:
    """Write a file, or replace it. Raises LocalError."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=GROUP_ROWS)
    write_bytes(spark, path, sink.getvalue().to_pybytes())


def read_table(
    spark: SparkSession, path: str, columns: Sequence[str] | None = None, rows: Any = None
) -> pa.Table:
    """The rows of a file; ``rows``: an expression of Arrow, those for which it holds. Raises LocalError."""
    source = pa.BufferReader(read_bytes(spark, path)) if is_url(path) else path
    try:
        return pq.read_table(source, columns=columns, filters=rows, partitioning=None)
    except (pa.ArrowInvalid, OSError) as exc:
        raise LocalError(f"{path}: cannot be read: {exc}") from exc
