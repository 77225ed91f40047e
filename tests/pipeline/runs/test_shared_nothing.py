"""Jobs on a cluster whose machines share an object store, and nothing else."""

import asyncio
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.deadlines import scaled
from tests.pipeline.campaigns import (
    PERSONAL,
    addresses,
    content,
    copy,
    no_progress,
    open_log,
    plan,
    relay_and_sinks,
    report,
    submit_options,
    suppressed,
    write_list,
)
from tests.pipeline.cluster import can_hide, cluster
from tests.pipeline.object_store import JARS, class_path, object_root, settings
from tests.pipeline.segments import accepted, delivered, write_segment
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.plan.segment import EngagementPolicy
from zonemta_py.pipeline.simulate.job import scenarios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENT = 60
GONE = {"event": "bounced", "code": 550, "status": "5.1.1", "reply": "no such user"}
MAIL = b"From a Thu Nov 26 10:00:00 2026\nSubject: out of office\n\nI am away\n"
SMALL = {
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraClassPath": class_path(),
    "spark.driver.extraClassPath": class_path(),
}


@pytest.mark.timeout(400)
@pytest.mark.skipif(not JARS.is_dir(), reason="no client of S3 for Spark (setup-tools installs it)")
@pytest.mark.skipif(not can_hide(), reason="this user may not hide a directory from a process")
async def test_machines_that_share_only_an_object_store(spark: "SparkSession", directory: Path) -> None:
    """The files of the driver are hidden from its executors; what the jobs count is what is in the list and the log."""
    root = object_root(spark, directory)
    driver = directory / "driver"
    driver.mkdir()
    await asyncio.to_thread(_prepare, spark, driver, root)
    async with cluster(directory, hidden=driver) as spark_cluster, relay_and_sinks(directory) as here:
        script = [
            sys.executable, "-m", __name__, spark_cluster.address, root, json.dumps(settings()), str(driver),
            here.target,
        ]  # fmt: skip
        run = await asyncio.to_thread(
            subprocess.run, script, capture_output=True, text=True, timeout=scaled(240), check=False
        )

    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout.splitlines()[-1]) == {
        "planned": 300, "delivered": 40, "compacted": 43, "of_lake": 40, "suppressed": 2,
        "planned_again": 298, "messages": 1, "updated": 40, "not_shared": True,
        "accepted": [SENT, SENT], "reconciled": SENT, "segments": [1, 299], "anomalies": 0, "predicted": 1,
    }  # fmt: skip
    assert set(suppressed(await asyncio.to_thread(content, spark, f"{root}/gone.csv"))) == {
        "u1@x.example",
        "u2@x.example",
    }


def _prepare(spark: "SparkSession", driver: Path, root: str) -> None:
    rows = [[f"u{n}@x.example", "x"] for n in range(300)]
    copy(spark, write_list(driver / "list.csv", rows), f"{root}/list.csv")
    mailing = write_list(driver / "mailing.csv", [[address, "x"] for address in addresses(SENT)])
    copy(spark, mailing, f"{root}/mailing.csv")
    opens = write_list(driver / "opens.csv", [["u7@x.example", "2026-11-25"]], ("email", "time"))
    copy(spark, opens, f"{root}/opens.csv")
    (driver / "mail.mbox").write_bytes(MAIL)
    copy(spark, driver / "mail.mbox", f"{root}/mail.mbox")
    bounces = [delivered(n, recipient=f"u{n}@x.example", **GONE) for n in (1, 2)]
    write_segment(driver / "events", "a", [*bounces, *(delivered(n) for n in range(3, 30))])
    rest = [accepted(30, ["u@x.example"]), *(delivered(n) for n in range(31, 44))]
    write_segment(driver / "events", "b", rest)
    copy(spark, driver / "events", f"{root}/events")


