"""Distributes rows in blocks of Arrow's own format: Spark moves a few binary values, instead of copying each row four times.

A task divides its rows by their digest into buckets. All blocks of a bucket come to one task, which sorts their rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.files import is_url, read_bytes, write_bytes

# ---- Spark's ``xxhash64`` of texts, by numpy: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, with seed 42.
#
# A step handles the same bytes of all texts that have them, so that the cost is that of the longest text's steps.

SEED = 42
PADDING = 32  # bytes that may be read behind the last text

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(each)
    for each in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


def xxhash64(texts: pa.StringArray, number: int | None = None) -> Numbers:
    """The hash of each text, and of ``number`` (32 bits) besides, as an ``int``; of null that of an empty text."""
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    padded = np.concatenate([data[ends[0] : ends[-1]], np.zeros(PADDING, np.uint8)])
    starts = (ends[:-1] - ends[0]).astype(np.int64)
    lengths = np.diff(ends).astype(np.int64)
    if texts.null_count:
        lengths[texts.is_null().to_numpy(zero_copy_only=False)] = 0
    with np.errstate(over="ignore"):
        found = _hashed(padded, starts, lengths)
        if number is not None:
            mixed = (found + _P5 + np.uint64(4)) ^ (np.uint64(number & 0xFFFFFFFF) * _P1)
            found = _mixed(_rotated(mixed, 23) * _P2 + _P3)
    return found.view(np.int64)


def _hashed(data: npt.NDArray[np.uint8], starts: Numbers, lengths: Numbers) -> Words:
    state = np.full(len(starts), np.uint64(SEED) + _P5)
    at = starts.copy()
    ends = starts + lengths
    long = np.flatnonzero(lengths >= 32)
    if len(long):
        state[long], at[long] = _stripes(data, at[long], ends[long])
    state += lengths.astype(np.uint64)
    while len(rows := np.flatnonzero(at + 8 <= ends)):
        mixed = state[rows] ^ _round(np.zeros(len(rows), np.uint64), _word(data, at[rows], 8))
        state[rows] = _rotated(mixed, 27) * _P1 + _P4
        at[rows] += 8
    if len(rows := np.flatnonzero(at + 4 <= ends)):
        mixed = state[rows] ^ (_word(data, at[rows], 4) * _P1)
        state[rows] = _rotated(mixed, 23) * _P2 + _P3
        at[rows] += 4
    while len(rows := np.flatnonzero(at < ends)):
        mixed = state[rows] ^ (data[at[rows]].astype(np.uint64) * _P5)
        state[rows] = _rotated(mixed, 11) * _P1
        at[rows] += 1
    return _mixed(state)


def _mixed(state: Words) -> Words:
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


def _stripes(data: npt.NDArray[np.uint8], at: Numbers, ends: Numbers) -> tuple[Words, Numbers]:
    """The state after all blocks of 32 bytes, and where they end."""
    seed = np.uint64(SEED)
    accumulators = [np.full(len(at), each) for each in (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)]
    while len(rows := np.flatnonzero(at + 32 <= ends)):
        for number, accumulator in enumerate(accumulators):
            accumulator[rows] = _round(accumulator[rows], _word(data, at[rows] + 8 * number, 8))
        at[rows] += 32
    state = sum((_rotated(accumulator, turn) for accumulator, turn in zip(accumulators, (1, 7, 12, 18), strict=True)), np.zeros(len(at), np.uint64))  # fmt: skip
    for accumulator in accumulators:
        state = (state ^ _round(np.zeros(len(at), np.uint64), accumulator)) * _P1 + _P4
    return state, at


def _round(state: Words, word: Words) -> Words:
    return _rotated(state + word * _P2, 31) * _P1


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _word(data: npt.NDArray[np.uint8], at: Numbers, size: int) -> Words:
    """The little-endian number of ``size`` bytes at each place."""
    windows = np.lib.stride_tricks.sliding_window_view(data, size)[at]
    return np.ascontiguousarray(windows).view(f"<u{size}")[:, 0].astype(np.uint64)


# ---- The blocks that are distributed.

BLOCK = StructType(
    [
        StructField("bucket", IntegerType()),
        StructField("block", BinaryType()),
        StructField("rows", IntegerType()),  # in the block
    ]
)
DIVIDED_ROWS = 200_000  # that are divided together
BATCH_ROWS = 100_000
BUCKETS_OF_TASK, PARTITIONS = 8, 32
ABSENT = ("suppressed", "apart", "apart_why")  # columns of ``arrange_rows`` that are null here


@dataclass(frozen=True, slots=True)
class Blocks:
    """``buckets``: how many there are; each must fit into memory. ``columns``: those besides the ones of NORMALISED."""

    case_sensitive: bool
    buckets: int
    columns: Sequence[str] = ()

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of BLOCK from those of ``normalise_rows``, with their ``digest``."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= DIVIDED_ROWS:
                yield self._divided(waiting)
                waiting, rows = [], 0
        if rows:
            yield self._divided(waiting)

    def _divided(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        table = pa.Table.from_batches(batches).combine_chunks()
        digest = self._digests(table)
        bucket = (digest.view(np.uint64) % np.uint64(self.buckets)).astype(np.int64)
        order = np.argsort(bucket, kind="stable")
        table = table.append_column("digest", pa.array(digest)).take(pa.array(order)).combine_chunks()
        found, begins = np.unique(bucket[order], return_index=True)
        ends = [*begins[1:], len(order)]
        blocks = [_as_block(table.slice(a, b - a)) for a, b in zip(begins, ends, strict=True)]
        lengths = pa.array(np.subtract(ends, begins), pa.int32())
        arrays = [pa.array(found, pa.int32()), pa.array(blocks, pa.binary()), lengths]
        return pa.RecordBatch.from_arrays(arrays, names=BLOCK.names)

    def _digests(self, table: pa.Table) -> Numbers:
        """As ``arrange_rows``: of the address; rejected rows, which have none, have their position."""
        address, folded = (table.column(name).combine_chunks() for name in ("address", "folded"))
        key = address if self.case_sensitive else pc.coalesce(folded, pc.ascii_lower(address))
        is_missing = key.is_null().to_numpy(zero_copy_only=False)
        return np.where(is_missing, table.column("position").to_numpy(), xxhash64(key.cast(pa.string())))

    def distribute(self, rows: DataFrame) -> DataFrame:
        """Rows of BLOCK, those of a bucket together."""
        partitions = self.buckets // BUCKETS_OF_TASK
        # Spark joins small partitions of a number that it has chosen.
        by_bucket = (
            rows.repartition("bucket")
            if partitions < PARTITIONS
            else rows.repartition(partitions, "bucket")
        )
        return by_bucket.sortWithinPartitions("bucket")

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of blocks that are sorted by their bucket, as ``arrange_rows`` gives them."""
        bucket, waiting = None, list[pa.Table]()
        for batch in batches:
            for number, block, _ in zip(*batch.columns, strict=True):
                if waiting and number != bucket:
                    yield from _arranged(waiting)
                    waiting = []
                bucket = number
                waiting.append(pa.ipc.open_stream(block.as_buffer()).read_all())
        if waiting:
            yield from _arranged(waiting)


def _as_block(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    block: bytes = sink.getvalue().to_pybytes()
    return block


def _arranged(blocks: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    table = pa.concat_tables(blocks).combine_chunks()
    order = np.lexsort([table.column(name).to_numpy() for name in ("position", "digest")])
    table = table.take(pa.array(order))
    for name in ABSENT:
        table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
    yield from table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


# ---- Tables of Arrow as single Parquet files, on any file system that Spark reaches.

GROUP_ROWS = 100_000  # that are read or left out together
CODECS = {"uncompressed": "none", "lz4raw": "lz4", "lz4_raw": "lz4"}  # of Spark, in Arrow


def arrow_codec(spark: SparkSession) -> str:
    """The compression that the session has for Parquet, as Arrow names it."""
    codec = str(spark.conf.get("spark.sql.parquet.compression.codec")).lower()
    return CODECS.get(codec, codec)


def compression_level(codec: str) -> int | None:
    """That of Spark: Arrow's own level of zstd is 1."""
    return 3 if codec == "zstd" else None


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
