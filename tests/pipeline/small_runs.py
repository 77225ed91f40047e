"""Every table of the pipeline, written by a small run of its job."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipeline.campaigns import PERSONAL, no_progress, open_log, plan, report, write_list
from tests.pipeline.feedback.test_dsn import as_table, ledger_of
from tests.pipeline.segments import HOUR_MS, accepted, delivered, write_segment
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.pipeline.plan.segment import EngagementPolicy
from zonemta_py.pipeline.simulate.job import scenarios

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGINS_MS = 1_800_000_000_000
REFUSED = {"event": "deferred", "code": 451, "status": "4.7.0", "reply": "try again later"}


def tables_of_small_runs(spark: "SparkSession", directory: Path) -> "dict[str, DataFrame]":
    """The name of each table, such as ``report/rates``, and its rows."""
    found = {**_plan(spark, directory / "plan"), **_report(spark, directory / "report")}
    found.update(_lists(spark, directory / "lists"))
    found.update(_forecasts(spark, directory))
    return found


def _read(spark: "SparkSession", directory: Path, name: str) -> "DataFrame":
    return spark.read.parquet(f"{directory}/{name}")


def _plan(spark: "SparkSession", directory: Path) -> "dict[str, DataFrame]":
    from zonemta_py.pipeline.send.ledger import begin_of_sending, read_ledger

    directory.mkdir()
    rows = [["a@x.example", "A"], ["A@x.example", "again"], ["wrong", "W"]]
    plan(spark, write_list(directory / "list.csv", rows), directory / "plan", message=PERSONAL)
    found = {
        f"plan/{name}": _read(spark, directory / "plan", name)
        for name in ("envelopes", "left_out", "message", "manifest")
    }
    begin_of_sending(spark, str(directory / "plan"))
    found["plan/begun"] = _read(spark, directory / "plan", "begun")
    ledger = read_ledger(spark, ledger_of(spark, directory / "sent"))
    assert ledger is not None
    return {**found, "plan/ledger": ledger}


def _report(spark: "SparkSession", directory: Path) -> "dict[str, DataFrame]":
    """A day of deliveries, and an hour in which all are deferred."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact
    from zonemta_py.pipeline.report.job import ReportRequest

    directory.mkdir()
    events = [
        delivered(seq, time_ms=BEGINS_MS + hour * HOUR_MS + seq, tags=["t"], tenant="acme")
        for hour in range(30)
        for seq in range(hour * 60, hour * 60 + 60)
    ]
    for event in events[-60:]:
        event.update(REFUSED)
    write_segment(directory / "events", "a", [accepted(90_000, ["u@x.example"]), *events])
    warmup = WarmupSchedule("127.0.0.2", date(2027, 1, 15), (10, 20))
    request = ReportRequest(str(directory / "events"), (), str(directory / "out"), warmups=[warmup])
    report(spark, request)
    names = ("rates", "hours", "days", "replies", "anomalies", "warmup")
    compact(spark, CompactRequest(str(directory / "events"), str(directory / "lake")), no_progress)
    found = {f"report/{name}": _read(spark, directory / "out", name) for name in names}
    return {**found, "compact/events": _read(spark, directory / "lake", "events")}


def _lists(spark: "SparkSession", directory: Path) -> "dict[str, DataFrame]":
    from zonemta_py.pipeline.feedback.bounces import complaint_counts
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_reports
    from zonemta_py.pipeline.plan.segment import SegmentRequest, make_segments

    directory.mkdir()
    ledger = ledger_of(spark, directory / "sent")
    mail = str(as_table(directory))
    read_reports(spark, DsnRequest([mail], [ledger], str(directory / "mail")), no_progress)
    opens = write_list(directory / "opens.csv", [["a@x.example", "2026-11-20"]], ("email", "time"))
    listed = write_list(directory / "list.csv", [["a@x.example"], ["b@x.example"], ["wrong"]], ("email",))  # fmt: skip
    policy = EngagementPolicy(date(2026, 11, 24))
    output = directory / "segments"
    make_segments(spark, SegmentRequest(str(opens), str(listed), str(output), policy), no_progress)
    reports = _read(spark, directory / "mail", "reports")
    providers = spark.createDataFrame([("x.example", "google")], "domain string, provider string")
    return {
        "dsn/reports": reports,
        "report/complaints": reports.transform(complaint_counts(providers)),
        "segment/segments": _read(spark, output, "segments").drop("email"),
        "segment/left_out": _read(spark, output, "left_out"),
    }


def _forecasts(spark: "SparkSession", directory: Path) -> "dict[str, DataFrame]":
    """From the plan and the events of the other runs."""
    from zonemta_py.pipeline.report.anomalies import AnomalyRequest, AnomalyThresholds, find_anomalies
    from zonemta_py.pipeline.report.outcomes import ReconcileRequest, reconcile
    from zonemta_py.pipeline.simulate.job import SimulateRequest, simulate_scenarios

    events = open_log(spark, directory / "report" / "events")
    planned = str(directory / "plan" / "plan")
    outputs = {name: str(directory / name) for name in ("outcomes", "anomalies", "predictions")}
    reconcile(spark, ReconcileRequest(planned, events, outputs["outcomes"]), no_progress)
    find_anomalies(spark, AnomalyRequest(events, AnomalyThresholds(), outputs["anomalies"]), no_progress)
    request = SimulateRequest(events, scenarios("{}", Path("z.yaml"), []), output=outputs["predictions"])
    simulate_scenarios(spark, request, no_progress)
    return {
        "reconcile": spark.read.parquet(outputs["outcomes"]),
        "anomaly": spark.read.parquet(outputs["anomalies"]),
        "simulate": spark.read.parquet(outputs["predictions"]),
    }
