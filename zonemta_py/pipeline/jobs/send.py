"""Submits a plan to relays; the ledger gets a row for each recipient.

Another run submits only the recipients that are not in the ledger. An envelope that was submitted without a row, because a task, an executor or the job died, is
submitted again with the same key, which the relay recognises.
"""

import asyncio
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from zonemta_py.core import clock
from zonemta_py.core.durations import span
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.envelope import ACCEPTED, DEFERRED, REFUSED, SubmitOptions
from zonemta_py.pipeline.jobs.send_rounds import Sending, parallel_tasks, refuse_earlier, submit_all
from zonemta_py.pipeline.spark.output_lock import locked_output
from zonemta_py.pipeline.spark.plan_ledger import (
    begin_of_sending,
    is_earlier,
    read_ledger,
    recorded_begin_ms,
)
from zonemta_py.pipeline.spark.plan_manifest import read_manifest, read_message
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.session import is_local
from zonemta_py.pipeline.submission import key_windows
from zonemta_py.pipeline.transforms.outcomes import last_rows
from zonemta_py.submit.merge import Template


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
        """Whether every recipient was accepted."""
        return self.accepted == self.planned


def key_warnings(spark: SparkSession, plan: str, options: SubmitOptions) -> list[str]:
    """Where a relay may have forgotten a submission key when it is used again: then a recipient may get two messages.

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
                f"--patience is {span(options.patience_s)}, and {relay} forgets submission keys after "
                f"{span(window_s)}: choose a shorter patience"
            )
    return found


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
        submit_all(Sending(spark, plan, manifest, begun_ms, options, progress, allow_repeats, parallel))
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
