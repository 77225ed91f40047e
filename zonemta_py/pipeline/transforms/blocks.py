"""Distributes rows in blocks of Arrow's own format: Spark moves a few binary values, instead of copying each row four times.

A task divides its rows by their digest into buckets. All blocks of a bucket come to one task, which sorts their rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from zonemta_py.pipeline.transforms.xxhash import xxhash64

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

Numbers = npt.NDArray[np.int64]


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
