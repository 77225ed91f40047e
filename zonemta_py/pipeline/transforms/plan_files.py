"""The envelopes of a plan and what it leaves out, written by the tasks that pack them: a file of each for a task (decision 108)."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.submission_keys import submission_key
from zonemta_py.pipeline.spark.tables import ENVELOPE, record_batch
from zonemta_py.pipeline.transforms.blocks import Blocks
from zonemta_py.pipeline.transforms.classify import PLANNED, Classifier
from zonemta_py.pipeline.transforms.envelopes import BlockPacker, Packing
from zonemta_py.pipeline.transforms.hour_files import ZSTD_LEVEL
from zonemta_py.pipeline.transforms.pack import TURNS, packed_schema
from zonemta_py.pipeline.transforms.xxhash import xxhash64

ENVELOPES, LEFT_OUT = "envelopes", "left_out"
WRITING = "_writing"  # below the plan; Spark reads no names that begin so
SCHEMAS = {
    ENVELOPES: to_arrow_schema(ENVELOPE),
    LEFT_OUT: pa.schema([(name, pa.string()) for name in ("kind", "address", "reason")]),
}
WRITTEN = StructType(
    [
        StructField("path", StringType()),  # below the directory of the run
        StructField("kind", StringType()),
        StructField("rows", LongType()),  # of the list
    ]
)


class WrittenCounts(NamedTuple):
    """``recipients``: of the envelopes. ``left_out``: rows of the list."""

    envelopes: int
    recipients: int
    left_out: int


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """The files of a run, in a directory of its own until all of them are there: a task of a run that was killed may go on for a while.

    ``output``: the plan. ``run``: a name. ``scope``, ``slots``: of the keys, as in ``with_keys``. ``compression``: of Parquet.
    """

    output: Path
    run: str
    scope: str
    slots: int
    compression: str

    @property
    def directory(self) -> Path:
        """That of the run."""
        return self.output / WRITING / self.run

    def write(
        self, classifier: Classifier, packing: Packing, blocks: Blocks
    ) -> Callable[[DataFrame], DataFrame]:
        """Rows of WRITTEN from the rows of BLOCK that were distributed."""
        schema = to_arrow_schema(packed_schema(blocks.columns))

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            packer = BlockPacker(packing, schema)
            yield self._written(packer, classifier.blocks(blocks.read(batches)))

        return lambda rows: rows.mapInArrow(run, WRITTEN)

    def _written(self, packer: BlockPacker, blocks: Iterator[pa.Table]) -> pa.RecordBatch:
        """One task's files. Raises LocalError when they cannot be written; then they are removed."""
        counts: Counter[tuple[str, str]] = Counter()
        writers: dict[str, pq.ParquetWriter] = {}
        name = f"part-{uuid4()}.parquet"
        try:
            self._write_blocks(packer, blocks, name, writers, counts)
            for writer in writers.values():
                writer.close()
        except OSError as exc:
            for table, writer in writers.items():
                with suppress(OSError):
                    writer.close()
                (self.directory / table / name).unlink(missing_ok=True)
            raise self._failed(exc) from exc
        return record_batch([(*key, rows) for key, rows in counts.items()], WRITTEN)

    def _failed(self, exc: OSError) -> LocalError:
        return LocalError(f"{self.output}: {os.strerror(exc.errno) if exc.errno else exc}")

    def _write_blocks(
        self,
        packer: BlockPacker,
        blocks: Iterator[pa.Table],
        name: str,
        writers: dict[str, pq.ParquetWriter],
        counts: Counter[tuple[str, str]],
    ) -> None:
        for block in blocks:
            envelopes, left_out = packer.tables(block)
            for table, rows in ((ENVELOPES, self._keyed(envelopes)), (LEFT_OUT, left_out)):
                if not rows.num_rows:
                    continue
                if table not in writers:
                    writers[table] = self._opened(f"{table}/{name}", SCHEMAS[table])
                rows = rows.select(SCHEMAS[table].names).cast(SCHEMAS[table])
                writers[table].write_table(rows, row_group_size=rows.num_rows)
            for each in block.column("kind").value_counts().to_pylist():
                table = ENVELOPES if each["values"] == PLANNED else LEFT_OUT
                counts[f"{table}/{name}", each["values"]] += each["counts"]

    def _keyed(self, envelopes: pa.Table) -> pa.Table:
        """Rows of ENVELOPE, as ``with_keys`` gives them, in the order of slots and turns."""
        recipients = envelopes.column("recipients").combine_chunks()
        addresses = pa.ListArray.from_arrays(recipients.offsets, recipients.values.field("address"))
        keys = pa.array(
            [submission_key(self.scope, each) for each in addresses.to_pylist()], pa.string()
        )
        slots = xxhash64(keys) % self.slots
        turns = xxhash64(keys, 2) % TURNS
        columns = {"key": keys, "slot": pa.array(slots, pa.int32()), "turn": pa.array(turns)}
        if "send_at_ms" not in envelopes.column_names:
            columns["send_at_ms"] = pa.nulls(len(keys), pa.int64())
        for name, values in columns.items():
            envelopes = envelopes.append_column(name, values)
        return envelopes.take(pa.array(np.lexsort([turns, slots])))

    def _opened(self, path: str, schema: pa.Schema) -> pq.ParquetWriter:
        file = self.directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        return pq.ParquetWriter(
            file,
            schema,
            compression=self.compression,
            compression_level=ZSTD_LEVEL if self.compression == "zstd" else None,
            use_dictionary=["slot", "zone", "provider", "kind", "reason"],
            store_schema=False,
        )

    def keep(self, paths: Collection[str]) -> None:
        """Remove the files of tasks that failed, and ran again; a table without rows has an empty file. Raises LocalError."""
        try:
            self._keep(paths)
        except OSError as exc:
            raise self._failed(exc) from exc

    def _keep(self, paths: Collection[str]) -> None:
        for table, schema in SCHEMAS.items():
            own = {path for path in paths if path.startswith(f"{table}/")}
            for file in (self.directory / table).glob("*.parquet"):
                if f"{table}/{file.name}" not in own:
                    file.unlink()
            if not own:
                self._opened(f"{table}/part-empty.parquet", schema).close()

    def count(self) -> WrittenCounts:
        """What the files have, by their footers. Raises LocalError."""
        envelopes = recipients = 0
        for footer in self._footers(ENVELOPES):
            envelopes += footer.num_rows
            groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
            columns = [each.column(number) for each in groups for number in range(each.num_columns)]
            recipients += sum(
                each.num_values for each in columns if each.path_in_schema.endswith(".address")
            )
        left_out = sum(footer.num_rows for footer in self._footers(LEFT_OUT))
        return WrittenCounts(envelopes, recipients, left_out)

    def _footers(self, table: str) -> Iterator[pq.FileMetaData]:
        for file in (self.directory / table).glob("*.parquet"):
            try:
                yield pq.read_metadata(file)
            except (OSError, pa.ArrowInvalid) as exc:
                raise LocalError(f"{file}: cannot be read again: {exc}") from exc

    def publish(self) -> None:
        """Give the tables their names. Raises LocalError when there is one already."""
        try:
            for table in SCHEMAS:
                (self.directory / table).rename(self.output / table)
        except OSError as exc:
            raise self._failed(exc) from exc
        self.discard()

    def discard(self) -> None:
        """Remove what is left of the run."""
        shutil.rmtree(self.output / WRITING, ignore_errors=True)
