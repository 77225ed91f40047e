"""From the event log to what a deliverability manager reads: Parquet tables and one HTML page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from zonemta_py.errors import LocalError
from zonemta_py.pipeline import html
from zonemta_py.pipeline.events import read_events
from zonemta_py.pipeline.failures import told
from zonemta_py.pipeline.jobs.send import read_ledger
from zonemta_py.pipeline.transforms import rates

SHOWN = 25  # rows of a table on the page; the Parquet tables have all
TITLES = {
    "zone": "Zones", "provider": "Providers", "domain": "Recipient domains", "address": "Sending addresses",
    "campaign": "Campaigns",
}  # fmt: skip
HEAD = (
    "", "delivered", "deferred", "bounced", "expired", "delivery", "bounce", "deferral", "p50", "p95", "p99",
)  # fmt: skip

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """Which events, told apart by the campaigns of which plans, into which folder."""

    events: str
    plans: Sequence[str]
    output: str


def make_report(spark: SparkSession, request: Request, step: Step) -> dict[str, Any]:
    """Write tables and page; returns the sums. Raises LocalError."""
    if Path(request.output).exists():
        raise LocalError(f"{request.output}: there is something already; choose another folder")
    step("reading the event log")
    with told(request.events):
        rows = read_events(spark, request.events).transform(
            rates.attempts(campaigns_of(spark, request.plans))
        )
        place = f"{request.output}/attempts"
        rows.write.parquet(place)
        rows = spark.read.parquet(place)
        tables = {
            "rates": rows.transform(rates.rates()),
            "hours": rows.transform(rates.by_hour()),
            "days": rows.transform(rates.by_day_and_address()),
            "replies": rows.transform(rates.replies()),
        }
        for name, table in tables.items():
            step(f"computing {name}")
            table.coalesce(1).write.parquet(f"{request.output}/{name}")
    step("drawing the page")
    written = {name: spark.read.parquet(f"{request.output}/{name}") for name in tables}
    sums = written["rates"].where("dimension = 'all'").first()
    if sums is None:
        raise LocalError(f"{request.events}: no delivery was attempted in these events")
    (Path(request.output) / "report.html").write_text(_page(request, sums, written), encoding="utf-8")
    return {name: value for name, value in sums.asDict().items() if name not in ("dimension", "value")}


def campaigns_of(spark: SparkSession, plans: Sequence[str]) -> DataFrame | None:
    """``message`` and ``campaign`` from the ledgers of ``plans``, None without any."""
    found = None
    for plan in plans:
        ledger = read_ledger(spark, plan)
        if ledger is None:
            raise LocalError(f"{plan}: nothing was sent yet")
        here = ledger.select(F.explode("messages").alias("message"), "campaign").distinct()
        found = here if found is None else found.union(here)
    return found


def _page(request: Request, sums: Row, tables: dict[str, DataFrame]) -> str:
    hours = tables["hours"].groupBy("hour").agg(*(F.sum(name).alias(name) for name in rates.ATTEMPTS))
    sections = [
        html.cards(
            [
                html.Figure("recipients delivered", f"{sums['delivered']:,}"),
                html.Figure("of final outcomes delivered", _percent(sums["delivery_rate"])),
                html.Figure("bounced or expired", f"{sums['bounced'] + sums['expired']:,}"),
                html.Figure("attempts deferred", _percent(sums["deferral_rate"])),
                html.Figure("median time to delivery", _time(sums["p50_ms"])),
                html.Figure("99 % delivered within", _time(sums["p99_ms"])),
            ]
        ),
        html.stacks(
            "By hour",
            "attempts: delivered, deferred (amber), bounced or expired (red); UTC",
            [
                html.Stack(f"{row['hour']:%d %H:%M}", row["delivered"], row["deferred"], row["bounced"] + row["expired"])
                for row in hours.orderBy("hour").collect()
            ],
        ),
    ]  # fmt: skip
    for dimension, title in TITLES.items():
        rows = tables["rates"].where((F.col("dimension") == dimension) & (F.col("value") != ""))
        shown = rows.orderBy(F.desc("attempts"), "value").limit(SHOWN).collect()
        note = f"the {SHOWN} with most attempts; p50 to p99: time from 250 to delivery"
        if shown:
            sections.append(html.table(title, note, HEAD, [_cells(row) for row in shown]))
    replies = tables["replies"].orderBy(F.desc("count"), "kind").limit(SHOWN).collect()
    sections.append(
        html.table(
            "What peers said",
            "replies to failures, without what differs from message to message",
            ("reply", "provider", "event", "phase", "code", "count"),
            [
                (row["kind"] or "", row["provider"] or "", row["event"], row["phase"], f"{row['code']} {row['status']}", f"{row['count']:,}")
                for row in replies
            ],
            texts=4,
        )
    )  # fmt: skip
    return html.page("Delivery report", f"from {request.events}", sections)


def _cells(row: Row) -> list[str]:
    counts = [f"{row[name]:,}" for name in rates.ATTEMPTS]
    shares = [_percent(row[name]) for name in ("delivery_rate", "bounce_rate", "deferral_rate")]
    return [row["value"], *counts, *shares, *(_time(row[f"p{n}_ms"]) for n in (50, 95, 99))]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _time(ms: int | None) -> str:
    if ms is None:
        return "-"
    for least, unit, per in ((86_400_000, "d", 86_400_000), (3_600_000, "h", 3_600_000), (60_000, "min", 60_000), (1000, "s", 1000)):  # fmt: skip
        if ms >= least:
            return f"{ms / per:.1f} {unit}"
    return f"{ms} ms"
