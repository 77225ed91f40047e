"""Reports, reconciliation and suppression from the event log of a real relay."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.relay import empty, relaying, staged
from tests.pipeline.test_plan import plan, write_list
from tests.pipeline.test_send import manners, send
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.suppression import read_suppression
from zonemta_py.sink.script import Rule, Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LETTER = b"From: n@example.com\r\nSubject: hi\r\n\r\nhello\r\n"
COUNT = 120


def quiet(text: str) -> None:
    """No progress."""


async def campaign(spark: "SparkSession", folder: Path) -> dict[str, Any]:
    """A plan of 120, sent and delivered: one in six bounces hard, one in six once gets a 451."""
    rows = [
        [f"{'gone' if n % 6 == 0 else 'later' if n % 6 == 1 else 'fine'}{n}@d{n % 2}.example"]
        for n in range(COUNT)
    ]
    listed = write_list(folder / "list.csv", rows, head=("email",))
    rules = (
        Rule(Step.RCPT, recipient="gone*", reply="550 5.1.1 <{}> no such user"),
        Rule(
            Step.RCPT,
            recipient="later*",
            reply="451 4.7.1 greylisted, come back in 300 seconds",
            times=1,
        ),
    )
    async with staged(folder) as stage:
        for n in range(2):
            await stage.receiver(f"d{n}.example", *rules)
        home = await stage.receiver("example.com")
        async with relaying(stage.config()) as relay:
            place = folder / "plan"
            await asyncio.to_thread(plan, spark, listed, place, message=LETTER, per_envelope=10)
            sums = await asyncio.to_thread(
                send, spark, place, manners(str(relay.addresses[0]), message=LETTER)
            )
            assert sums.complete
            await empty_queue(relay)
        assert home.tally.messages > 0
    return {"plan": str(place), "events": str(folder / "events"), "rows": rows}


async def empty_queue(relay: Any) -> None:
    from tests.kit.deadlines import until
    from zonemta_py.queue.format import keys

    store = relay.queue.store
    await until(
        lambda: next(store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE)), None) is None, "every end"
    )
    assert empty


async def test_what_became_of_a_campaign(spark: "SparkSession", folder: Path) -> None:
    found = await campaign(spark, folder)
    await asyncio.to_thread(_report, spark, found, folder)
    await asyncio.to_thread(_reconcile, spark, found, folder)
    await asyncio.to_thread(_suppress, spark, found, folder)


def _report(spark: "SparkSession", found: dict[str, Any], folder: Path) -> None:
    from zonemta_py.pipeline.jobs.report import Request, make_report

    output = folder / "report"
    sums = make_report(spark, Request(found["events"], [found["plan"]], str(output)), quiet)
    gone, later = COUNT // 6, COUNT // 6
    of_us = {
        r["value"]: r
        for r in spark.read.parquet(f"{output}/rates").where("dimension = 'campaign'").collect()
    }
    june = of_us["june"]
    assert (june["delivered"], june["bounced"], june["deferred"]) == (COUNT - gone, gone, later)
    assert june["attempts"] == COUNT + later
    assert june["delivery_rate"] == pytest.approx(5 / 6)
    assert june["deferral_rate"] == pytest.approx(later / (COUNT + later))
    assert 0 < june["p50_ms"] <= june["p95_ms"] <= june["p99_ms"] < 60_000
    assert of_us[""]["delivered"] == sums["delivered"] - june["delivered"] > 0, "the reports"
    kinds = {r["kind"]: r["count"] for r in spark.read.parquet(f"{output}/replies").collect()}
    assert sum(kinds.values()) == gone + later
    assert "greylisted, come back in <n> seconds" in kinds
    page = (output / "report.html").read_text()
    for text in ("Delivery report", "june", "d0.example", "greylisted, come back in &lt;n&gt; seconds"):
        assert text in page
    assert "http" not in page.replace("http://www.w3.org", "")
    with pytest.raises(LocalError, match="there is something already"):
        make_report(spark, Request(found["events"], [], str(output)), quiet)


def _reconcile(spark: "SparkSession", found: dict[str, Any], folder: Path) -> None:
    from zonemta_py.pipeline.jobs.reconcile import reconcile

    counts = reconcile(spark, found["plan"], found["events"], str(folder / "outcomes"), quiet)
    assert counts["delivered"] == COUNT * 5 // 6
    assert counts["bounced"] == COUNT // 6
    assert sum(counts.values()) == COUNT
    rows = spark.read.parquet(str(folder / "outcomes")).collect()
    assert Counter(r["outcome"] for r in rows if r["address"].startswith("gone")) == {
        "bounced": COUNT // 6
    }
    assert all("5.1.1" in r["detail"] for r in rows if r["outcome"] == "bounced")
    nothing = folder / "no-events"
    nothing.mkdir()
    counts = reconcile(spark, found["plan"], str(nothing), None, quiet)
    assert counts["waiting"] == COUNT


def _suppress(spark: "SparkSession", found: dict[str, Any], folder: Path) -> None:
    from zonemta_py.pipeline.jobs.suppress import Request, make_suppression

    path = folder / "bounced.txt"
    assert make_suppression(spark, Request(found["events"], path), quiet) == COUNT // 6
    entries = read_suppression(iter([path]))
    assert entries.bad == 0
    assert all(address.startswith("gone") for address in entries.entries)
    assert all(reason.startswith("bounced 5.1.1 on 20") for reason in entries.entries.values())
    listed = write_list(folder / "again.csv", found["rows"], head=("email",))
    manifest = plan(spark, listed, folder / "second", suppression=entries, message=LETTER)
    assert (manifest.planned, manifest.suppressed) == (COUNT * 5 // 6, COUNT // 6)
    assert make_suppression(spark, Request(found["events"], path, times=2), quiet) == 0


def test_records_that_stand_twice_count_once(spark: "SparkSession", tmp_path: Path) -> None:
    from tests.pipeline.segments import delivered, write_segment
    from zonemta_py.pipeline.spark.events import read_events

    records = [delivered(seq) for seq in range(10)]
    write_segment(tmp_path, "a", records[:7])
    write_segment(tmp_path, "b", records[5:])
    assert read_events(spark, str(tmp_path)).count() == 10


def test_a_newer_relay(spark: "SparkSession", tmp_path: Path) -> None:
    """Fields and events that are not known here cost nothing."""
    from tests.pipeline.segments import delivered, write_segment
    from zonemta_py.pipeline.spark.events import read_events

    newer = [
        {**delivered(1), "quantum": {"a": [1]}},
        {"node": "n", "seq": 2, "position": 0, "event": "teleported"},
    ]
    write_segment(tmp_path, "a", newer)
    assert {r["event"] for r in read_events(spark, str(tmp_path)).collect()} == {
        "delivered",
        "teleported",
    }


def test_a_torn_segment(spark: "SparkSession", tmp_path: Path) -> None:
    """It is an error that names the file, and no smaller sum."""
    from tests.pipeline.segments import delivered, write_segment
    from zonemta_py.pipeline.jobs.report import Request, make_report

    path = write_segment(tmp_path / "events", "a", [delivered(seq) for seq in range(2000)])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(LocalError, match=r"a.jsonl.zst cannot be read: Truncated source"):
        make_report(spark, Request(str(tmp_path / "events"), [], str(tmp_path / "out")), quiet)


def test_no_events(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.jobs.report import Request, make_report

    for place, problem in (
        (tmp_path / "missing", "no event log here"),
        (tmp_path, "no delivery was attempted"),
    ):
        with pytest.raises(LocalError, match=problem):
            make_report(spark, Request(str(place), [], str(tmp_path / f"out-{problem[:3]}")), quiet)
