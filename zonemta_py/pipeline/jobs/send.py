"""Submits a plan to relays; the ledger gets a row for each recipient.

Another run submits only the recipients that are not in the ledger. An envelope that was submitted without
a row, because a task, an executor or the job died, is submitted again with the same key, which the relay recognises.
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
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.exceptions import analysed, spark_errors
from zonemta_py.pipeline.spark.progress import ROWS_PER_FILE, Progress, report_rows
from zonemta_py.pipeline.spark.tables import record_batch
from zonemta_py.pipeline.submission import (
    ACCEPTED,
    DEFERRED,
    REFUSED,
    EnvelopeSubmitter,
    SubmitOptions,
    envelope_of,
)


@dataclass(frozen=True, slots=True)
class SendCounts:
    """Recipients of a plan by the state of their submission, after all runs.

    ``repeated``: those of ``accepted`` that the relay had accepted before.
    """

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


def send_plan(spark: SparkSession, plan: str, options: SubmitOptions, progress: Progress) -> SendCounts:
    """Submit the recipients that have no final row in the ledger. Raises LocalError."""
    manifest = read_manifest(spark, plan)
    ledger = read_ledger(spark, plan)
    envelopes = spark.read.schema(tables.ENVELOPE).parquet(f"{plan}/envelopes")
    if ledger is not None:
        envelopes = envelopes.transform(_without(ledger.where(F.col("state") != DEFERRED)))
    run = 1 if ledger is None else 1 + _last_run(ledger)
    left = manifest.planned if ledger is None else _recipients_in(envelopes)
    progress(f"sending, run {run}: {left:,} recipients")
    path = f"{plan}/ledger/run={run}"

    def report(rows: int) -> None:
        progress(f"sending, run {run}: {rows:,} of {left:,} recipients")

    with spark_errors(f"{plan}: run {run} failed, resume it"), report_rows(path, report):
        (
            envelopes.repartitionByRange(manifest.slots, "slot")
            .sortWithinPartitions("slot", "turn")
            .select("key", "recipients")
            .mapInArrow(_submit_batches(manifest.campaign, options), tables.LEDGER)
            .write.option("maxRecordsPerFile", ROWS_PER_FILE)
            .parquet(path)
        )
    progress("counting")
    return send_counts(spark, plan)


def send_counts(spark: SparkSession, plan: str) -> SendCounts:
    """The counts of a plan from its ledger. Raises LocalError when there is no plan."""
    planned = read_manifest(spark, plan).planned
    ledger = read_ledger(spark, plan)
    counts: dict[tuple[str, bool], int] = {}
    if ledger is not None:
        # The last row of a recipient counts, unless it is deferred and an earlier one is not.
        last = ledger.groupBy("key", "address").agg(
            F.max_by(F.struct("state", "repeated"), F.struct((F.col("state") != DEFERRED), "run")).alias(
                "last"
            )
        )
        rows = last.groupBy("last.state", "last.repeated").count().collect()
        counts = {(row["state"], row["repeated"]): row["count"] for row in rows}
    by_state = {
        state: sum(n for (s, _), n in counts.items() if s == state)
        for state in (ACCEPTED, REFUSED, DEFERRED)
    }
    return SendCounts(
        planned=planned,
        accepted=by_state[ACCEPTED],
        refused=by_state[REFUSED],
        deferred=by_state[DEFERRED],
        unsent=planned - sum(by_state.values()),
        repeated=counts.get((ACCEPTED, True), 0),
    )


def read_ledger(spark: SparkSession, plan: str) -> DataFrame | None:
    """The rows of ``tables.LEDGER_RUNS``, or None before the first run."""
    try:
        return analysed(spark.read.schema(tables.LEDGER_RUNS).parquet(f"{plan}/ledger"))
    except AnalysisException:
        return None


def _recipients_in(envelopes: DataFrame) -> int:
    row = envelopes.agg(F.coalesce(F.sum(F.size("recipients")), F.lit(0)).alias("count")).collect()[0]
    return int(row["count"])


def _last_run(ledger: DataFrame) -> int:
    return int(ledger.agg(F.coalesce(F.max("run"), F.lit(0)).alias("run")).collect()[0]["run"])


def _without(settled: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Envelopes without the recipients in ``settled``; the keys do not change."""

    def transform(envelopes: DataFrame) -> DataFrame:
        each = envelopes.select("*", F.explode("recipients").alias("recipient")).drop("recipients")
        left = each.join(
            settled.select("key", F.col("address").alias("settled")),
            (each["key"] == settled["key"]) & (F.col("recipient.address") == F.col("settled")),
            "left_anti",
        )
        return left.groupBy("key", "slot", "turn", "zone", "provider").agg(
            F.collect_list("recipient").alias("recipients")
        )

    return transform


def _submit_batches(
    campaign: str, options: SubmitOptions
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def submit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        submitter = EnvelopeSubmitter(options)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            for batch in batches:
                results = runner.run(submitter.send(map(envelope_of, batch.to_pylist())))
                rows = [
                    (campaign, r.key, r.relay, r.address, r.state, r.code, r.reply, list(r.messages), r.repeated, r.time_ms)
                    for r in results
                ]  # fmt: skip
                yield record_batch(rows, tables.LEDGER)
            runner.run(submitter.aclose())

    return submit
