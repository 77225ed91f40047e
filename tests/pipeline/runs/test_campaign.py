"""Report, reconciliation and suppression of a campaign that a real relay has delivered."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import relaying, staged
from tests.pipeline.campaigns import (
    LETTER,
    content,
    copy,
    no_progress,
    open_log,
    plan,
    report,
    send,
    submit_options,
    suppressed,
    write_list,
)
from zonemta_py.core.errors import LocalError
from zonemta_py.queue.format import keys
from zonemta_py.sink.script import Rule, Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


COUNT = 120


async def campaign(spark: "SparkSession", directory: Path, root: str) -> dict[str, Any]:
    """A plan of 120, submitted and delivered: one in six bounces hard, one in six is deferred once.

    The list, the plan with its ledger, and a copy of the segments are below ``root``.
    """
    rows = [
        [f"{'gone' if n % 6 == 0 else 'later' if n % 6 == 1 else 'fine'}{n}@d{n % 2}.example"]
        for n in range(COUNT)
    ]
    listed = f"{root}/list.csv"
    copy(spark, write_list(directory / "written.csv", rows, head=("email",)), listed)
    rules = (
        Rule(Step.RCPT, recipient="gone*", reply="550 5.1.1 <{}> no such user"),
        Rule(
            Step.RCPT,
            recipient="later*",
            reply="451 4.7.1 greylisted, come back in 300 seconds",
            times=1,
        ),
    )
    async with staged(directory) as stage:
        for n in range(2):
            await stage.receiver(f"d{n}.example", *rules)
        home = await stage.receiver("example.com")
        async with relaying(stage.config()) as relay:
            plan_path = f"{root}/plan"
            await asyncio.to_thread(
                plan, spark, listed, plan_path, message=LETTER, recipients_per_message=10
            )
            sums = await asyncio.to_thread(
                send, spark, plan_path, submit_options(str(relay.addresses[0]), message=LETTER)
            )
            assert sums.complete
            await empty_queue(relay)
        assert home.tally.messages > 0
    await asyncio.to_thread(copy, spark, directory / "events", f"{root}/log")
    return {"plan": plan_path, "events": f"{root}/log", "list": listed}


async def empty_queue(relay: Any) -> None:
    store = relay.queue.store
    await until(
        lambda: next(store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE)), None) is None, "an empty queue"
    )


async def test_a_campaign(spark: "SparkSession", directory: Path, root: str) -> None:
    found = await campaign(spark, directory, root)
    for step in (_report, _reconcile, _suppress, _compact):
        await asyncio.to_thread(step, spark, found, root)


def _report(spark: "SparkSession", found: dict[str, Any], root: str) -> None:
    from zonemta_py.pipeline.report.job import ReportRequest

    output = f"{root}/report"
    sums = report(spark, ReportRequest(found["events"], [found["plan"]], output))
    gone, later = COUNT // 6, COUNT // 6
    campaigns = {
        r["value"]: r
        for r in spark.read.parquet(f"{output}/rates").where("dimension = 'campaign'").collect()
    }
    june = campaigns["june"]
    assert (june["delivered"], june["bounced"], june["deferred"]) == (COUNT - gone, gone, later)
    assert june["attempts"] == COUNT + later
    assert june["delivery_rate"] == pytest.approx(5 / 6)
    assert june["deferral_rate"] == pytest.approx(later / (COUNT + later))
    assert 0 < june["p50_ms"] <= june["p95_ms"] <= june["p99_ms"] < 60_000
    assert campaigns[""]["delivered"] == sums["delivered"] - june["delivered"] > 0, "the bounces"
    kinds = {r["kind"]: r["count"] for r in spark.read.parquet(f"{output}/replies").collect()}
    assert sum(kinds.values()) == gone + later
    assert "greylisted, come back in <n> seconds" in kinds
    page = content(spark, f"{output}/report.html")
    for text in ("Delivery report", "june", "d0.example", "greylisted, come back in &lt;n&gt; seconds"):
        assert text in page
    assert "http://" not in page
    assert "https://" not in page
    with pytest.raises(LocalError, match="exists; choose another directory, or replace it"):
        report(spark, ReportRequest(found["events"], [], output))
    again = ReportRequest(found["events"], [found["plan"]], output, overwrite=True)
    assert report(spark, again) == sums


def _reconcile(spark: "SparkSession", found: dict[str, Any], root: str) -> None:
    from zonemta_py.pipeline.report.outcomes import ReconcileRequest, reconcile
    from zonemta_py.pipeline.spark.files import make_directory

    request = ReconcileRequest(found["plan"], open_log(spark, found["events"]), f"{root}/outcomes")
    counts = reconcile(spark, request, no_progress)
    assert counts["delivered"] == COUNT * 5 // 6
    assert counts["bounced"] == COUNT // 6
    assert sum(counts.values()) == COUNT
    rows = spark.read.parquet(f"{root}/outcomes").collect()
    assert Counter(r["outcome"] for r in rows if r["address"].startswith("gone")) == {
        "bounced": COUNT // 6
    }
    assert all("5.1.1" in r["detail"] for r in rows if r["outcome"] == "bounced")
    make_directory(spark, f"{root}/no-events")
    empty = open_log(spark, f"{root}/no-events")
    counts = reconcile(spark, ReconcileRequest(found["plan"], empty), no_progress)
    assert counts["waiting"] == COUNT


def _suppress(spark: "SparkSession", found: dict[str, Any], root: str) -> None:
    from zonemta_py.pipeline.feedback.bounces import SuppressRequest, make_suppression

    path = f"{root}/bounced.txt"
    log = open_log(spark, found["events"])
    assert make_suppression(spark, SuppressRequest(log, path), no_progress) == COUNT // 6
    entries = suppressed(content(spark, path))
    assert all(address.startswith("gone") for address in entries)
    assert all(row["reason"].startswith("bounced 5.1.1 on 20") for row in entries.values())
    manifest = plan(spark, found["list"], f"{root}/second", suppress=[path], message=LETTER)
    assert (manifest.planned, manifest.suppressed) == (COUNT * 5 // 6, COUNT // 6)
    assert make_suppression(spark, SuppressRequest(log, path, times=2), no_progress) == 0


def _compact(spark: "SparkSession", found: dict[str, Any], root: str) -> None:
    """The rates of the compacted events are those of the segments."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact
    from zonemta_py.pipeline.report.job import ReportRequest

    for count in (1, 0):
        new = compact(spark, CompactRequest(found["events"], f"{root}/lake"), no_progress)
        assert (new.records > 0) is bool(count), "a segment is read once"
    report(spark, ReportRequest(f"{root}/lake/events", [found["plan"]], f"{root}/of-lake"))
    rates = [
        sorted(map(tuple, spark.read.parquet(f"{root}/{name}/rates").collect()))
        for name in ("report", "of-lake")
    ]
    assert rates[0] == rates[1]
