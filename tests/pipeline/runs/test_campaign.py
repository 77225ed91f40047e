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


async def campaign(spark: "SparkSession", directory: Path) -> dict[str, Any]:
    """A plan of 120, submitted and delivered: one in six bounces hard, one in six is deferred once."""
    rows = [
        [f"{'gone' if n % 6 == 0 else 'later' if n % 6 == 1 else 'fine'}{n}@d{n % 2}.example"]
        for n in range(COUNT)
    ]
    listed = write_list(directory / "list.csv", rows, head=("email",))
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
            plan_path = directory / "plan"
            await asyncio.to_thread(
                plan, spark, listed, plan_path, message=LETTER, recipients_per_message=10
            )
            sums = await asyncio.to_thread(
                send, spark, plan_path, submit_options(str(relay.addresses[0]), message=LETTER)
            )
            assert sums.complete
            await empty_queue(relay)
        assert home.tally.messages > 0
    return {"plan": str(plan_path), "events": str(directory / "events"), "rows": rows}


async def empty_queue(relay: Any) -> None:
    store = relay.queue.store
    await until(
        lambda: next(store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE)), None) is None, "an empty queue"
    )


async def test_a_campaign(spark: "SparkSession", directory: Path) -> None:
    found = await campaign(spark, directory)
    await asyncio.to_thread(_report, spark, found, directory)
    await asyncio.to_thread(_reconcile, spark, found, directory)
    await asyncio.to_thread(_suppress, spark, found, directory)


def _report(spark: "SparkSession", found: dict[str, Any], directory: Path) -> None:
    from zonemta_py.pipeline.jobs.report import ReportRequest

    output = directory / "report"
    sums = report(spark, ReportRequest(found["events"], [found["plan"]], str(output)))
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
    page = (output / "report.html").read_text()
    for text in ("Delivery report", "june", "d0.example", "greylisted, come back in &lt;n&gt; seconds"):
        assert text in page
    assert "http://" not in page
    assert "https://" not in page
    with pytest.raises(LocalError, match="exists; choose another directory, or replace it"):
        report(spark, ReportRequest(found["events"], [], str(output)))
    (output / "report.html").write_text("old")
    again = ReportRequest(found["events"], [found["plan"]], f"file://{output}", overwrite=True)
    assert report(spark, again) == sums, "on a file system of Hadoop"
    assert "Delivery report" in (output / "report.html").read_text()


def _reconcile(spark: "SparkSession", found: dict[str, Any], directory: Path) -> None:
    from zonemta_py.pipeline.jobs.reconcile import ReconcileRequest, reconcile

    request = ReconcileRequest(
        found["plan"], open_log(spark, found["events"]), str(directory / "outcomes")
    )
    counts = reconcile(spark, request, no_progress)
    assert counts["delivered"] == COUNT * 5 // 6
    assert counts["bounced"] == COUNT // 6
    assert sum(counts.values()) == COUNT
    rows = spark.read.parquet(str(directory / "outcomes")).collect()
    assert Counter(r["outcome"] for r in rows if r["address"].startswith("gone")) == {
        "bounced": COUNT // 6
    }
    assert all("5.1.1" in r["detail"] for r in rows if r["outcome"] == "bounced")
    empty = directory / "no-events"
    empty.mkdir()
    counts = reconcile(spark, ReconcileRequest(found["plan"], open_log(spark, str(empty))), no_progress)
    assert counts["waiting"] == COUNT


def _suppress(spark: "SparkSession", found: dict[str, Any], directory: Path) -> None:
    from zonemta_py.pipeline.jobs.suppress import SuppressRequest, make_suppression

    path = directory / "bounced.txt"
    assert (
        make_suppression(
            spark, SuppressRequest(open_log(spark, found["events"]), str(path)), no_progress
        )
        == COUNT // 6
    )
    entries = suppressed(path)
    assert all(address.startswith("gone") for address in entries)
    assert all(row["reason"].startswith("bounced 5.1.1 on 20") for row in entries.values())
    listed = write_list(directory / "again.csv", found["rows"], head=("email",))
    manifest = plan(spark, listed, directory / "second", suppress=[str(path)], message=LETTER)
    assert (manifest.planned, manifest.suppressed) == (COUNT * 5 // 6, COUNT // 6)
    assert (
        make_suppression(
            spark, SuppressRequest(open_log(spark, found["events"]), str(path), times=2), no_progress
        )
        == 0
    )