def _sent(spark: "SparkSession", root: str, target: str) -> dict[str, Any]:
    """What is submitted, and what becomes of that."""
    from zonemta_py.pipeline.plan.segment import SegmentRequest, make_segments
    from zonemta_py.pipeline.report.anomalies import AnomalyRequest, AnomalyThresholds, find_anomalies
    from zonemta_py.pipeline.report.outcomes import ReconcileRequest, reconcile
    from zonemta_py.pipeline.send.job import send_plan
    from zonemta_py.pipeline.simulate.job import SimulateRequest, simulate_scenarios

    mailing, log = f"{root}/mailing", open_log(spark, f"{root}/events")
    plan(spark, f"{root}/mailing.csv", mailing, message=PERSONAL)
    options = submit_options(target)
    accepted = [send_plan(spark, mailing, options, no_progress).accepted for _ in range(2)]
    of_plan = ReconcileRequest(mailing, log, f"{root}/reconciled")
    reconciled = sum(reconcile(spark, of_plan, no_progress).values())
    policy = EngagementPolicy(date(2026, 11, 26))
    of_list = SegmentRequest(f"{root}/opens.csv", f"{root}/list.csv", f"{root}/segments", policy)
    counts = make_segments(spark, of_list, no_progress).segments
    of_hours = AnomalyRequest(log, AnomalyThresholds(), f"{root}/anomalies")
    of_zones = SimulateRequest(log, scenarios("{}", Path("z.yaml"), []), output=f"{root}/predicted")
    return {
        "accepted": accepted,
        "reconciled": reconciled,
        "segments": [counts["active_30"], sum(counts.values()) - counts["active_30"]],
        "anomalies": len(find_anomalies(spark, of_hours, no_progress)),
        "predicted": len(simulate_scenarios(spark, of_zones, no_progress)),
    }


def _jobs(spark: "SparkSession", root: str, driver: str) -> dict[str, Any]:
    """Run the jobs; what they count. ``not_shared``: one that writes to a directory of the driver says why it cannot."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact
    from zonemta_py.pipeline.feedback.bounces import SuppressRequest, make_suppression
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_reports
    from zonemta_py.pipeline.report.advice import RecommendRequest, recommend
    from zonemta_py.pipeline.report.job import ReportRequest, update_report

    events, lake = f"{root}/events", CompactRequest(f"{root}/events", f"{root}/lake")
    gone, mail = (
        f"{root}/gone.csv",
        DsnRequest([f"{root}/mail.mbox"], [], f"{root}/mail", ["s@x.example"]),
    )
    first = plan(spark, f"{root}/list.csv", f"{root}/plan")
    found = {
        "planned": first.planned,
        "delivered": report(spark, ReportRequest(events, (), f"{root}/report"))["delivered"],
        "compacted": compact(spark, lake, no_progress).records,
        "of_lake": report(spark, ReportRequest(lake.lake, (), f"{root}/of-lake"))["delivered"],
        "suppressed": make_suppression(spark, SuppressRequest(open_log(spark, events), gone), no_progress),
        "planned_again": plan(spark, f"{root}/list.csv", f"{root}/again", suppress=[gone]).planned,
        "messages": read_reports(spark, mail, no_progress).messages,
    }  # fmt: skip
    recommend(spark, RecommendRequest(open_log(spark, events), f"{root}/zones.yaml"), no_progress)
    for _ in range(2):
        updated = update_report(spark, ReportRequest(events, (), f"{root}/kept"), None, no_progress)
    try:
        compact(spark, CompactRequest(events, f"{driver}/lake"), no_progress)
        error = ""
    except LocalError as exc:
        error = str(exc)
    not_shared = "files are not here: tasks of other machines wrote them to their own disks" in error
    return {**found, "updated": updated[0]["delivered"], "not_shared": not_shared}


if __name__ == "__main__":
    from zonemta_py.pipeline.spark.session import open_session

    of_store = {f"spark.hadoop.{name}": value for name, value in json.loads(sys.argv[3]).items()}
    session = open_session(sys.argv[1], "512m", light=False, **SMALL, **of_store)
    print(
        json.dumps(_jobs(session, sys.argv[2], sys.argv[4]) | _sent(session, sys.argv[2], sys.argv[5]))
    )
    session.stop()
