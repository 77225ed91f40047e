"""Writes the tables of a plan: its envelopes, and what is left out.

The list is read, classified and packed in one pass: a second evaluation could see a changed list. A list of this machine is written
by the tasks that pack it, a file of each table for a task; otherwise what is packed is kept on disk while Spark writes the tables.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from zonemta_py.config.providers import load_providers
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.events.rows import listed_domains
from zonemta_py.pipeline.plan.list import POSITION, PlainList, plain_list
from zonemta_py.pipeline.plan.pack import (
    TURNS,
    BlockPacker,
    Packing,
    pack_rows,
    packed_schema,
    submission_key,
    with_keys,
)
from zonemta_py.pipeline.plan.request import BY_TASKS_BYTES_MIN, CAMPAIGN, PlanRequest
from zonemta_py.pipeline.plan.rows import (
    KINDS,
    PLANNED,
    POSTPONED,
    Classifier,
    Selection,
    arrange_rows,
    normalise_plain,
    normalise_rows,
)
from zonemta_py.pipeline.plan.suppression import Suppression
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.arrow import Blocks, arrow_codec, compression_level, xxhash64
from zonemta_py.pipeline.spark.files import is_url, local_path, local_size_bytes
from zonemta_py.pipeline.spark.session import is_local, spark_errors
from zonemta_py.pipeline.spark.tables import ENVELOPE, Progress, record_batch
from zonemta_py.routing import make_router
from zonemta_py.smtp.address import domain_of

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
# Of a slot; less makes fewer slots. By bytes of the list where recipients are not counted first.
SLOT_ROWS_MIN, SLOT_BYTES_MIN = 1000, 32_768
BUCKETS_MIN, BUCKET_BYTES = 32, 4 << 20  # of the list, which may be compressed


@dataclass(frozen=True, slots=True)
class RecipientList:
    """The list as Spark reads it, with the names of its columns that are used. ``required``: merge fields without a default."""

    rows: DataFrame
    email: str
    merge_fields: Sequence[str]
    required: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlanTables:
    """Counts of what was written. ``counts``: the rows of the list by kind. ``slots``: the number of those that the envelopes are in."""

    counts: Mapping[str, int]
    rows_read: int
    envelopes: int
    slots: int


@dataclass(frozen=True, slots=True)
class _Steps:
    """How rows are classified and packed. ``blocks``: how they are distributed; None: by Spark. ``scope``: of the keys."""

    classifier: Classifier
    packing: Packing
    blocks: Blocks | None
    scope: str


def write_tables(
    request: PlanRequest,
    listed: RecipientList,
    suppression: Suppression | None,
    progress: Progress,
    *,
    scope: str,
    personal: bool,
) -> PlanTables:
    """Write the tables. Raises LocalError, also when the sums are wrong."""
    config = request.config
    alone = personal or request.once_per == CAMPAIGN
    packing = Packing(
        make_router(config),
        domain_of(request.sender),
        None if alone else request.recipients_per_message,
        listed_domains(load_providers(config.providers.file, shipped=config.providers.shipped)),
    )
    classifier = Classifier(request.case_sensitive, suppression.held if suppression else None)
    blocks = _blocks(request, listed, suppression)
    steps = _Steps(classifier, packing, blocks, scope)
    read = Observation("list")
    with spark_errors(request.source):
        rows = _distributed(request, listed, suppression, blocks, read)
        if _is_for_tasks(request, listed, blocks):
            found = _write_by_tasks(request, rows, steps)
        else:
            found = _write_by_spark(request, listed, rows, steps, progress)
        counts, envelopes, slots = found
        sums = sum(counts.values())
        rows_read = int(read.get["rows"]) if sums else 0  # what is not run observes nothing
        if rows_read != sums or not sums:
            rows_read = listed.rows.count()  # a stage that ran twice was counted twice
    if rows_read != sums:
        raise LocalError(f"the sums are wrong: {rows_read} rows read, classified as {dict(counts)}")
    return PlanTables(counts, rows_read, envelopes, slots)


def _distributed(
    request: PlanRequest,
    listed: RecipientList,
    suppression: Suppression | None,
    blocks: Blocks | None,
    read: Observation,
) -> DataFrame:
    """The checked rows, those of one address together."""
    selection = request.selection or Selection(request.campaign)
    plain = _plain(request, listed) if blocks and not blocks.columns else None
    if blocks and plain:
        checked = normalise_plain(plain, blocks)(listed.rows.sparkSession)
        checked = checked.observe(read, F.coalesce(F.sum("rows"), F.lit(0)).alias("rows"))
    else:
        checked = listed.rows.observe(read, F.count(F.lit(1)).alias("rows")).transform(
            normalise_rows(
                listed.email,
                listed.merge_fields,
                request.send_at_column,
                blocks,
                required=listed.required,
            )
        )
    arrange = arrange_rows(suppression, selection, request.case_sensitive)
    return checked.transform(blocks.distribute if blocks else arrange)


def _blocks(
    request: PlanRequest, listed: RecipientList, suppression: Suppression | None
) -> Blocks | None:
    """How the rows are distributed; None where Spark has to look at single ones, or the size of the list is not known."""
    selection = request.selection or Selection(request.campaign)
    if (suppression and suppression.held is None) or selection.variant or selection.sample < 1:
        return None
    if (size_bytes := local_size_bytes(listed.rows.sparkSession, request.source)) is None:
        return None
    extra = [*(["fields"] if listed.merge_fields else []), *(["send_at_ms"] if request.send_at_column else [])]  # fmt: skip
    buckets = max(BUCKETS_MIN, size_bytes // BUCKET_BYTES)
    return Blocks(request.case_sensitive, buckets, tuple(extra))


def _plain(request: PlanRequest, listed: RecipientList) -> PlainList | None:
    """How tasks read the list themselves; None where Spark has to."""
    separator = {"csv": ",", "txt": ",", "tsv": "\t"}.get(request.source.lower().rpartition(".")[2])
    if separator is None or request.reader_options or not Path(request.source).is_file():
        return None
    names = [name for name in listed.rows.columns if name != POSITION]
    return plain_list(Path(request.source), separator, names, listed.email)


def _caps(request: PlanRequest) -> Mapping[str, int]:
    return (request.selection.caps if request.selection else None) or {}


def _is_for_tasks(request: PlanRequest, listed: RecipientList, blocks: Blocks | None) -> bool:
    """True if tasks write their files themselves: they run on this machine, and see all that is left out."""
    if blocks is None or _caps(request) or is_url(request.output):
        return False
    spark = listed.rows.sparkSession
    if not is_local(spark):
        return False
    return _size_bytes(request, spark) >= BY_TASKS_BYTES_MIN


def _size_bytes(request: PlanRequest, spark: SparkSession) -> int:
    return local_size_bytes(spark, request.source) or 0


def _write_by_spark(
    request: PlanRequest, listed: RecipientList, rows: DataFrame, steps: _Steps, progress: Progress
) -> tuple[dict[str, int], int, int]:
    """As ``_write_by_tasks``, anywhere."""
    spark = rows.sparkSession
    packed = rows.transform(
        pack_rows(steps.classifier, steps.packing, _caps(request), steps.blocks)
    ).persist(StorageLevel.DISK_ONLY)
    kinds = packed.groupBy("kind").agg(F.sum(F.coalesce(F.size("recipients"), F.lit(1))).alias("size"))
    counts = dict.fromkeys(KINDS, 0)
    counts.update({row["kind"]: int(row["size"]) for row in kinds.collect()})
    progress("writing the plan")
    slots = min(request.slots, max(1, counts[PLANNED] // SLOT_ROWS_MIN))
    envelopes = f"{request.output}/{ENVELOPES}"
    planned = F.col("kind") == PLANNED
    with spark_errors(request.output):
        packed.where(planned).transform(with_keys(steps.scope, slots)).sortWithinPartitions(
            "slot", "turn"
        ).write.parquet(envelopes)
        packed.where(~planned).select("kind", "address", "reason").write.parquet(
            f"{request.output}/{LEFT_OUT}"
        )
        if _caps(request):
            _write_postponed(request, listed, packed)
        written = spark.read.schema(tables.ENVELOPE).parquet(envelopes).agg(
            F.count("*").alias("envelopes"), F.coalesce(F.sum(F.size("recipients")), F.lit(0)).alias("recipients")
        ).collect()[0]  # fmt: skip
    packed.unpersist()
    _check(written["recipients"], counts)
    return counts, int(written["envelopes"]), slots


def _write_postponed(request: PlanRequest, listed: RecipientList, packed: DataFrame) -> None:
    """Write the recipients over the caps as a list for another plan; it may have no rows."""
    columns = [F.col("address").alias(listed.email)]
    columns += [
        F.col("fields")[name].alias(name) for name in listed.merge_fields if name != listed.email
    ]
    if request.send_at_column and request.send_at_column not in listed.merge_fields:
        columns.append(F.timestamp_millis("send_at_ms").alias(request.send_at_column))
    packed.where(F.col("kind") == POSTPONED).select(*columns).write.parquet(
        f"{request.output}/postponed"
    )


def _check(recipients: int, counts: Mapping[str, int], left_out: int | None = None) -> None:
    """Raises LocalError unless the envelopes that can be read have all planned ``recipients``, and the other table, if it was counted, all others."""
    others = sum(counts.values()) - counts[PLANNED]
    if recipients != counts[PLANNED] or left_out not in (None, others):
        raise LocalError(
            f"the sums are wrong: classified as {dict(counts)}, {recipients} recipients written, {left_out} left out"
        )


def _write_by_tasks(
    request: PlanRequest, rows: DataFrame, steps: _Steps
) -> tuple[dict[str, int], int, int]:
    """Counts by kind, envelopes, slots."""
    assert steps.blocks is not None
    codec = arrow_codec(rows.sparkSession)
    slots = min(request.slots, max(1, _size_bytes(request, rows.sparkSession) // SLOT_BYTES_MIN))
    files = PlanFiles(local_path(request.output), uuid4().hex, steps.scope, slots, codec)
    counts = dict.fromkeys(KINDS, 0)
    try:
        found = rows.transform(files.write(steps.classifier, steps.packing, steps.blocks)).collect()
        files.keep({row["path"] for row in found})
        for row in found:
            counts[row["kind"]] += row["rows"]
        written = files.count()
        _check(written.recipients, counts, written.left_out)
    except BaseException:
        files.discard()
        raise
    files.publish()
    return counts, written.envelopes, slots


class WrittenCounts(NamedTuple):
    """``recipients``: of the envelopes. ``left_out``: rows of the list."""

    envelopes: int
    recipients: int
    left_out: int


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """The files of a run, in a directory of its own until all of them are there: a task of a run that was killed may continue for a while.

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
            compression_level=compression_level(self.compression),
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
        """Counts of the rows in the files, from their footers. Raises LocalError."""
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
