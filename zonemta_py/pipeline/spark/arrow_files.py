"""Tables of Arrow as single Parquet files, on any file system that Spark reaches."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.storage import is_url, read_bytes, write_bytes

GROUP_ROWS = 100_000  # that are read or left out together
CODECS = {"uncompressed": "none", "lz4raw": "lz4", "lz4_raw": "lz4"}  # of Spark, in Arrow


def arrow_codec(spark: SparkSession) -> str:
    """The compression that the session has for Parquet, as Arrow names it."""
    codec = str(spark.conf.get("spark.sql.parquet.compression.codec")).lower()
    return CODECS.get(codec, codec)


def write_table(spark: SparkSession, path: str, table: pa.Table) -> None:
    """Write a file, or replace it. Raises LocalError."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=GROUP_ROWS)
    write_bytes(spark, path, sink.getvalue().to_pybytes())


def read_table(spark: SparkSession, path: str) -> pa.Table:
    """The rows of a file. Raises LocalError."""
    return _read(path, pa.BufferReader(read_bytes(spark, path)) if is_url(path) else path)


def read_tables(
    spark: SparkSession, paths: Sequence[str], schema: pa.Schema, rows: pc.Expression
) -> pa.Table:
    """The columns of ``schema`` of files, one behind the other: the rows for which ``rows`` holds. Raises LocalError."""
    options = {
        "schema": schema,
        "filters": rows,
    }  # a column that an earlier version did not write is null
    if not paths:
        return schema.empty_table()
    if not any(map(is_url, paths)):  # Arrow reads several at the same time
        return _read(paths[0].rpartition("/")[0], list(paths), **options).cast(schema)
    files = ((path, pa.BufferReader(read_bytes(spark, path))) for path in paths)
    return pa.concat_tables(_read(path, file, **options).cast(schema) for path, file in files)


def _read(name: str, source: Any, **options: Any) -> pa.Table:
    try:
        return pq.read_table(source, partitioning=None, **options)
    except FileNotFoundError as exc:
        raise LocalError(f"{exc}: no such file") from exc
    except (pa.ArrowInvalid, OSError) as exc:
        raise LocalError(f"{name}: cannot be read: {exc}") from exc
