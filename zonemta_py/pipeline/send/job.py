"""Submits a plan to relays in rounds; the ledger gets a row for each recipient.

A run makes passes over the recipients without a final row, those that relays have deferred among them. A pass has rounds of ROUND_S:
each submits a part of the envelopes, in the order of their turns, and adds its rows to the ledger.

States of a recipient: unsent ─▶ accepted or refused, which are final; or ─▶ deferred ─ a later pass ─▶ any of the three.

Invariants:

- One run at a time works on a plan (``locked_output``).
- The ledger only grows, by a directory for each round. Another run continues from it; the last row of a recipient counts.
- A task begins no envelope after its time, so that its rows are written. Rows that were lost with it are of messages that the relay
  recognises by their keys when they are submitted again.
- A round is made for ROUND_S by the rate of the one before, and is at most GROWTH_MAX times as large.
- A permanent reply to MAIL is about the message, not about a recipient: those envelopes have their turn last, and a run ends with an
  error when all that were tried got one.
- A run ends when nothing is left, or when no relay has accepted or refused a recipient for ``patience_s``.

Callers: ``zonemta pipeline send`` and ``demo``.

Example: ``send_plan(spark, "plans/june", options, print)`` returns SendCounts; ``complete`` is true if every recipient was accepted.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import sleep

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.core.runtime import loop_factory
from zonemta_py.core.text import span
from zonemta_py.pipeline.plan.pack import TURNS
from zonemta_py.pipeline.plan.request import PlanManifest, read_manifest, read_message
from zonemta_py.pipeline.send.ledger import (
    begin_of_sending,
    is_earlier,
    is_of_mail,
    last_rows,
    read_ledger,
    recorded_begin_ms,
    refused_last,
    without,
)
from zonemta_py.pipeline.send.submission import (
    ACCEPTED,
    DEFERRED,
    REFUSED,
    EnvelopeSubmitter,
    SubmitOptions,
    envelope_of,
    key_windows,
)
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.output import locked_output
from zonemta_py.pipeline.spark.session import is_local, spark_errors
from zonemta_py.pipeline.spark.tables import ROWS_PER_FILE, Progress, record_batch, report_rows
from zonemta_py.submit.merge import Template

ROUND_ROWS_MIN = 10_000  # recipients of the first round
ROUND_S = 45.0  # of a later one
ROUND_MAX_S = 60.0  # then what was not begun is left to another pass
TASK_MIN_S = 5.0  # of a round, for each task
GROWTH_MAX = 4  # from one round to the next
PAUSE_S, PAUSE_MAX_S = 5.0, 60.0  # before another pass over deferred recipients


@dataclass(frozen=True, slots=True)
class SendCounts:
    """Recipients of a plan by the state of their submission, after all runs.

    ``repeated``: those of ``accepted`` that the relay had accepted before; ``earlier``: those of them that
    got another plan of the campaign, and not this one.
    """

    planned: int
    accepted: int
    refused: int
    deferred: int
    unsent: int
    repeated: int
    earlier: int

    @property
    def complete(self) -> bool:
        """True if every recipient was accepted."""
        return self.accepted == self.planned


def send_plan(
    spark: SparkSession,
    plan: str,
    options: SubmitOptions,
    progress: Progress,
    *,
    allow_repeats: bool = False,
) -> SendCounts:
    """Submit the recipients that have no final row in the ledger; deferred ones until ``patience_s`` has passed.

    Raises LocalError; also when recipients got another plan of the campaign before, now or in an earlier run, unless ``allow_repeats``,
    and when sender and message are not those of the plan: it may have been replaced after ``options`` were made.
    """
    with locked_output(spark, plan):
        manifest = read_manifest(spark, plan)
        if (options.sender, options.message) != (manifest.sender, read_message(spark, plan)):
            raise LocalError(f"{plan}: the plan was replaced meanwhile; run send again")
        Template(options.message).require_reachable()  # an earlier version may have made the plan
        if not allow_repeats and manifest.is_of_campaign:
            refuse_earlier(plan, manifest, send_counts(spark, plan).earlier)
        begun_ms, parallel = begin_of_sending(spark, plan), parallel_tasks(spark)
        submit_all(
            Sending(
                spark=spark, plan=plan, manifest=manifest, begun_ms=begun_ms, options=options, progress=progress,
                allow_repeats=allow_repeats, parallel=parallel,
            )
        )  # fmt: skip
        progress("counting")
        return send_counts(spark, plan)


def send_counts(spark: SparkSession, plan: str) -> SendCounts:
    """The counts of a plan from its ledger. Raises LocalError when there is no plan."""
    manifest = read_manifest(spark, plan)
    ledger, begun_ms = read_ledger(spark, plan), recorded_begin_ms(spark, plan)
    counts: dict[tuple[str, bool, bool], int] = {}
    if ledger is not None and begun_ms is not None:
        earlier = is_earlier(begun_ms, of_campaign=manifest.is_of_campaign)
        last = ledger.transform(last_rows("state", "repeated", earlier.alias("earlier")))
        rows = last.groupBy("last.state", "last.repeated", "last.earlier").count().collect()
        counts = {(row["state"], row["repeated"], row["earlier"]): row["count"] for row in rows}
    by_state = {
        state: sum(n for (s, _, _), n in counts.items() if s == state)
        for state in (ACCEPTED, REFUSED, DEFERRED)
    }
    return SendCounts(
        planned=manifest.planned,
        accepted=by_state[ACCEPTED],
        refused=by_state[REFUSED],
        deferred=by_state[DEFERRED],
        unsent=manifest.planned - sum(by_state.values()),
        repeated=sum(n for (state, repeated, _), n in counts.items() if state == ACCEPTED and repeated),
        earlier=sum(n for (_, _, earlier), n in counts.items() if earlier),
    )


def key_warnings(spark: SparkSession, plan: str, options: SubmitOptions) -> list[str]:
    """A warning for each relay that may forget a submission key before it is used again: a recipient could get two messages.

    Asks the relays. Raises LocalError when there is no plan.
    """
    windows = asyncio.run(key_windows(options))
    ledger = read_ledger(spark, plan)
    last_ms = ledger.agg(F.max("run").alias("run")).collect()[0]["run"] if ledger is not None else None
    since_s = (clock.now_ms() - last_ms) / 1000 if last_ms else 0.0
    of_campaign = read_manifest(spark, plan).is_of_campaign
    found = []
    if options.credentials is None and not is_local(spark):
        found.append(
            "without --user a relay knows a client by its address: a task that runs again on another machine may send "
            "its messages twice"
        )
    for relay, window_s in windows.items():
        if window_s is not None and of_campaign:
            found.append(
                f"the plan is --once-per campaign, and {relay} forgets submission keys after {span(window_s)}: "
                "recipients that got another plan of the campaign before that get this one, too"
            )
        if window_s is None:
            found.append(f"{relay} does not say whether it recognises a message that is submitted again")
        elif since_s > window_s:
            found.append(
                f"the last run ended {span(since_s)} ago, and {relay} forgets submission keys after {span(window_s)}: "
                "recipients whose message was under way when it ended may get it twice"
            )
        elif options.patience_s > window_s:
            found.append(
                f"--timeout is {span(options.patience_s)}, and {relay} forgets submission keys after "
                f"{span(window_s)}: choose a shorter patience"
            )
    return found


@dataclass(slots=True)
class Sending:
    """One run. ``left``: recipients without a final row; ``was_cut``: some of them had no turn, while others were accepted.

    ``refused``: all that are left got a permanent reply to MAIL, such as ``reply``; or the first that were tried, and none was accepted.
    """

    spark: SparkSession
    plan: str
    manifest: PlanManifest
    begun_ms: int
    options: SubmitOptions
    progress: Progress
    allow_repeats: bool
    parallel: int
    left: int = 0
    was_cut: bool = False
    refused: bool = False
    reply: str = ""
    has_settled: bool = False
    _accepted_s: float = field(default_factory=clock.monotonic_s)

    def idle_s(self) -> float:
        """The time since a relay accepted or refused a recipient."""
        return clock.monotonic_s() - self._accepted_s

    def submit_left(self) -> int:
        """Submit, in rounds, what has no final row, each envelope at most once; returns the number of recipients that are left."""
        envelopes = self.spark.read.schema(tables.ENVELOPE).parquet(f"{self.plan}/envelopes")
        ledger = read_ledger(self.spark, self.plan)
        if ledger is not None:
            settled_rows = ledger.where(F.col("state") != DEFERRED)
            envelopes = (
                envelopes.transform(without(settled_rows)).transform(refused_last(ledger)).persist()
            )
        row = envelopes.agg(
            F.coalesce(F.sum(F.size("recipients")), F.lit(0)).alias("left"),
            F.coalesce(F.min("turn"), F.lit(TURNS)).alias("turn"),
            F.coalesce(F.max("turn") >= TURNS, F.lit(False)).alias("has_refused"),
        ).collect()[0]
        self.left, turn, turns = int(row["left"]), int(row["turn"]), TURNS << int(row["has_refused"])
        whole, span, size, tried, refused = self.left, turns - turn, ROUND_ROWS_MIN, 0, 0
        while turn < turns and self.left:
            end = min(turns, turn + max(1, span * size // whole))
            if size >= self.left:
                end = turns
            began_s = clock.monotonic_s()
            settled, deferred, of_mail = self._round(
                envelopes.where((F.col("turn") >= turn) & (F.col("turn") < end)), whole
            )
            self.left, tried, turn = self.left - settled, tried + deferred, end
            refused += of_mail
            self.has_settled = self.has_settled or settled > 0
            if not settled and (deferred or clock.monotonic_s() - began_s > ROUND_MAX_S):
                break  # no relay accepts anything now
            per_s = (settled + deferred) / max(clock.monotonic_s() - began_s, 0.001)
            size = max(ROUND_ROWS_MIN, min(int(per_s * ROUND_S), GROWTH_MAX * size))
        envelopes.unpersist()
        # The others had their turn, or no relay accepts anything.
        is_last = turn >= TURNS or not self.has_settled
        self.refused = 0 < refused == tried and is_last
        self.was_cut = turn == turns and tried < self.left < whole
        return self.left

    def _round(self, envelopes: DataFrame, whole: int) -> tuple[int, int, int]:
        """Submit ``envelopes``; returns how many recipients are settled and deferred, and how many of these by a permanent reply.

        Raises LocalError.
        """
        path = f"{self.plan}/ledger/run={clock.now_ms()}"
        done = whole - self.left

        def report(rows: int) -> None:
            self.progress(f"sending: {done + rows:,} of {whole:,} recipients")

        report(0)
        task_s = max(TASK_MIN_S, ROUND_MAX_S * min(1.0, self.parallel / self.manifest.slots))
        counted = Observation("round")
        is_deferred = F.col("state") == DEFERRED
        with spark_errors(f"{self.plan}: the run failed, send it again"), report_rows(path, report):
            (
                envelopes.repartitionByRange(self.manifest.slots, "slot")
                .sortWithinPartitions("slot", "turn")
                .select("key", "recipients", "send_at_ms")
                .mapInArrow(_submit_batches(self.manifest.campaign, self.options, task_s), tables.LEDGER)
                .observe(
                    counted,
                    F.count_if(~is_deferred).alias("settled"),
                    F.count_if(is_deferred).alias("deferred"),
                    F.count_if(is_of_mail()).alias("refused"),
                    F.max(F.when(is_of_mail(), F.concat_ws(": ", "relay", "reply"))).alias("reply"),
                    F.count_if(
                        is_earlier(self.begun_ms, of_campaign=self.manifest.is_of_campaign)
                    ).alias("earlier"),
                )
                .write.option("maxRecordsPerFile", ROWS_PER_FILE)
                .parquet(path)
            )
        found = counted.get
        if not self.allow_repeats:
            refuse_earlier(self.plan, self.manifest, found["earlier"])
        self.reply = found["reply"] or self.reply
        if found["settled"]:
            self._accepted_s = clock.monotonic_s()
        return int(found["settled"]), int(found["deferred"]), int(found["refused"])


def submit_all(sending: Sending) -> None:
    """Submit what is left, again and again, until it is all accepted or nothing was for ``patience_s``. Raises LocalError."""
    options = sending.options
    pause_s = min(PAUSE_S, options.patience_s)
    while sending.submit_left():
        if sending.was_cut:
            continue
        if sending.refused:
            raise LocalError(
                f"{sending.plan}: not the recipients were refused, but the message or its sender: {sending.reply}; correct "
                "that, and send again"
            )
        if sending.idle_s() + pause_s > options.patience_s:
            break
        sending.progress(
            f"sending: {sending.left:,} recipients are left, next attempt in {pause_s:.0f} s"
        )
        sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def refuse_earlier(plan: str, manifest: PlanManifest, earlier: int) -> None:
    """Raise LocalError if there are recipients that got another plan."""
    if earlier:
        raise LocalError(
            f"{plan}: {earlier} recipients or more got another plan of campaign "
            f"'{manifest.campaign}', and will not get this one; continue with --allow-repeats"
        )


def parallel_tasks(spark: SparkSession) -> int:
    """How many tasks run at once, as a session of Spark Connect says, too."""
    return spark.range(1000).select(F.spark_partition_id().alias("part")).distinct().count()


def _submit_batches(
    campaign: str, options: SubmitOptions, task_s: float
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task; after ``task_s`` it begins no other envelope, so that its rows are written."""

    def submit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        submitter, until_s = EnvelopeSubmitter(options), clock.monotonic_s() + task_s
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            for batch in batches:
                results = runner.run(submitter.send(map(envelope_of, batch.to_pylist()), until_s))
                rows = [
                    (campaign, r.key, r.relay, r.address, r.state, r.code, r.reply, list(r.messages), r.repeated, r.time_ms, r.age_ms)
                    for r in results
                ]  # fmt: skip
                yield record_batch(rows, tables.LEDGER)
            runner.run(submitter.aclose())

    return submit
