"""From a frozen plan to the relays, with a row in the ledger for each recipient.

Run it again and only what the ledger lacks is sent; what was sent without getting there, because a
task, an executor or the whole job died, is sent again under the same key, and the relay knows it.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core.loop import loop_factory
from zonemta_py.pipeline.jobs.plan import read_manifest
from zonemta_py.pipeline.spark import schema
from zonemta_py.pipeline.spark.arrow import batch_of
from zonemta_py.pipeline.spark.errors import analysed, told
from zonemta_py.pipeline.spark.progress import ROWS_PER_FILE, rows_told
from zonemta_py.pipeline.submission import ACCEPTED, DEFERRED, REFUSED, Manners, Submission, envelope_of

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sums:
    """Recipients of a plan by what became of their submission, over all runs; ``repeated`` of accepted."""

    planned: int
    accepted: int
    refused: int
    deferred: int
    unsent: int
    repeated: int

    @property
    def complete(self) -> bool:
        """Whether every recipient was accepted."""
        return self.accepted == self.planned


def send_plan(spark: SparkSession, plan: str, manners: Manners, step: Step) -> Sums:
    """Send what the ledger lacks. Raises LocalError."""
    manifest = read_manifest(spark, plan)
    ledger = read_ledger(spark, plan)
    envelopes = spark.read.schema(schema.ENVELOPE).parquet(f"{plan}/envelopes")
    if ledger is not None:
        envelopes = envelopes.transform(_without(ledger.where(F.col("state") != DEFERRED)))
    run = 1 if ledger is None else 1 + _last_run(ledger)
    left = manifest.planned if ledger is None else _left(envelopes)
    step(f"sending, run {run}: {left:,} recipients")
    place = f"{plan}/ledger/run={run}"

    def tell(rows: int) -> None:
        step(f"sending, run {run}: {rows:,} of {left:,} recipients")

    with told(f"{plan}: run {run} broke off, resume it"), rows_told(place, tell):
        (
            envelopes.repartitionByRange(manifest.slots, "slot")
            .sortWithinPartitions("slot", "turn")
            .select("key", "recipients")
            .mapInArrow(_sending(manifest.campaign, manners), schema.LEDGER)
            .write.option("maxRecordsPerFile", ROWS_PER_FILE)
            .parquet(place)
        )
    step("counting")
    return sums_of(spark, plan)


def sums_of(spark: SparkSession, plan: str) -> Sums:
    """How far a plan is."""
    planned = read_manifest(spark, plan).planned
    ledger = read_ledger(spark, plan)
    counts: dict[tuple[str, bool], int] = {}
    if ledger is not None:
        # A recipient that was deferred in one run and accepted in the next is accepted.
        last = ledger.groupBy("key", "address").agg(
            F.max_by(F.struct("state", "repeated"), F.struct((F.col("state") != DEFERRED), "run")).alias(
                "last"
            )
        )
        rows = last.groupBy("last.state", "last.repeated").count().collect()
        counts = {(row["state"], row["repeated"]): row["count"] for row in rows}
    of = {
        state: sum(n for (s, _), n in counts.items() if s == state)
        for state in (ACCEPTED, REFUSED, DEFERRED)
    }
    return Sums(
        planned=planned,
        accepted=of[ACCEPTED],
        refused=of[REFUSED],
        deferred=of[DEFERRED],
        unsent=planned - sum(of.values()),
        repeated=counts.get((ACCEPTED, True), 0),
    )


def read_ledger(spark: SparkSession, plan: str) -> DataFrame | None:
    """The ledger with its ``run``, or None before the first run."""
    try:
        return analysed(spark.read.schema(schema.LEDGER_RUNS).parquet(f"{plan}/ledger"))
    except AnalysisException:
        return None


def _left(envelopes: DataFrame) -> int:
    row = envelopes.agg(F.coalesce(F.sum(F.size("recipients")), F.lit(0)).alias("left")).collect()[0]
    return int(row["left"])


def _last_run(ledger: DataFrame) -> int:
    return int(ledger.agg(F.coalesce(F.max("run"), F.lit(0)).alias("run")).collect()[0]["run"])


def _without(done: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Envelopes without the recipients that are done; they keep their keys."""

    def transform(envelopes: DataFrame) -> DataFrame:
        each = envelopes.select("*", F.explode("recipients").alias("recipient")).drop("recipients")
        left = each.join(
            done.select("key", F.col("address").alias("done")),
            (each["key"] == done["key"]) & (F.col("recipient.address") == F.col("done")),
            "left_anti",
        )
        return left.groupBy("key", "slot", "turn", "zone", "provider").agg(
            F.collect_list("recipient").alias("recipients")
        )

    return transform


def _sending(
    campaign: str, manners: Manners
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        submission = Submission(manners)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            for batch in batches:
                settled = runner.run(submission.send(map(envelope_of, batch.to_pylist())))
                rows = [
                    (campaign, s.key, s.relay, s.address, s.state, s.code, s.reply, list(s.messages), s.repeated, s.time_ms)
                    for s in settled
                ]  # fmt: skip
                yield batch_of(rows, schema.LEDGER)
            runner.run(submission.aclose())

    return send
